//! Copies of one slow message, and messages that have nothing to do with it: they do not wait for it, and its copies need next to
//! no connections.
//!
//! On PostgreSQL only: SQLite has one writer, and a handler holds it from its first write to its end, so that a slow
//! handler keeps everybody waiting, however many copies there are of its message.

use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use oncebox::{BoxError, InFlight, Inbox, PostgresStore};
use oncebox_testing::Fixture;
use sqlx::{Connection, PgConnection};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::every_store::{OrderPaid, envelope, judged};
use crate::postgres::Postgres;

/// In each of two inboxes.
const COPIES: usize = 64;
/// How many work on other keys, one message after the other.
const CALLERS: usize = 16;
/// Longer than any test takes, on any machine: it is the test that lets the slow message end.
const LONG: Duration = Duration::from_secs(600);

/// Two inboxes with the same handler, as in two processes: each has its own pool.
struct Two {
    postgres: Postgres,
    /// Where the slow message runs.
    one: Inbox<PostgresStore>,
    /// Where its copies wait for it.
    other: Inbox<PostgresStore>,
    /// Slow messages that have begun, each with its server process, and the one that may end.
    begun: mpsc::UnboundedReceiver<(String, i32)>,
    let_go: watch::Sender<String>,
    watching: PgConnection,
}

impl Two {
    async fn new(postgres: Postgres) -> Self {
        let (begins, begun) = mpsc::unbounded_channel();
        let (let_go, may_end) = watch::channel(String::new());
        let inbox = async |store: PostgresStore| {
            let (effects, begins, may_end) = (postgres.clone(), begins.clone(), may_end.clone());
            let handler = async move |order: OrderPaid, conn: &mut PgConnection| -> Result<(), BoxError> {
                effects.effect(conn, &order.order_id).await?;
                if order.order_id.starts_with("slow") {
                    let backend = sqlx::query_scalar("select pg_backend_pid()").fetch_one(conn).await?;
                    begins.send((order.order_id.clone(), backend))?;
                    may_end.clone().wait_for(|id| *id == order.order_id).await?;
                }
                Ok(())
            };
            let inbox = Inbox::builder(store).handler_timeout(LONG).in_flight(InFlight::Wait { max: LONG });
            inbox.on("h", handler).build().await.unwrap()
        };
        let url = postgres.database.url();
        let own_pool = PostgresStore::connect(&url).await.unwrap();
        let (one, other) = (inbox(postgres.store.clone()).await, inbox(own_pool).await);
        let watching = PgConnection::connect(&url).await.unwrap();
        Self { postgres, one, other, begun, let_go, watching }
    }

    /// How many connections wait for the transaction of another one.
    async fn waiting_for(&mut self, backend: i32) -> i64 {
        let waiting = "select count(*) from pg_stat_activity
            where datname = current_database() and $1 = any(pg_blocking_pids(pid))";
        sqlx::query_scalar(waiting).bind(backend).fetch_one(&mut self.watching).await.unwrap()
    }

    /// Lets an inbox work on other keys beside a slow message and its copies, which are still there afterwards.
    async fn work_beside_copies(&mut self, inbox: &Inbox<PostgresStore>, slow: &str) {
        let first = spawn_copies(&self.one, slow, 1).await;
        let (begun, backend) = self.begun.recv().await.unwrap();
        assert_eq!(begun, slow);
        let copies = spawn_copies(&self.one, slow, COPIES - 1).await;
        let copies_elsewhere = spawn_copies(&self.other, slow, COPIES).await;
        // One copy of the other inbox has got to the database, and waits there.
        while self.waiting_for(backend).await == 0 {
            assert!(!copies_elsewhere.is_finished(), "the copies did not wait for the slow message");
        }

        let working = tokio::spawn(work(inbox.clone(), slow.to_owned()));
        while !working.is_finished() {
            // The others wait outside of it.
            assert!(self.waiting_for(backend).await <= 1, "copies keep more than one connection");
        }
        working.await.unwrap();
        assert!(!first.is_finished(), "others had to wait for the slow message");
        self.let_go.send_replace(slow.to_owned());
        assert_eq!(first.await.unwrap(), ["done"]);
        let outcomes = [copies.await.unwrap(), copies_elsewhere.await.unwrap()].concat();
        assert_eq!(outcomes, ["duplicate"; 2 * COPIES - 1]);
        assert!(self.begun.is_empty(), "a copy ran too");
        assert_eq!(self.postgres.effects(slow).await, 1);
    }
}

/// Sends copies of one message; each has got to the gate, or to the database, when this returns.
async fn spawn_copies(inbox: &Inbox<PostgresStore>, id: &str, count: usize) -> JoinHandle<Vec<&'static str>> {
    let copies = (0..count).map(|_| {
        let (inbox, envelope) = (inbox.clone(), envelope(id));
        async move { inbox.process(envelope).await.unwrap().outcome("h").unwrap().name() }
    });
    let mut copies = Box::pin(join_all(copies));
    std::future::poll_fn(|cx| {
        assert!(copies.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    tokio::spawn(copies)
}

/// Works on other keys.
async fn work(inbox: Inbox<PostgresStore>, round: String) {
    let callers = (0..CALLERS).map(|caller| {
        let (inbox, round) = (inbox.clone(), round.clone());
        tokio::spawn(async move {
            for n in 0..judged(500) {
                let report = inbox.process(envelope(&format!("other-{round}-{caller}-{n}"))).await.unwrap();
                assert_eq!(report.outcome("h").unwrap().name(), "done", "{round}, {caller}, {n}");
            }
        })
    });
    for caller in join_all(callers).await {
        caller.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_slow_message_keep_no_other_key_waiting() {
    let test = "copies_of_a_slow_message_keep_no_other_key_waiting";
    let Some(postgres) = crate::postgres::as_owner(test).await else { return };
    let mut two = Two::new(postgres).await;
    let inboxes = [("where_it_runs", two.one.clone()), ("where_copies_wait", two.other.clone())];
    for (name, inbox) in inboxes {
        for round in 0..3 {
            two.work_beside_copies(&inbox, &format!("slow-{name}-{round}")).await;
        }
    }
}
