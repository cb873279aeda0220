//! What only SQLite's log has: its own connection rules, its tables, and a view as text.

use oncebox_core::store::{NewMessage, Progress, Registration, Registry, ReplayFrom, Store, Work};
use oncebox_core::{ErrorKind, Key, Mode};
use oncebox_sqlite::SqliteStore;
use oncebox_testing::one_handler::{
    ALL, FOUR_LANES, OneHandler, all_done, as_tasks, failure, message, place, stored,
};

use crate::fixture::{self, Sqlite};

async fn one_handler() -> OneHandler<Sqlite> {
    OneHandler::new(fixture::in_a_file("log").await.unwrap()).await
}

#[tokio::test]
async fn a_handler_cannot_commit_what_it_was_lent() {
    let log = one_handler().await;
    let store = &log.fixture.store;
    log.append_keys(0, &["1"]).await;
    let mut tx = log.begin().await;
    store.take(&mut tx, log.taker(0), ALL).await.unwrap().unwrap();
    sqlx::query("insert into effect values ('stolen')")
        .execute(SqliteStore::connection(&mut tx))
        .await
        .unwrap();
    sqlx::query("commit").execute(SqliteStore::connection(&mut tx)).await.unwrap_err();
    let progress = Progress { handler: log.handler, lane: 0, epoch: 0, pos: 1 };
    let error = store.finish(tx, Some(progress)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transaction);
    let effects: i64 =
        sqlx::query_scalar("select count(*) from effect").fetch_one(store.pool()).await.unwrap();
    assert_eq!(effects, 0);
    assert_eq!(log.peek(0, ALL).await.unwrap().from, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_that_register_at_once_agree() {
    let fixture = fixture::in_a_file("log").await.unwrap();
    let starters: Vec<_> = (0..8)
        .map(|_| {
            let path = fixture.path();
            tokio::spawn(async move {
                // A pool each, as processes have.
                let store = SqliteStore::connect(&path).await.unwrap();
                let inline = Registration { mode: Mode::inline(), ..stored("mailer", &["c"]) };
                store.register(FOUR_LANES, &[stored("x", &["a"]), inline, stored("y", &["b"])]).await.unwrap()
            })
        })
        .collect();
    let mut layouts = Vec::new();
    for starter in starters {
        layouts.push(starter.await.unwrap());
    }
    assert!(layouts.iter().all(|layout| *layout == layouts[0]), "{layouts:?}");
    assert_eq!((layouts[0].lanes, layouts[0].handlers.len()), (4, 3));
}

/// Deleted messages must not be passed by the progress of an earlier life.
#[tokio::test]
async fn a_progress_left_behind_does_not_count_for_a_revived_handler() {
    let mut log = one_handler().await;
    log.append_keys(0, &["1", "2"]).await;
    assert!(log.remove("ledger").await);
    sqlx::query("insert into oncebox_progress values (?, 0, 6, 2, 0)")
        .bind(log.handler.0)
        .execute(log.fixture.store.pool())
        .await
        .unwrap();
    log.change(|wanted| wanted.revive = true).await.unwrap();
    let batch = log.peek(0, ALL).await.unwrap();
    assert_eq!((batch.epoch, batch.from), (7, 0));
}

async fn progress(log: &OneHandler<Sqlite>) -> Vec<i64> {
    sqlx::query_scalar("select pos from oncebox_progress where lane = 0 order by pos")
        .fetch_all(log.fixture.store.pool())
        .await
        .unwrap()
}

#[tokio::test]
async fn of_the_progress_only_what_still_tells_something_is_kept() {
    let log = one_handler().await;
    for key in ["1", "2", "3", "4"] {
        log.append_keys(0, &[key]).await;
        log.pass(0, &all_done()).await;
    }
    assert_eq!(progress(&log).await, [0, 1, 2, 3, 4]);
    // A step that has others behind it leaves the progress alone.
    assert_eq!(log.prune(0, 0, 2, log.now_ms().await + 1).await.deleted, 2);
    assert_eq!(progress(&log).await, [0, 1, 2, 3, 4]);
    // Young progress tells when messages were done; of the old one, the newest stays.
    assert_eq!(log.prune(0, 0, 10, 1).await.deleted, 0);
    assert_eq!(progress(&log).await, [0, 1, 2, 3, 4]);
    assert_eq!(log.prune(0, 0, 10, log.now_ms().await + 1).await.deleted, 1);
    assert_eq!(log.positions(0).await, [4]);
    assert_eq!(progress(&log).await, [4]);
    let elsewhere: i64 = sqlx::query_scalar("select count(*) from oncebox_progress where lane <> 0")
        .fetch_one(log.fixture.store.pool())
        .await
        .unwrap();
    assert_eq!(elsewhere, 3);
}

#[tokio::test]
async fn of_several_replays_only_the_newest_is_kept() {
    let log = one_handler().await;
    log.append_keys(0, &["1", "2"]).await;
    for _ in 0..3 {
        log.pass(0, &all_done()).await;
        log.replay(ReplayFrom::Place(place(0, 1))).await;
    }
    let replays: i64 = sqlx::query_scalar("select count(*) from oncebox_replay")
        .fetch_one(log.fixture.store.pool())
        .await
        .unwrap();
    assert_eq!(replays, 1);
}

#[tokio::test]
async fn the_log_reads_as_an_inbox_table() {
    let log = one_handler().await;
    let binary =
        NewMessage { key: Some(Key::new([255, 1]).stored()), body: b"no json".to_vec(), ..message("a", "") };
    let keyless = NewMessage { key: None, ..message("a", "") };
    log.append(0, &[message("a", "Zürich"), message("a", "2"), binary, keyless, message("b", "5")]).await;
    type Row = (Option<String>, String, Option<String>, Option<String>, Option<String>, i64);
    let rows = async || -> Vec<Row> {
        sqlx::query_as(
            "select id, type, content, processed_on_utc, error, pos from oncebox_inbox_message order by pos",
        )
        .fetch_all(log.fixture.store.pool())
        .await
        .unwrap()
    };
    let before = rows().await;
    assert_eq!(
        before[0],
        (Some("Zürich".into()), "a".into(), Some("{\"of\":\"Zürich\"}".into()), None, None, 1)
    );
    assert_eq!((before[2].0.as_deref(), before[2].2.as_deref()), (Some("0xff01"), None));
    assert_eq!(before[3].0, None);
    log.pass(0, &as_tasks([failure(2, 1, "x")])).await;
    let after = rows().await;
    let processed: Vec<bool> = after.iter().map(|row| row.3.is_some()).collect();
    assert_eq!(processed, [true, false, true, true, false]);
    assert_eq!(after[1].4.as_deref(), Some("x"));
    // As ISO text, by the same clock.
    let when = after[0].3.as_deref().unwrap();
    assert_eq!((when.len(), &when[..2], &when[10..11], &when[23..]), (24, "20", "T", "Z"), "{when}");
}
