//! The maximum number of transactions in flight, and handlers that want the same rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use oncebox::{BoxError, Envelope, InFlight, Inbox, InboxStore, Message, Once, PostgresStore, Reply};
use oncebox_testing::Fixture;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Executor, PgConnection, PgPool};
use tokio::sync::{Barrier, Notify, Semaphore, mpsc};

use crate::every_store::{Conn, OrderPaid, envelope, on_every_store, order};
use crate::postgres::Postgres;

on_every_store!(
    every_inline_transaction_counts_towards_the_maximum,
    a_caller_that_goes_away_gives_its_permit_back,
);

/// How many bodies run, and the largest number that ever did.
#[derive(Clone, Default)]
struct Gauge(Arc<GaugeCounts>);

#[derive(Default)]
struct GaugeCounts {
    now: AtomicUsize,
    most: AtomicUsize,
    all: AtomicUsize,
}

struct RunningCall<'g>(&'g GaugeCounts);

impl Gauge {
    fn enter(&self) -> RunningCall<'_> {
        self.0.all.fetch_add(1, Ordering::SeqCst);
        let now = self.0.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(now, Ordering::SeqCst);
        RunningCall(&self.0)
    }

    fn most(&self) -> usize {
        self.0.most.load(Ordering::SeqCst)
    }

    fn all(&self) -> usize {
        self.0.all.load(Ordering::SeqCst)
    }
}

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn every_inline_transaction_counts_towards_the_maximum<F: Fixture>(fixture: F) {
    const MAX: usize = 2;
    let gauge = Gauge::default();
    let body = {
        let (effects, gauge) = (fixture.clone(), gauge.clone());
        async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<Reply<String>, BoxError> {
            let _running = gauge.enter();
            for _ in 0..3 {
                effects.effect(conn, &order.order_id).await?;
            }
            Ok(Reply(order.order_id))
        }
    };
    let inbox = Inbox::builder(fixture.store())
        .on("batched", body.clone())
        .on_with("isolated", body.clone(), |options| options.isolated())
        .on_with("without-dedup", body, |options| options.without_dedup())
        .max_in_flight(MAX)
        .build()
        .await
        .unwrap();
    let calls = (0..24).map(|n| {
        let (inbox, gauge, effects) = (inbox.clone(), gauge.clone(), fixture.clone());
        tokio::spawn(async move {
            let id = format!("o-{n}");
            match n % 3 {
                0 => drop(inbox.process(envelope(&id)).await.unwrap()),
                1 => drop(inbox.call::<String, _>("isolated", &order(&id)).await.unwrap()),
                _ => {
                    let once: Result<Once<()>, oncebox::Error> = inbox
                        .once("once", id.as_str(), async |conn: &mut Conn<F>| {
                            let _running = gauge.enter();
                            for _ in 0..3 {
                                effects.effect(conn, &id).await.unwrap();
                            }
                            Ok(())
                        })
                        .await;
                    once.unwrap();
                }
            }
        })
    });
    for call in join_all(calls).await {
        call.unwrap();
    }
    assert_eq!(gauge.all(), 8 * 3 + 8 + 8);
    assert!(gauge.most() <= MAX, "{} transactions at a time", gauge.most());
}

async fn a_caller_that_goes_away_gives_its_permit_back<F: Fixture>(fixture: F) {
    let (begins, mut begun) = mpsc::unbounded_channel();
    let handler = async move |order: OrderPaid, _: &mut Conn<F>| -> Result<(), BoxError> {
        if order.order_id == "hangs" {
            begins.send(())?;
            std::future::pending::<()>().await;
        }
        Ok(())
    };
    let inbox = Inbox::builder(fixture.store())
        .on_with("h", handler, |options| options.isolated())
        .max_in_flight(1)
        .build()
        .await
        .unwrap();
    let call = |id: &'static str| {
        let inbox = inbox.clone();
        tokio::spawn(async move { inbox.process(envelope(id)).await.unwrap().outcome("h").unwrap().name() })
    };
    let hangs = call("hangs");
    begun.recv().await.unwrap();
    let waits = call("waits");
    let next = call("next");
    tokio::task::yield_now().await;
    waits.abort();
    assert!(!next.is_finished());
    hangs.abort();
    assert_eq!(next.await.unwrap(), "done");
}

async fn pool(postgres: &Postgres, connections: u32) -> PgPool {
    let pool = PgPoolOptions::new().max_connections(connections).acquire_timeout(Duration::from_secs(5));
    pool.connect(&postgres.database.url()).await.unwrap()
}

/// Handlers that are held keep no connection from upkeep and look-ups.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_left_for_upkeep() {
    let Some(postgres) = crate::postgres::as_owner("connections_are_left_for_upkeep").await else { return };
    let store = PostgresStore::new(pool(&postgres, 5).await);
    let gauge = Gauge::default();
    let (begins, mut begun) = mpsc::unbounded_channel();
    let let_go = Arc::new(Semaphore::new(0));
    let handler = {
        let (gauge, let_go) = (gauge.clone(), let_go.clone());
        async move |_: OrderPaid, _: &mut PgConnection| -> Result<(), BoxError> {
            let _running = gauge.enter();
            begins.send(())?;
            let_go.acquire().await?.forget();
            Ok(())
        }
    };
    let inbox =
        Inbox::builder(store).on_with("h", handler, |options| options.isolated()).build().await.unwrap();
    let calls: Vec<_> = (0..10)
        .map(|n| {
            let inbox = inbox.clone();
            tokio::spawn(async move { inbox.process(envelope(&format!("o-{n}"))).await.unwrap() })
        })
        .collect();
    for _ in 0..4 {
        begun.recv().await.unwrap();
    }
    let upkeep = async || {
        for _ in 0..20 {
            inbox.health().await.unwrap();
            inbox.sweep().await.unwrap();
            assert!(inbox.marker("h", OrderPaid::KIND, "o-100").await.unwrap().is_none());
        }
    };
    tokio::join!(upkeep(), upkeep(), upkeep());
    let_go.add_permits(10);
    for call in calls {
        assert_eq!(call.await.unwrap().outcome("h").unwrap().name(), "done");
    }
    assert_eq!(gauge.most(), 4);
}

/// Two handlers of one message that update the same two of some rows, in opposite order.
struct Crossing {
    postgres: Postgres,
    gauge: Gauge,
}

impl Crossing {
    async fn new(test: &str, rows: usize) -> Option<Self> {
        let postgres = crate::postgres::as_owner(test).await?;
        let tables = format!(
            "create table account (id int primary key, cents int not null);
             insert into account select n, 0 from generate_series(0, {}) n;
             create table touched (handler text, id text, transaction_id text)",
            rows - 1
        );
        postgres.store.pool().execute(sqlx::raw_sql(sqlx::AssertSqlSafe(tables))).await.unwrap();
        Some(Self { postgres, gauge: Gauge::default() })
    }

    /// An inbox on a pool of its own, as in a process of its own.
    async fn inbox(
        &self,
        rows: usize,
        options: impl FnOnce(oncebox::InboxBuilder<PostgresStore>) -> oncebox::InboxBuilder<PostgresStore>,
    ) -> Inbox<PostgresStore> {
        let handler = |name: &'static str, backwards: bool| {
            let gauge = self.gauge.clone();
            async move |order: OrderPaid, db: &mut PgConnection| -> Result<(), BoxError> {
                let _running = gauge.enter();
                let n: usize = order.order_id[2..].parse()?;
                let first = n * 7_919 % rows;
                let mut pair = [first, (first + 1 + n * 104_729 % (rows - 1)) % rows];
                if backwards {
                    pair.reverse();
                }
                for row in pair {
                    let update = "update account set cents = cents + 1 where id = $1";
                    sqlx::query(update).bind(i32::try_from(row)?).execute(&mut *db).await?;
                }
                let insert = "insert into touched values ($1, $2, pg_current_xact_id()::text)";
                sqlx::query(insert).bind(name).bind(&order.order_id).execute(db).await?;
                Ok(())
            }
        };
        let store = PostgresStore::new(pool(&self.postgres, 19).await);
        let builder = Inbox::builder(store).on("there", handler("there", false));
        options(builder.on("back", handler("back", true))).build().await.unwrap()
    }

    /// Each message had its effect once; how many transactions it took.
    async fn check(&self, messages: usize) -> usize {
        let pool = self.postgres.store.pool();
        let count =
            "select count(*), count(distinct (handler, id)), count(distinct transaction_id) from touched";
        let (rows, units, transactions): (i64, i64, i64) =
            sqlx::query_as(count).fetch_one(pool).await.unwrap();
        let updates: i64 =
            sqlx::query_scalar("select sum(cents) from account").fetch_one(pool).await.unwrap();
        let expected = i64::try_from(messages).unwrap();
        assert_eq!((rows, units, updates), (2 * expected, 2 * expected, 4 * expected));
        usize::try_from(transactions).unwrap()
    }
}

/// Has callers deliver messages of a range, each until it is settled, as a broker does.
async fn deliver<S: InboxStore>(inbox: &Inbox<S>, callers: usize, messages: std::ops::Range<usize>) {
    let callers = (0..callers).map(|caller| {
        let (inbox, mine) = (inbox.clone(), messages.clone().skip(caller).step_by(callers));
        tokio::spawn(async move {
            for n in mine {
                let id = format!("o-{n}");
                while inbox.process(envelope(&id)).await.unwrap().settlement() != oncebox::Settlement::Ack {}
            }
        })
    });
    for caller in join_all(callers).await {
        caller.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_maximum_in_flight_holds_after_deadlocks() {
    let Some(crossing) = Crossing::new("the_maximum_in_flight_holds_after_deadlocks", 20).await else {
        return;
    };
    let inbox = crossing.inbox(20, |builder| builder.max_in_flight(2)).await;
    deliver(&inbox, 64, 0..192).await;
    crossing.check(192).await;
    assert!(crossing.gauge.most() <= 2, "{} transactions at a time", crossing.gauge.most());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_stay_together_after_deadlocks() {
    for rows in [2, 20] {
        let Some(crossing) = Crossing::new("units_stay_together_after_deadlocks", rows).await else { return };
        let inbox = crossing.inbox(rows, |builder| builder).await;
        deliver(&inbox, 64, 0..320).await;
        let transactions = crossing.check(320).await;
        assert!(transactions < 320, "{rows} rows: {transactions} transactions for 640 units");
    }
}

/// Two processes do not know of each other, and the database has to choose its victims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_of_two_processes_that_conflict_get_through() {
    let test = "handlers_of_two_processes_that_conflict_get_through";
    let Some(crossing) = Crossing::new(test, 20).await else { return };
    let (one, other) =
        (crossing.inbox(20, |builder| builder).await, crossing.inbox(20, |builder| builder).await);
    tokio::join!(deliver(&one, 16, 0..96), deliver(&other, 16, 96..192));
    crossing.check(192).await;
}

#[derive(Clone, Debug, Serialize, Deserialize, Message)]
#[message(kind = "order.shipped", key = "order_id")]
struct OrderShipped {
    order_id: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_meets_nobody_runs_beside_those_that_conflict() {
    let test = "a_handler_that_meets_nobody_runs_beside_those_that_conflict";
    let Some(crossing) = Crossing::new(test, 2).await else { return };
    let both = Arc::new(Barrier::new(2));
    let calm = async move |_: OrderShipped, _: &mut PgConnection| {
        both.wait().await;
    };
    let inbox = crossing.inbox(2, |builder| builder.on("calm", calm)).await;
    let conflict = {
        let inbox = inbox.clone();
        tokio::spawn(async move { deliver(&inbox, 32, 0..320).await })
    };
    // Two bodies wait for each other, while those of the other handlers cannot.
    let ship = async |id: &str| {
        let message = OrderShipped { order_id: id.to_owned() };
        inbox.process(Envelope::of(&message).unwrap()).await.unwrap().outcome("calm").unwrap().name()
    };
    for n in 0..20 {
        let (one, other) = (format!("one-{n}"), format!("other-{n}"));
        assert_eq!(tokio::join!(ship(&one), ship(&other)), ("done", "done"));
    }
    conflict.await.unwrap();
    crossing.check(320).await;
    assert!(crossing.gauge.all() > 640, "nothing met contention");
}

/// Waits until a session of this database waits for a lock.
async fn a_lock_is_waited_for(postgres: &Postgres) {
    let waits = "select exists (select from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock')";
    while !sqlx::query_scalar::<_, bool>(waits).fetch_one(postgres.store.pool()).await.unwrap() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Copies of what another process works on wait with a transaction each, but not with all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_that_wait_for_another_process_leave_permits_to_others() {
    let test = "copies_that_wait_for_another_process_leave_permits_to_others";
    let Some(postgres) = crate::postgres::as_owner(test).await else { return };
    let (begins, mut begun) = mpsc::unbounded_channel();
    let let_go = Arc::new(Notify::new());
    let holding = {
        let let_go = let_go.clone();
        async move |_: OrderPaid, _: &mut PgConnection| -> Result<(), BoxError> {
            begins.send(())?;
            let_go.notified().await;
            Ok(())
        }
    };
    let long = InFlight::Wait { max: Duration::from_secs(600) };
    for (max_in_flight, round) in [(1, "a"), (2, "b"), (3, "c")] {
        let other_process = Inbox::builder(PostgresStore::new(pool(&postgres, 16).await))
            .handler_timeout(Duration::from_secs(600))
            .on_with("h", holding.clone(), |options| options.isolated())
            .build()
            .await
            .unwrap();
        let ids: Vec<_> = (0..6).map(|n| format!("held-{round}-{n}")).collect();
        let held = ids.iter().map(|id| {
            let (inbox, envelope) = (other_process.clone(), envelope(id));
            tokio::spawn(async move { inbox.process(envelope).await.unwrap().outcome("h").unwrap().name() })
        });
        let held: Vec<_> = held.collect();
        for _ in &ids {
            begun.recv().await.unwrap();
        }
        let effects = postgres.clone();
        let handler = async move |order: OrderPaid, conn: &mut PgConnection| -> Result<(), BoxError> {
            effects.effect(conn, &order.order_id).await
        };
        let inbox = Inbox::builder(PostgresStore::new(pool(&postgres, 16).await))
            .in_flight(long)
            .lock_timeout(Duration::from_secs(600))
            .max_in_flight(max_in_flight)
            .on("h", handler)
            .build()
            .await
            .unwrap();
        let mut copies = Vec::new();
        for id in &ids {
            let (inbox, envelope) = (inbox.clone(), envelope(id));
            copies.push(tokio::spawn(async move {
                inbox.process(envelope).await.unwrap().outcome("h").unwrap().name()
            }));
            // The first one waits in a slot of its own, the others in a batch.
            if copies.len() == 1 {
                a_lock_is_waited_for(&postgres).await;
            }
        }
        for n in 0..20 {
            let report = inbox.process(envelope(&format!("other-{round}-{n}"))).await.unwrap();
            assert_eq!(report.outcome("h").unwrap().name(), "done", "{max_in_flight}, {n}");
        }
        assert!(copies.iter().all(|copy| !copy.is_finished()));
        let_go.notify_waiters();
        for held in held {
            assert_eq!(held.await.unwrap(), "done");
        }
        for copy in copies {
            assert_eq!(copy.await.unwrap(), "duplicate");
        }
    }
}
