//! Connections that are half open: nothing comes back, and nothing says that nothing will.
//!
//! No test here looks at the clock. Each has a limit that only a wait without end can reach.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use oncebox::store::{Log, Select, Store};
use oncebox::{Attempt, BoxError, Error, Inbox, InboxBuilder, LogStore, Once, Outcome, PostgresStore};
use oncebox_servers::proxy::FaultyProxy;
use oncebox_testing::Fixture;
use sqlx::PgConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::every_store::{OrderPaid, envelope, judged};
use crate::postgres::Postgres;

/// The longest that a test of this file waits: far more than it needs.
const TEST_LIMIT: Duration = Duration::from_secs(900);
/// On a busy machine a live connection may count as dead. It is replaced as any other.
const ANSWER: Duration = Duration::from_secs(1);
/// An answer is waited for as long as the server may take by its own limits, and `ANSWER` on top.
const HANDLER: Duration = Duration::from_secs(1);

/// A store behind a proxy, and the database itself.
struct BehindProxy {
    postgres: Postgres,
    proxy: FaultyProxy,
    store: PostgresStore,
}

/// Runs a test with a pool of this many connections behind a proxy.
async fn behind_proxy(test: &str, connections: u32, run: impl AsyncFnOnce(&BehindProxy)) {
    let Some(postgres) = crate::postgres::as_owner(test).await else { return };
    let options = postgres.store.pool().connect_options();
    let proxy = FaultyProxy::start(options.get_port()).await.unwrap();
    let options = PgConnectOptions::clone(&options).port(proxy.port());
    let pool = PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(Duration::from_secs(2))
        .test_before_acquire(false)
        .connect_with(options);
    let store = PostgresStore::new(pool.await.unwrap()).answer_timeout(ANSWER);
    let behind = BehindProxy { postgres, proxy, store };
    tokio::time::timeout(TEST_LIMIT, run(&behind)).await.expect("a caller waits without end");
}

impl BehindProxy {
    fn builder(&self) -> InboxBuilder<PostgresStore> {
        Inbox::builder(self.store.clone()).handler_timeout(HANDLER).store_timeout(TEST_LIMIT)
    }

    async fn inline(&self) -> Inbox<PostgresStore> {
        self.builder().on("h", write).build().await.unwrap()
    }

    /// Every connection of the pool can be had at once, and answers.
    async fn assert_pool_is_whole(&self) {
        let pool = self.store.pool();
        loop {
            let mut held = Vec::new();
            while held.len() < pool.options().get_max_connections() as usize {
                // A task may still be finding out that one is dead; a lost place would never come back.
                held.extend(pool.acquire().await.ok());
            }
            let mut silent = 0;
            for mut conn in held {
                let select = sqlx::query("select 1").execute(&mut *conn);
                if tokio::time::timeout(ANSWER, select).await.is_err() {
                    // It was idle when it fell silent, and was not used since.
                    drop(conn.detach());
                    silent += 1;
                }
            }
            if silent == 0 {
                return;
            }
        }
    }
}

async fn write(order: OrderPaid, Attempt(_): Attempt, db: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query("insert into effect (name) values ($1)").bind(order.order_id).execute(db).await.map(drop)
}

impl BehindProxy {
    /// Delivers until it is done, and known to be: only what has left no effect may have to be tried again.
    async fn deliver_known(&self, inbox: &Inbox<PostgresStore>, id: &str) {
        loop {
            let report = inbox.process(envelope(id)).await.unwrap();
            let effects = self.postgres.effects(id).await;
            match report.outcome("h") {
                Some(Outcome::Done) => return assert_eq!(effects, 1, "{id}"),
                // The machine was too busy for its handler.
                Some(Outcome::Retry { .. }) => assert_eq!(effects, 0, "{id}: {report:?}"),
                _ => panic!("{id}: {report:?}"),
            }
        }
    }
}

/// Delivers until it is settled, as a source does.
async fn deliver(inbox: &Inbox<PostgresStore>, id: &str) {
    loop {
        match inbox.process(envelope(id)).await.unwrap().outcome("h") {
            // A delivery before this one could not know that it was done.
            Some(Outcome::Done | Outcome::Duplicate) => return,
            Some(Outcome::Busy | Outcome::Retry { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_never_comes_is_found_out() {
    behind_proxy("a_commit_whose_answer_never_comes", 6, async |behind| {
        let inbox = behind.inline().await;
        for (round, callers) in [1, 1, 40].into_iter().enumerate() {
            let before = behind.proxy.silences();
            behind.proxy.silence_after_commits(2);
            let ids: Vec<String> = (0..callers).map(|n| format!("o-{round}-{n}")).collect();
            join_all(ids.iter().map(|id| behind.deliver_known(&inbox, id))).await;
            assert!(behind.proxy.silences() > before, "nothing was silent in round {round}");
        }
        behind.proxy.silence_after_commits(0);
        behind.assert_pool_is_whole().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closure_whose_commit_is_never_answered_is_fresh() {
    behind_proxy("a_closure_whose_commit_is_never_answered", 2, async |behind| {
        let inbox = behind.inline().await;
        let once = async |effects: u64| {
            loop {
                let body = async |db: &mut PgConnection| -> Result<u32, Error> {
                    let insert = sqlx::query("insert into effect (name) values ('once')").execute(db).await;
                    insert.map_err(|error| Error::unavailable("effect", error))?;
                    Ok(7)
                };
                match inbox.once("o", "a", body).await {
                    Ok(once) => return once,
                    // The machine was too busy for it: there is nothing that was not there before.
                    Err(error) => assert_eq!(behind.postgres.effects("once").await, effects, "{error:?}"),
                }
            }
        };
        behind.proxy.silence_after_commits(1);
        assert_eq!(once(0).await, Once::Fresh(7));
        assert_eq!((once(1).await, behind.proxy.silences()), (Once::Replayed(7), 1));
        assert_eq!(behind.postgres.effects("once").await, 1);
    })
    .await;
}

/// Wherever it happens: at the beginning, the claim, the handler's own statement, the commit, the way back into the pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_goes_nowhere_takes_effect_once() {
    behind_proxy("whatever_goes_nowhere_takes_effect_once", 3, async |behind| {
        let inbox = behind.inline().await;
        for requests in 0..judged(120) {
            let id = format!("o-{requests}");
            let silences = behind.proxy.silences();
            behind.proxy.silence_after_requests(u32::try_from(requests).unwrap());
            deliver(&inbox, &id).await;
            // With a message or two more it gets as far as that.
            for more in 0.. {
                if behind.proxy.silences() > silences {
                    break;
                }
                let id = format!("{id}-{more}");
                deliver(&inbox, &id).await;
                assert_eq!(behind.postgres.effects(&id).await, 1, "{id}");
            }
            assert_eq!(behind.postgres.effects(&id).await, 1, "{id}");
        }
        behind.assert_pool_is_whole().await;
    })
    .await;
}

/// All of a small pool at once, with work under way, and new connections that are no better.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_without_a_connection_that_answers_recovers() {
    behind_proxy("a_pool_without_a_connection_that_answers", 2, async |behind| {
        let inbox = behind.inline().await;
        for round in 0..3 {
            let ids: Vec<String> = (0..20).map(|n| format!("o-{round}-{n}")).collect();
            let calls: Vec<_> = ids
                .iter()
                .map(|id| {
                    let (inbox, id) = (inbox.clone(), id.clone());
                    tokio::spawn(async move { deliver(&inbox, &id).await })
                })
                .collect();
            behind.proxy.silence_newcomers(round);
            behind.proxy.silence_all();
            for call in calls {
                call.await.unwrap();
            }
            for id in &ids {
                assert_eq!(behind.postgres.effects(id).await, 1, "{id}");
            }
        }
        behind.proxy.silence_newcomers(0);
        behind.assert_pool_is_whole().await;
    })
    .await;
}

/// Connections that wait in the pool go silent: a caller that gets one closes it, and the pool is as large as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pool_keeps_its_size() {
    behind_proxy("the_pool_keeps_its_size", 4, async |behind| {
        behind.builder().stored().on("h", write).build().await.unwrap();
        for _ in 0..3 {
            behind.assert_pool_is_whole().await;
            while behind.store.pool().num_idle() < 4 {
                tokio::task::yield_now().await;
            }
            let before = behind.proxy.silences();
            behind.proxy.silence_all();
            while behind.proxy.silences() < before + 4 {
                tokio::task::yield_now().await;
            }
            let asked = join_all((0..4).map(|_| behind.store.check())).await;
            for error in asked.into_iter().map(Result::unwrap_err) {
                assert_eq!(PostgresStore::classify(&error), oncebox::store::Fault::Connection, "{error:?}");
            }
        }
        behind.assert_pool_is_whole().await;
    })
    .await;
}

/// A caller that goes away while the server is silent leaves nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_do_not_wait_leave_the_pool_whole() {
    behind_proxy("callers_that_do_not_wait", 2, async |behind| {
        let inbox = behind.inline().await;
        for requests in 0..judged(200) {
            let (id, silences) = (format!("o-{requests}"), behind.proxy.silences());
            behind.proxy.silence_after_requests(u32::try_from(requests % 6).unwrap());
            let silent = async {
                while behind.proxy.silences() == silences {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                () = deliver(&inbox, &id) => {}
                () = silent => {}
            }
            behind.proxy.silence_after_requests(u32::MAX);
            deliver(&inbox, &id).await;
            assert_eq!(behind.postgres.effects(&id).await, 1, "{id}");
        }
        behind.assert_pool_is_whole().await;
    })
    .await;
}

async fn is_through<S: LogStore>(inbox: &Inbox<S>) -> bool {
    let statuses = inbox.operators().handler_statuses().await.unwrap();
    statuses.iter().all(|status| (status.lag, status.tasks) == (0, 0))
}

async fn until_through<S: LogStore>(inbox: &Inbox<S>) {
    while !is_through(inbox).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// An accept whose answer never comes is found out, and so is a visit to a lane; no attempt is spent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_work_that_is_never_answered_takes_effect_once() {
    behind_proxy("stored_work_that_is_never_answered", 6, async |behind| {
        let effects = behind.postgres.clone();
        let handler = async move |order: OrderPaid, Attempt(n): Attempt, db: &mut PgConnection| {
            effects.effect(db, &format!("{} {n}", order.order_id)).await
        };
        let inbox = behind.builder().stored().lanes(2).on("h", handler).build().await.unwrap();
        let running = tokio::spawn({
            let inbox = inbox.clone();
            async move { inbox.run(std::future::pending()).await }
        });
        let acceptor = Inbox::builder(behind.postgres.store.clone()).stored().build().await.unwrap();
        for round in 0..judged(50) {
            let before = behind.proxy.silences();
            behind.proxy.silence_after_commits(1);
            let ids: Vec<String> = (0..40).map(|n| format!("o-{round}-{n}")).collect();
            for accept in inbox.accept_all(ids.iter().map(|id| envelope(id))).await {
                accept.unwrap();
            }
            while behind.proxy.silences() == before {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            until_through(&acceptor).await;
            for id in ids {
                assert_eq!(behind.postgres.effects(&format!("{id} 1")).await, 1, "{id}");
            }
        }
        inbox.close().await;
        let report = running.await.unwrap().unwrap();
        assert_eq!((report.failed, report.dead), (0, 0));
    })
    .await;
}

/// Everything that a stored inbox has goes silent again and again, among it what it accepts by, looks, beats and listens with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_loses_every_connection_goes_on() {
    behind_proxy("a_worker_that_loses_every_connection", 6, async |behind| {
        let begun = Arc::new(Mutex::new(HashMap::<String, u32>::new()));
        let counted = begun.clone();
        let body = async move |order: OrderPaid| -> Result<(), BoxError> {
            *counted.lock().unwrap().entry(order.order_id).or_default() += 1;
            Ok(())
        };
        let inbox = behind
            .builder()
            .stored()
            .lanes(2)
            .lease(Duration::from_secs(5))
            .on("h", write)
            .on_with("d", body, |options| options.detached())
            .build()
            .await
            .unwrap();
        let running = tokio::spawn({
            let inbox = inbox.clone();
            async move { inbox.run(std::future::pending()).await }
        });
        let direct = Inbox::builder(behind.postgres.store.clone()).stored().build().await.unwrap();
        // A unit that cannot begin gets an error. This is about one that has begun.
        inbox.accept(envelope("first")).await.unwrap();
        until_through(&direct).await;
        let rounds = judged(50);
        for round in 0..rounds {
            let accepting = tokio::spawn({
                let inbox = inbox.clone();
                async move {
                    let envelopes = (0..40).map(move |n| envelope(&format!("o-{round}-{n}")));
                    inbox.accept_all(envelopes).await
                }
            });
            for _ in 0..20 * round {
                tokio::task::yield_now().await;
            }
            behind.proxy.silence_all();
            for accept in accepting.await.unwrap() {
                accept.unwrap();
            }
            until_through(&direct).await;
        }
        inbox.close().await;
        let report = running.await.unwrap().unwrap();
        assert_eq!((report.dead, report.lease_lost), (0, 0));
        assert_eq!(direct.operators().dead_letters(Select::all(), 10).await.unwrap(), []);
        for id in (0..rounds).flat_map(|round| (0..40).map(move |n| format!("o-{round}-{n}"))) {
            assert_eq!(behind.postgres.effects(&id).await, 1, "{id}");
            assert_eq!(begun.lock().unwrap().get(&id), Some(&1), "{id}");
        }
        behind.assert_pool_is_whole().await;
    })
    .await;
}

/// A listener that nothing can reach is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_hears_nothing_any_more_is_replaced() {
    behind_proxy("a_listener_that_hears_nothing", 2, async |behind| {
        let heard = Arc::new(AtomicU32::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let listening = tokio::spawn({
            let (store, heard, stop) = (behind.store.clone(), heard.clone(), stop.clone());
            async move {
                while !stop.load(Ordering::SeqCst) {
                    let listen = store.listen(|| {
                        heard.fetch_add(1, Ordering::SeqCst);
                    });
                    let _ = listen.await;
                }
            }
        });
        let until_heard = async || {
            let before = heard.load(Ordering::SeqCst);
            while heard.load(Ordering::SeqCst) == before {
                behind.postgres.store.announce().await.unwrap();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        for _ in 0..3 {
            until_heard().await;
            let before = behind.proxy.silences();
            behind.proxy.silence_all();
            while behind.proxy.silences() == before {
                tokio::task::yield_now().await;
            }
        }
        until_heard().await;
        stop.store(true, Ordering::SeqCst);
        listening.abort();
    })
    .await;
}
