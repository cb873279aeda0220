//! What only PostgreSQL's log has: announcements, and a view with JSON in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use oncebox_core::store::{Action, DeadLetters, Log, Select};
use oncebox_core::{Accept, Envelope, Failure, Inbox};
use oncebox_postgres::PostgresStore;
use oncebox_testing::operator;
use sqlx::PgConnection;
use sqlx::postgres::PgPoolOptions;

use crate::fixture;

const KINDS: [&str; 1] = ["order.paid"];

async fn write_effect(envelope: Envelope, conn: &mut PgConnection) -> Result<(), Failure> {
    if envelope.body() == b"bad" {
        return Err(Failure::permanent("bad body"));
    }
    let name = envelope.key().map(ToString::to_string).unwrap_or_default();
    sqlx::query("insert into effect (name) values ($1)").bind(name).execute(conn).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_accepted_is_announced_to_those_who_listen() {
    let test = "what_is_accepted_is_announced_to_those_who_listen";
    let Some(postgres) = fixture::as_owner(test).await else { return };
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let other = PostgresStore::connect(&postgres.database.url()).await.unwrap();
    let listening = tokio::spawn(async move {
        let heard = move || {
            let _ = tell.send(());
        };
        other.listen(heard).await
    });
    let silent = Inbox::builder(postgres.store.clone()).stored().notify(false);
    let silent = silent.on_raw("ledger", KINDS, write_effect).build().await.unwrap();
    let loud = Inbox::builder(postgres.store.clone()).stored().notify(true);
    let loud = loud.on_raw("ledger", KINDS, write_effect).build().await.unwrap();

    // Until it listens nobody can be heard.
    let listens = "select count(*) from pg_stat_activity
        where datname = current_database() and state = 'idle' and query like 'LISTEN %'";
    while sqlx::query_scalar::<_, i64>(listens).fetch_one(postgres.store.pool()).await.unwrap() == 0 {
        assert!(!listening.is_finished(), "it does not listen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let _ = silent.accept(Envelope::new("order.paid", "{}").with_key("silent")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(told.try_recv().is_err(), "nobody asked for announcements");
    let _ = loud.accept(Envelope::new("order.paid", "{}").with_key("loud")).await.unwrap();
    told.recv().await.unwrap();
    listening.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_view_has_the_shape_of_an_inbox_table() {
    let Some(postgres) = fixture::as_owner("the_view_has_the_shape_of_an_inbox_table").await else { return };
    let inbox = Inbox::builder(postgres.store.clone()).stored().lanes(1);
    let inbox = inbox.on_raw("ledger", KINDS, write_effect).build().await.unwrap();
    for (key, body) in [("json", "{\"cents\": 42}"), ("text", "no json"), ("dies", "bad")] {
        let _ = inbox.accept(Envelope::new("order.paid", body).with_key(key)).await.unwrap();
    }
    let _ = inbox.accept(Envelope::new("other", "{}").with_key([0xff, 1].as_slice())).await.unwrap();
    type Row = (String, String, Option<i32>, bool, bool, Option<String>);
    let rows = async || -> Vec<Row> {
        sqlx::query_as(
            "select id, type, (content ->> 'cents')::int4, received_on_utc <= now(), processed_on_utc is not null, error
             from oncebox.inbox_message order by lane, pos",
        )
        .fetch_all(postgres.store.pool())
        .await
        .unwrap()
    };
    let row = |id: &str, kind: &str, cents, processed, error: Option<&str>| -> Row {
        (id.to_owned(), kind.to_owned(), cents, true, processed, error.map(str::to_owned))
    };
    assert_eq!(rows().await[0], row("json", "order.paid", Some(42), false, None));
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead), (2, 1));
    assert_eq!(
        rows().await,
        [
            row("json", "order.paid", Some(42), true, None),
            row("text", "order.paid", None, true, None),
            row("dies", "order.paid", None, false, Some("bad body")),
            row("0xff01", "other", None, false, None),
        ]
    );
    assert_eq!(inbox.operators().discard_dead(Select::all(), &operator("ann")).await.unwrap(), 1);
    assert_eq!(rows().await[2], row("dies", "order.paid", None, true, None));
}

/// Those who accept keep a connection from one transaction to the next, but not from others who wait for one, and not for
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_accepts_without_end_leaves_connections_to_others() {
    const CONNECTIONS: u32 = 4;
    const ACCEPTING: u64 = 32;
    let test = "whoever_accepts_without_end_leaves_connections_to_others";
    let Some(postgres) = fixture::as_owner(test).await else { return };
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(Duration::from_secs(300));
    let pool = pool.connect(&postgres.database.url()).await.unwrap();
    let take_all = async || {
        let mut all = Vec::new();
        for _ in 0..CONNECTIONS {
            all.push(pool.acquire().await.unwrap());
        }
        all
    };
    // No time is lost with connecting later.
    drop(take_all().await);
    let inbox = Inbox::builder(PostgresStore::new(pool.clone())).stored().build().await.unwrap();
    let (accepted, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let accepting: Vec<_> = (0..ACCEPTING)
        .map(|who| {
            let (inbox, accepted, is_over) = (inbox.clone(), accepted.clone(), is_over.clone());
            tokio::spawn(async move {
                for n in 0_u64.. {
                    let envelope = Envelope::new("order.paid", "{}").with_key(format!("{who}-{n}"));
                    let _ = inbox.accept(envelope).await.unwrap();
                    accepted.fetch_add(1, Ordering::SeqCst);
                    if is_over.load(Ordering::SeqCst) {
                        return;
                    }
                }
            })
        })
        .collect();
    // The accepting does not end before others have had all connections, again and again.
    for _ in 0..20 {
        let before = accepted.load(Ordering::SeqCst);
        while accepted.load(Ordering::SeqCst) < before + ACCEPTING {
            tokio::task::yield_now().await;
        }
        drop(take_all().await);
    }
    is_over.store(true, Ordering::SeqCst);
    for one in accepting {
        one.await.unwrap();
    }
    while pool.num_idle() < pool.size() as usize {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// While an operator waits for the lanes of the letters that he means, another one deals with them: he goes on with the next ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_that_another_operator_took_do_not_end_an_action() {
    let test = "letters_that_another_operator_took_do_not_end_an_action";
    let Some(postgres) = fixture::as_owner(test).await else { return };
    let store = &postgres.store;
    let inbox = Inbox::builder(store.clone()).stored().lanes(2);
    let inbox = inbox.on_raw("ledger", KINDS, write_effect).build().await.unwrap();
    let mut in_lane_0 = 0;
    for n in 0..10 {
        let envelope = Envelope::new("order.paid", "bad").with_key(n);
        if let Accept::Accepted(oncebox_core::store::Place { lane: 0, .. }) =
            inbox.accept(envelope).await.unwrap()
        {
            in_lane_0 += 1;
        }
    }
    assert_eq!(inbox.work_until_idle().await.unwrap().dead, 10);
    assert!((1..10).contains(&in_lane_0));
    let limit = u32::try_from(in_lane_0).unwrap();

    let mut other = store.pool().begin().await.unwrap();
    sqlx::query("select from oncebox.lane where handler > 0 and lane = 0 for update")
        .execute(&mut *other)
        .await
        .unwrap();
    let acting = tokio::spawn({
        let store = store.clone();
        async move { store.act(&Select::all(), &Action::Retry, "ann", None, limit).await }
    });
    let waiting = "select count(*) from pg_stat_activity
        where wait_event_type = 'Lock' and datname = current_database()";
    while sqlx::query_scalar::<_, i64>(waiting).fetch_one(store.pool()).await.unwrap() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    sqlx::query("delete from oncebox.dead where lane = 0").execute(&mut *other).await.unwrap();
    other.commit().await.unwrap();

    let step = acting.await.unwrap().unwrap();
    assert_eq!((step.letters, step.next.map(|(_, place)| place.lane)), (0, Some(0)));
    assert_eq!(inbox.operators().retry_dead(Select::all(), &operator("ann")).await.unwrap(), 10 - in_lane_0);
    let rest = store.act(&Select::all(), &Action::Retry, "ann", step.next, limit).await.unwrap();
    assert_eq!((rest.letters, rest.next), (0, None));
}
