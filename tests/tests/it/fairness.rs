//! Copies of one slow message, and the others who have nothing to do with it: they keep their rate.
//!
//! On PostgreSQL only: SQLite has one writer, and a handler holds it from its first write to its end, so that a slow
//! handler keeps everybody waiting, however many copies there are of its message.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use oncebox::{BoxError, InFlight, Inbox, PostgresStore};
use oncebox_testing::Fixture;
use sqlx::PgConnection;
use tokio::sync::{mpsc, watch};

use crate::every_store::{OrderPaid, envelope, judged};
use crate::postgres::Postgres;

/// In each of two inboxes.
const COPIES: usize = 64;
/// How many work on other keys, one message after the other.
const CALLERS: usize = 16;
/// Of each sort: alone, and beside the slow message.
const ROUNDS: usize = 5;
/// What must be left of the rate.
const LEFT: f64 = 0.8;
/// The machine may be busy with something else; then one comparison says little. Copies that really stand in the way
/// do so every time.
const COMPARISONS: usize = 3;
/// Longer than any round: it is the test that ends the waiting, unless others wait for the slow message.
const LONG: Duration = Duration::from_secs(120);

/// Two inboxes with the same handler, as in two processes: each has its own pool.
struct Two {
    postgres: Postgres,
    /// Where the slow message runs.
    one: Inbox<PostgresStore>,
    /// Where its copies wait for it.
    other: Inbox<PostgresStore>,
    /// Slow messages that have begun, and the one that may end.
    begun: mpsc::UnboundedReceiver<String>,
    let_go: watch::Sender<String>,
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
                    begins.send(order.order_id.clone())?;
                    let mut may_end = may_end.clone();
                    let _ = tokio::time::timeout(LONG, may_end.wait_for(|id| *id == order.order_id)).await;
                }
                Ok(())
            };
            let inbox =
                Inbox::builder(store).handler_timeout(2 * LONG).in_flight(InFlight::Wait { max: 2 * LONG });
            inbox.on("h", handler).build().await.unwrap()
        };
        let own_pool = PostgresStore::connect(&postgres.database.url()).await.unwrap();
        let (one, other) = (inbox(postgres.store.clone()).await, inbox(own_pool).await);
        Self { postgres, one, other, begun, let_go }
    }

    /// The rate at which an inbox works on other keys, beside the copies of a slow message.
    async fn rate_beside_copies(&mut self, inbox: &Inbox<PostgresStore>, slow: &str) -> f64 {
        let first = spawn_copies(&self.one, slow, 1).await;
        assert_eq!(self.begun.recv().await.unwrap(), slow);
        let copies = spawn_copies(&self.one, slow, COPIES - 1).await;
        let copies_elsewhere = spawn_copies(&self.other, slow, COPIES).await;

        let rate = rate(inbox, slow).await;
        assert!(!first.is_finished(), "others had to wait for the slow message");
        self.let_go.send_replace(slow.to_owned());
        assert_eq!(first.await.unwrap(), ["done"]);
        let outcomes = [copies.await.unwrap(), copies_elsewhere.await.unwrap()].concat();
        assert_eq!(outcomes, ["duplicate"; 2 * COPIES - 1]);
        assert!(self.begun.is_empty(), "a copy ran too");
        assert_eq!(self.postgres.effects(slow).await, 1);
        rate
    }

    /// The part of an inbox's rate that copies of slow messages leave: the median of rounds, each compared with the one
    /// just before it, since the machine is faster at one time than at another.
    async fn left_beside_copies(&mut self, inbox: &Inbox<PostgresStore>, name: &str) -> f64 {
        let mut left = Vec::new();
        for round in 0..ROUNDS {
            let alone = rate(inbox, &format!("alone-{name}-{round}")).await;
            let beside = self.rate_beside_copies(inbox, &format!("slow-{name}-{round}")).await;
            left.push(beside / alone);
        }
        left.sort_by(f64::total_cmp);
        left[ROUNDS / 2]
    }
}

/// How long a round takes, and with it a slow message: five seconds with all that is judged. A transaction that turns out to be
/// slow keeps its slot for a quarter of a second before others get another one; that must be a small part of it.
fn round_time() -> Duration {
    Duration::from_millis(judged(5_000).max(1_000) as u64)
}

/// Sends copies of one message; each has got to the gate, or to the database, when this returns.
async fn spawn_copies(
    inbox: &Inbox<PostgresStore>,
    id: &str,
    count: usize,
) -> tokio::task::JoinHandle<Vec<&'static str>> {
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

/// Works on other keys for a round; how many per second.
async fn rate(inbox: &Inbox<PostgresStore>, round: &str) -> f64 {
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let callers = (0..CALLERS).map(|_| {
        let (inbox, next, round) = (inbox.clone(), next.clone(), round.to_owned());
        tokio::spawn(async move {
            while started.elapsed() < round_time() {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let report = inbox.process(envelope(&format!("other-{round}-{n}"))).await.unwrap();
                assert_eq!(report.outcome("h").unwrap().name(), "done", "{round}, {n}");
            }
        })
    });
    for caller in join_all(callers).await {
        caller.unwrap();
    }
    next.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stdout, reason = "the part that is left is worth knowing even if it is enough")]
async fn copies_of_a_slow_message_leave_other_keys_their_rate() {
    let test = "copies_of_a_slow_message_leave_other_keys_their_rate";
    let Some(postgres) = crate::postgres::as_owner(test).await else { return };
    let mut two = Two::new(postgres).await;
    let inboxes = [("where_it_runs", two.one.clone()), ("where_copies_wait", two.other.clone())];
    for (name, inbox) in inboxes {
        // Connections and caches are made before anything is measured.
        rate(&inbox, &format!("first-{name}")).await;
        let mut left = Vec::new();
        while left.last().is_none_or(|left| *left < LEFT) {
            assert!(left.len() < COMPARISONS, "{name}: this part of the rate is left: {left:.2?}");
            left.push(two.left_beside_copies(&inbox, &format!("{name}-{}", left.len())).await);
        }
        println!("{name}: this part of the rate is left: {left:.2?}");
    }
}
