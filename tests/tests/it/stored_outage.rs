//! A database that is away: no attempts are spent, no process floods the log, and the work goes on afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use oncebox::{Attempt, Inbox, PostgresStore, Retry};
use oncebox_servers::postgres::{PostgresOptions, PostgresServer};
use sqlx::PgConnection;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::every_store::{OrderPaid, envelope, judged};

/// Counts what an operator would read: everything from INFO upwards.
#[derive(Clone, Default)]
struct Lines(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target().starts_with("oncebox")
            && *event.metadata().level() <= tracing::Level::INFO
        {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_spends_no_attempts_and_is_told_quietly() {
    // The test that starts the common server knows whether there is one at all.
    if crate::postgres::as_owner("an_outage_spends_no_attempts").await.is_none() {
        return;
    }
    let lines = Lines::default();
    // Every test is a process of its own, and the subscriber is the process's.
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(lines.clone())).unwrap();
    let mut server = PostgresServer::start(PostgresOptions::default()).await.unwrap();
    let store = PostgresStore::connect(&server.url()).await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query("create table effect (name text not null)").execute(store.pool()).await.unwrap();

    let worst = Arc::new(AtomicU32::new(0));
    let seen = worst.clone();
    let handler = async move |order: OrderPaid,
                              Attempt(n): Attempt,
                              db: &mut PgConnection|
                -> Result<(), sqlx::Error> {
        seen.fetch_max(n, Ordering::SeqCst);
        // Slow enough that some are in flight when the server stops.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let insert = sqlx::query("insert into effect (name) values ($1)").bind(order.order_id);
        insert.execute(db).await.map(drop)
    };
    let retry = Retry::new().max_attempts(2).first_delay(Duration::ZERO).max_delay(Duration::ZERO);
    let inbox = Inbox::builder(store.clone()).stored().retry(retry).on("h", handler).build().await.unwrap();
    let messages = 2_000;
    for accept in inbox.accept_all((0..messages).map(|n| envelope(&format!("o-{n}")))).await {
        assert!(accept.unwrap().is_new());
    }
    let running = tokio::spawn({
        let inbox = inbox.clone();
        async move { inbox.run(std::future::pending()).await }
    });
    let effects = async || {
        let count = sqlx::query_scalar("select count(*) from effect").fetch_one(store.pool()).await;
        count.unwrap_or(0_i64)
    };
    while effects().await < 100 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let told = || lines.0.load(Ordering::SeqCst);
    let before = told();
    server.kill().unwrap();
    while inbox.health().await.is_ok() || told() == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Whoever was at work says that it is over, and then nobody says it again, apart from the timer. Who tells of every try
    // does so once a second.
    let mut told_in = Vec::new();
    while told_in.last().is_none_or(|lines| *lines > 1) {
        assert!(told_in.len() < 5, "lines in {} s: {told_in:?}", judged(60));
        let before = told();
        tokio::time::sleep(Duration::from_secs(judged(60) as u64)).await;
        told_in.push(told() - before);
    }

    server.restart().await.unwrap();
    while effects().await < messages {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    while inbox.health().await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    inbox.close().await;
    assert_eq!(running.await.unwrap().unwrap().failed, 0);
    assert_eq!(worst.load(Ordering::SeqCst), 1, "an outage is no attempt");
    let distinct: i64 =
        sqlx::query_scalar("select count(distinct name) from effect").fetch_one(store.pool()).await.unwrap();
    assert_eq!((effects().await, distinct), (messages, messages));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_begin_on_dead_connections_begin_all_the_same() {
    if crate::postgres::as_owner("workers_that_begin_on_dead_connections").await.is_none() {
        return;
    }
    let mut server = PostgresServer::start(PostgresOptions::default()).await.unwrap();
    let store = PostgresStore::connect(&server.url()).await.unwrap();
    store.migrate().await.unwrap();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let handler = async move |order: OrderPaid, _: &mut PgConnection| -> Result<(), sqlx::Error> {
        let _ = tell.send(order.order_id);
        Ok(())
    };
    let inbox = Inbox::builder(store).stored().on("h", handler).build().await.unwrap();
    assert!(inbox.accept(envelope("o-1")).await.unwrap().is_new());
    // The pool knows nothing of it.
    server.kill().unwrap();
    server.restart().await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut running = std::pin::pin!(inbox.run(async { drop(stopped.await) }));
    tokio::select! {
        told = told.recv() => assert_eq!(told.as_deref(), Some("o-1")),
        ended = &mut running => panic!("it ended without being asked to: {ended:?}"),
    }
    stop.send(()).unwrap();
    assert_eq!(running.await.unwrap().done, 1);
}
