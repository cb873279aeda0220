//! What SQLite in particular could get wrong.

use std::time::Duration;

use oncebox_core::{BoxError, Envelope, ErrorKind, Inbox, Outcome};
use oncebox_sqlite::SqliteStore;
use sqlx::{Executor, SqliteConnection};

use crate::fixture;

const EFFECT: &str = "insert into effect (name) values ('a')";

fn envelope(key: &str) -> Envelope {
    Envelope::new("k", "{}").with_key(key)
}

async fn effects(store: &SqliteStore) -> i64 {
    sqlx::query_scalar("select count(*) from effect").fetch_one(store.pool()).await.unwrap()
}

#[tokio::test]
async fn a_time_out_ends_the_statement() {
    let fixture = fixture::in_a_file("time_out").await.unwrap();
    let endless = "with recursive n(n) as (select 1 union all select n + 1 from n) select count(*) from n";
    let inbox = Inbox::builder(fixture.store.clone())
        .handler_timeout(Duration::from_millis(200))
        .on_raw("h", ["k"], async move |_: Envelope, db: &mut SqliteConnection| -> Result<(), BoxError> {
            db.execute(EFFECT).await?;
            db.execute(endless).await?;
            Ok(())
        })
        .on_raw_with(
            "patient",
            ["other"],
            async |_: Envelope, db: &mut SqliteConnection| -> Result<(), BoxError> {
                db.execute(EFFECT).await?;
                Ok(())
            },
            |options| options.timeout(Duration::from_secs(600)),
        )
        .build()
        .await
        .unwrap();
    let report = inbox.process(envelope("a")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Retry { .. })), "{report:?}");
    // The one writer is free again, which it would not be if the statement went on.
    let report = inbox.process(Envelope::new("other", "{}").with_key("b")).await.unwrap();
    assert!(matches!(report.outcome("patient"), Some(Outcome::Done)), "{report:?}");
    assert_eq!(effects(&fixture.store).await, 1);
}

#[tokio::test]
async fn a_caller_that_leaves_after_a_rollback_of_the_handler_s_own_poisons_nothing() {
    let fixture = fixture::in_memory("poison").await.unwrap();
    let (entered, mut inside) = tokio::sync::mpsc::unbounded_channel();
    let inbox = Inbox::builder(fixture.store.clone())
        .on_raw("h", ["k"], async move |_: Envelope, db: &mut SqliteConnection| {
            let _ = db.execute("ROLLBACK").await;
            let _ = entered.send(());
            std::future::pending::<()>().await;
        })
        .on_raw("well", ["other"], async |_: Envelope, db: &mut SqliteConnection| {
            db.execute(EFFECT).await.map(drop)
        })
        .build()
        .await
        .unwrap();
    for n in 0..5 {
        let caller = tokio::spawn({
            let inbox = inbox.clone();
            async move { inbox.process(envelope("a")).await }
        });
        inside.recv().await.unwrap();
        caller.abort();
        let _ = caller.await;
        let report = inbox.process(Envelope::new("other", "{}").with_key(n)).await.unwrap();
        assert!(matches!(report.outcome("well"), Some(Outcome::Done)), "{report:?}");
    }
    assert_eq!(effects(&fixture.store).await, 5);
}

#[tokio::test]
async fn a_caller_that_leaves_in_the_middle_of_a_statement_frees_the_writer() {
    let endless = "with recursive n(n) as (select 1 union all select n + 1 from n) select count(*) from n";
    let fixture = fixture::in_a_file("leaves").await.unwrap();
    let (entered, mut inside) = tokio::sync::mpsc::unbounded_channel();
    let inbox = Inbox::builder(fixture.store.clone())
        .on_raw(
            "endless",
            ["k"],
            async move |_: Envelope, db: &mut SqliteConnection| -> Result<(), sqlx::Error> {
                let _ = entered.send(());
                db.execute(endless).await.map(drop)
            },
        )
        .on_raw("well", ["other"], async |_: Envelope, db: &mut SqliteConnection| {
            db.execute(EFFECT).await.map(drop)
        })
        .build()
        .await
        .unwrap();
    for n in 0..5 {
        let caller = tokio::spawn({
            let inbox = inbox.clone();
            async move { inbox.process(envelope("a")).await }
        });
        inside.recv().await.unwrap();
        tokio::task::yield_now().await;
        caller.abort();
        let _ = caller.await;
        let report = inbox.process(Envelope::new("other", "{}").with_key(n)).await.unwrap();
        assert!(matches!(report.outcome("well"), Some(Outcome::Done)), "{report:?}");
    }
}

#[tokio::test]
async fn a_closure_that_times_out_frees_the_writer() {
    let endless = "with recursive n(n) as (select 1 union all select n + 1 from n) select count(*) from n";
    let fixture = fixture::in_memory("once").await.unwrap();
    let inbox = Inbox::builder(fixture.store.clone())
        .handler_timeout(Duration::from_millis(20))
        .build()
        .await
        .unwrap();
    for n in 0..10 {
        let error = inbox
            .once("o", n, async |db: &mut SqliteConnection| -> Result<(), BoxError> {
                db.execute(EFFECT).await?;
                db.execute(endless).await?;
                Ok(())
            })
            .await;
        assert!(error.is_err());
    }
    assert_eq!(effects(&fixture.store).await, 0);
}

/// Two stores on one file are to each other as two processes are. A busy one, which never ends by itself, must not starve the other.
/// That they take turns one by one is tested where the turns are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_process_lets_the_other_have_its_turn() {
    let fixture = fixture::in_a_file("turns").await.unwrap();
    let other = SqliteStore::connect(&fixture.path()).await.unwrap();
    let done = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let inbox = async |store: SqliteStore| {
        Inbox::builder(store)
            .max_batch(1)
            .on_raw("h", ["k"], async |_: Envelope, db: &mut SqliteConnection| {
                db.execute(EFFECT).await.map(drop)
            })
            .build()
            .await
            .unwrap()
    };
    let (busy, calm) = (inbox(fixture.store.clone()).await, inbox(other).await);
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let (busy, done) = (busy.clone(), done.clone());
            tokio::spawn(async move {
                for n in 0.. {
                    busy.process(envelope(&format!("busy-{caller}-{n}"))).await.unwrap();
                    done.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                }
            })
        })
        .collect();
    let count = || done.load(std::sync::atomic::Ordering::SeqCst);
    while count() < 20 {
        tokio::task::yield_now().await;
    }
    // Several callers, so that somebody is in line all the time.
    let calm: Vec<_> = (0..4)
        .map(|caller| {
            let calm = calm.clone();
            tokio::spawn(async move {
                for n in 0..25 {
                    calm.process(envelope(&format!("calm-{caller}-{n}"))).await.unwrap();
                }
            })
        })
        .collect();
    for caller in calm {
        caller.await.unwrap();
    }
    // And is not starved itself.
    let before = count();
    while count() < before + 20 {
        tokio::task::yield_now().await;
    }
    callers.iter().for_each(tokio::task::JoinHandle::abort);
}

/// What is written to a file that is no longer there is lost with the last one who has it open.
#[cfg(unix)]
#[tokio::test]
async fn nothing_is_accepted_into_a_file_that_was_removed() {
    let sqlite = fixture::in_a_file("removed").await.unwrap();
    let inbox =
        Inbox::builder(sqlite.store.clone()).stored().store_timeout(Duration::ZERO).build().await.unwrap();
    let accept = async |key: &str| inbox.accept(envelope(key)).await;
    accept("before").await.unwrap();
    let (path, elsewhere) = (sqlite.path(), format!("{}-elsewhere", sqlite.path()));
    std::fs::rename(&path, &elsewhere).unwrap();
    let error = accept("lost").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("removed or replaced"), "{error}");
    std::fs::rename(&elsewhere, &path).unwrap();
    assert!(accept("lost").await.unwrap().is_new());
}

/// Where copies come of late they are recognised by a read, one by one too: nobody waits for the writer to be told that there is
/// nothing to do.
#[tokio::test]
async fn copies_that_follow_a_copy_need_no_writer() {
    let sqlite = fixture::in_a_file("copies").await.unwrap();
    let inbox = Inbox::builder(sqlite.store.clone())
        .max_batch(1)
        .on_raw("h", ["k"], async |_: Envelope, db: &mut SqliteConnection| db.execute(EFFECT).await.map(drop))
        .build()
        .await
        .unwrap();
    let outcome = async |key: &str| inbox.process(envelope(key)).await.unwrap().outcome("h").unwrap().name();
    assert_eq!((outcome("a").await, outcome("a").await), ("done", "duplicate"));
    let mut writer = sqlite.store.pool().acquire().await.unwrap();
    writer.execute("BEGIN IMMEDIATE").await.unwrap();
    assert_eq!((outcome("a").await, outcome("a").await), ("duplicate", "duplicate"));
    writer.execute("ROLLBACK").await.unwrap();
    assert_eq!(outcome("b").await, "done");
}
