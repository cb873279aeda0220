//! What it costs to look for work: no more with many tasks than with few.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oncebox_core::DeadHead;
use oncebox_core::store::{DueLanes, Registration, Store, TaskLimits, Work};
use oncebox_sqlite::SqliteStore;
use oncebox_testing::one_handler::{LATER, OneHandler, at_most, positions, stored};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqlitePoolOptions;

use crate::fixture::{self, Sqlite};

async fn ordered() -> OneHandler<Sqlite> {
    let registration = Registration { ordered: Some(DeadHead::Hold), ..stored("ledger", &["a"]) };
    OneHandler::of(fixture::in_a_file("costs").await.unwrap(), registration).await
}

/// Fills lane 0 with messages and tasks of one key, and one task each of others.
async fn park(log: &OneHandler<Sqlite>, parked: i64, others: i64) {
    let pool = log.fixture.store.pool();
    sqlx::query(
        "with recursive n(pos) as (select 1 union all select pos + 1 from n where pos < ?) \
         insert into oncebox_message (lane, pos, kind, received_at, body) select 0, pos, 'a', 0, x'' from n",
    )
    .bind(parked + others)
    .execute(pool)
    .await
    .unwrap();
    sqlx::query(
        "insert into oncebox_task (handler, lane, pos, order_by, failures, due_at) \
         select ?1, 0, pos, case when pos <= ?2 then x'4d' else cast('N' || pos as blob) end, 1, 0 \
         from oncebox_message",
    )
    .bind(log.handler.0)
    .bind(parked)
    .execute(pool)
    .await
    .unwrap();
    sqlx::query("update oncebox_task set due_at = unixepoch() * 1000 + 3600000 where pos = 1")
        .execute(pool)
        .await
        .unwrap();
}

/// Counts the instructions of SQLite's virtual machine: what work costs, on any machine.
#[derive(Clone, Default)]
struct Steps(Arc<AtomicU64>);

impl Steps {
    async fn count_on(&self, conn: &mut SqliteConnection) {
        let steps = self.0.clone();
        let mut handle = conn.lock_handle().await.unwrap();
        handle.set_progress_handler(1, move || {
            steps.fetch_add(1, Ordering::Relaxed);
            true
        });
    }
}

/// A log on one connection, whose instructions are counted.
struct Counted {
    log: OneHandler<Sqlite>,
    steps: Steps,
}

impl Counted {
    async fn new(log: &OneHandler<Sqlite>) -> Self {
        let options = log.fixture.store.pool().connect_options().as_ref().clone();
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        Self { log: log.seen_by(log.fixture.through(SqliteStore::new(pool))), steps: Steps::default() }
    }

    /// The positions of tasks that can be taken.
    async fn peek_tasks(&self, limits: TaskLimits) -> Vec<i64> {
        let store = &self.log.fixture.store;
        let mut tx = self.log.begin().await;
        self.steps.count_on(SqliteStore::connection(&mut tx)).await;
        let tasks = store.take_tasks(&mut tx, self.log.taker(0), limits).await.unwrap().unwrap();
        store.rollback(tx).await;
        positions(&tasks)
    }

    async fn look(&self) -> DueLanes {
        self.steps.count_on(&mut self.log.fixture.store.pool().acquire().await.unwrap()).await;
        self.log.look().await
    }

    fn steps(self) -> u64 {
        self.steps.0.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn parked_tasks_cost_nothing() {
    let few = looks_at_parked(&ordered().await, 20).await;
    let log = ordered().await;
    let many = looks_at_parked(&log, 20_000).await;
    // A thousand times as many if every task was looked at.
    assert!(few > 0 && many < few * 50, "{many} steps among many, {few} among few");
    // All of them may run: no more than asked for are looked at.
    log.travel(LATER + LATER);
    assert_eq!(positions(&log.finish_tasks(0, 10).await), [20_001, 20_002, 1, 2, 3, 4, 5, 6, 7, 8]);
}

/// What it costs to look for what may run, with so many parked behind one head.
async fn looks_at_parked(log: &OneHandler<Sqlite>, parked: i64) -> u64 {
    park(log, parked, 2).await;
    let counted = Counted::new(log).await;
    assert_eq!(counted.peek_tasks(at_most(100)).await, [parked + 1, parked + 2]);
    assert!(counted.look().await.waiting.iter().any(|waiting| waiting.tasks));
    counted.steps()
}

/// Many keys of which no head is due, and many of which all are.
#[tokio::test]
async fn many_ordering_keys_cost_nothing() {
    let few = looks_at_keys(&ordered().await, 20).await;
    let many = looks_at_keys(&ordered().await, 20_000).await;
    assert!(few > 0 && many < few * 50, "{many} steps among many, {few} among few");
}

/// What it costs to look for what may run, with so many keys, of which all heads are due and then none.
async fn looks_at_keys(log: &OneHandler<Sqlite>, keys: i64) -> u64 {
    park(log, 1, keys).await;
    let counted = Counted::new(log).await;
    assert_eq!(counted.peek_tasks(at_most(10)).await, (2..12).collect::<Vec<_>>());
    sqlx::query("update oncebox_task set due_at = unixepoch() * 1000 + 3600000 + pos")
        .execute(log.fixture.store.pool())
        .await
        .unwrap();
    assert!(counted.look().await.next_due.unwrap() <= LATER);
    assert_eq!(counted.peek_tasks(at_most(100)).await, [0; 0]);
    counted.steps()
}
