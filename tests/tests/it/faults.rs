//! PostgreSQL under faults: answers to commits that are lost, a server that is killed and comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use oncebox::{Inbox, Outcome, PostgresStore};
use oncebox_servers::postgres::{PostgresOptions, PostgresServer};
use oncebox_servers::proxy::FaultyProxy;
use oncebox_testing::Fixture;
use sqlx::PgConnection;

use crate::every_store::{OrderPaid, envelope, judged};

async fn inbox(store: PostgresStore, patience: Duration) -> Inbox<PostgresStore> {
    let handler = async |order: OrderPaid, db: &mut PgConnection| -> Result<(), sqlx::Error> {
        sqlx::query("insert into effect (name) values ($1)").bind(order.order_id).execute(db).await.map(drop)
    };
    Inbox::builder(store).store_timeout(patience).on("h", handler).build().await.unwrap()
}

/// The connection is cut when the server has committed and before it can say so: by ones and in whole batches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_cut_off_is_found_out() {
    let test = "a_commit_whose_answer_is_cut_off_is_found_out";
    let Some(postgres) = crate::postgres::as_owner(test).await else { return };
    let url = postgres.database.url();
    let port = postgres.store.pool().connect_options().get_port();
    let proxy = FaultyProxy::start(port).await.unwrap();
    let store = PostgresStore::connect(&url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port())))
        .await
        .unwrap();
    // Longer than it takes to find out about a commit, on any machine.
    let inbox = inbox(store, Duration::from_secs(600)).await;
    for (round, callers) in [1, 1, 1, 40, 40, 100].into_iter().enumerate() {
        let before = proxy.cuts();
        proxy.cut_after_commits(2);
        let calls = (0..callers).map(|n| {
            let inbox = inbox.clone();
            tokio::spawn(async move { inbox.process(envelope(&format!("o-{round}-{n}"))).await })
        });
        for (n, call) in join_all(calls).await.into_iter().enumerate() {
            let report = call.unwrap().unwrap();
            assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{round} {n}: {report:?}");
            assert_eq!(postgres.effects(&format!("o-{round}-{n}")).await, 1, "{round} {n}");
        }
        assert!(proxy.cuts() > before, "nothing was cut in round {round}");
    }
}

/// The whole server is killed with work in flight, again and again; the source delivers until it gets a response.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_under_load_loses_nothing_and_doubles_nothing() {
    let test = "a_server_that_is_killed_under_load_loses_nothing_and_doubles_nothing";
    // The test that starts the common server knows whether there is one at all.
    if crate::postgres::as_owner(test).await.is_none() {
        return;
    }
    // Every test is a process of its own, and the recorder is the process's.
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    let mut server = PostgresServer::start(PostgresOptions::default()).await.unwrap();
    let store = PostgresStore::connect(&server.url()).await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query("create table effect (name text not null)").execute(store.pool()).await.unwrap();
    let inbox = inbox(store.clone(), Duration::from_secs(5)).await;

    let stop = Arc::new(AtomicBool::new(false));
    let settled = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..32)
        .map(|caller| {
            let (inbox, stop, settled) = (inbox.clone(), stop.clone(), settled.clone());
            tokio::spawn(async move {
                let mut delivered = 0;
                while !stop.load(Ordering::SeqCst) {
                    let id = format!("o-{caller}-{delivered}");
                    // Until it is acknowledged; and every third message comes once more after that.
                    let mut acknowledgements = if delivered % 3 == 0 { 2 } else { 1 };
                    while acknowledgements > 0 {
                        match inbox.process(envelope(&id)).await {
                            Ok(report) if report.settlement() == oncebox::Settlement::Ack => {
                                acknowledgements -= 1;
                            }
                            _not_now => tokio::time::sleep(Duration::from_millis(20)).await,
                        }
                    }
                    delivered += 1;
                    settled.fetch_add(1, Ordering::SeqCst);
                }
                delivered
            })
        })
        .collect();
    // Until the answer to a commit was lost at least once, which is what this is about.
    for kill in 0.. {
        if kill >= judged(20) && counted(&snapshotter, "oncebox_commits_unknown_total") > 0 {
            break;
        }
        assert!(kill < 100, "no commit was ever cut");
        let before = settled.load(Ordering::SeqCst);
        while settled.load(Ordering::SeqCst) < before + 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.kill().unwrap();
        server.restart().await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    let mut distinct = 0;
    for caller in callers {
        distinct += caller.await.unwrap();
    }
    let count = "select count(*), count(distinct name) from effect";
    let (effects, names): (i64, i64) = sqlx::query_as(count).fetch_one(store.pool()).await.unwrap();
    assert_eq!((effects, names), (distinct, distinct), "lost or doubled");
}

/// The sum of a counter over all its labels since the last look, and all looks before.
fn counted(snapshotter: &Snapshotter, name: &str) -> u64 {
    static BEFORE: AtomicU64 = AtomicU64::new(0);
    let new: u64 = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .filter(|(key, ..)| key.key().name() == name)
        .map(|(.., value)| if let DebugValue::Counter(count) = value { count } else { 0 })
        .sum();
    BEFORE.fetch_add(new, Ordering::SeqCst) + new
}
