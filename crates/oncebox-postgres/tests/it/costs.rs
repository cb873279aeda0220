//! What it costs to look for work: no more with many tasks than with few.

use oncebox_core::DeadHead;
use oncebox_core::store::{Registration, Store, Work};
use oncebox_postgres::PostgresStore;
use oncebox_testing::one_handler::{LATER, OneHandler, at_most, positions, stored};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Postgres as Database};

use crate::fixture::{self, Postgres};

async fn ordered(test: &str) -> Option<OneHandler<Postgres>> {
    let registration = Registration { ordered: Some(DeadHead::Hold), ..stored("ledger", &["a"]) };
    Some(OneHandler::of(fixture::as_owner(test).await?, registration).await)
}

/// Fills lane 0 with messages and tasks of one key, and one task each of others.
async fn park(log: &OneHandler<Postgres>, parked: i64, others: i64) {
    let pool = log.fixture.store.pool();
    let messages = "insert into oncebox.message (lane, pos, kind, received_at, body)
        select 0, pos, 'a', to_timestamp(0), '' from generate_series(1, $1) as pos";
    sqlx::query(messages).bind(parked + others).execute(pool).await.unwrap();
    let tasks = "insert into oncebox.task (handler, lane, pos, order_by, failures, due_at)
        select $1, 0, pos, case when pos <= $2 then 'M'::bytea else convert_to('N' || pos, 'UTF8') end, 1,
               to_timestamp(0)
        from oncebox.message";
    sqlx::query(tasks).bind(log.handler.0).bind(parked).execute(pool).await.unwrap();
    put_off(pool, "pos = 1").await;
    // As the server does by itself after a while.
    sqlx::raw_sql("vacuum analyze oncebox.message, oncebox.task").execute(pool).await.unwrap();
}

/// Makes tasks due in an hour.
async fn put_off(pool: &PgPool, tasks: &'static str) {
    let update = format!("update oncebox.task set due_at = now() + interval '1 hour' where {tasks}");
    sqlx::query(sqlx::AssertSqlSafe(update)).execute(pool).await.unwrap();
}

/// The same log on one connection, which counts the pages that it reads.
struct Counted {
    log: OneHandler<Postgres>,
    before: i64,
}

impl Counted {
    async fn new(log: &OneHandler<Postgres>) -> Self {
        let pool = PgPoolOptions::new().max_connections(1);
        let pool = pool.connect(&log.fixture.database.url()).await.unwrap();
        let log = log.seen_by(log.fixture.through(PostgresStore::new(pool)));
        // Nothing is read for the first time later.
        log.look().await;
        Self::peek(&log, 1).await;
        let before = pages(&log).await;
        Self { log, before }
    }

    /// The positions of tasks that can be taken.
    async fn peek(log: &OneHandler<Postgres>, tasks: u32) -> Vec<i64> {
        let store = &log.fixture.store;
        let mut tx = log.begin().await;
        let tasks = store.take_tasks(&mut tx, log.taker(0), at_most(tasks)).await.unwrap();
        store.rollback(tx).await;
        positions(&tasks.unwrap_or_default())
    }

    async fn pages(self) -> i64 {
        pages(&self.log).await - self.before
    }
}

/// The pages of the log's tables and indexes that were read so far, from disk or not.
async fn pages(log: &OneHandler<Postgres>) -> i64 {
    let pool = log.fixture.store.pool();
    sqlx::query("select pg_stat_force_next_flush()").execute(pool).await.unwrap();
    let read = "select sum(pg_stat_get_blocks_fetched(oid))::bigint from pg_class
        where relnamespace = 'oncebox'::regnamespace and relname like any ('{task%,message%}')";
    sqlx::query_scalar::<Database, i64>(read).fetch_one(pool).await.unwrap()
}

#[tokio::test]
async fn parked_tasks_cost_nothing() {
    let test = "parked_tasks_cost_nothing";
    let Some(log) = ordered(test).await else { return };
    let few = looks_at_parked(&log, 20).await;
    let log = ordered(test).await.unwrap();
    let many = looks_at_parked(&log, 20_000).await;
    // A thousand times as many if every task was looked at.
    assert!(few > 0 && many < few * 50, "{many} pages among many, {few} among few");
    // All of them may run: no more than asked for are taken, the heads among them, and of one key in its order.
    log.travel(LATER + LATER);
    let mut taken = positions(&log.finish_tasks(0, 10).await);
    let followers = taken.iter().copied().filter(|pos| *pos <= 20_000).collect::<Vec<_>>();
    assert_eq!(followers, (1..).take(followers.len()).collect::<Vec<_>>());
    taken.retain(|pos| *pos > 20_000);
    assert!(taken == [20_001, 20_002] && (1..=8).contains(&followers.len()), "{taken:?} {followers:?}");
}

/// The pages that are read to find what may run, with this many tasks parked behind one head.
async fn looks_at_parked(log: &OneHandler<Postgres>, parked: i64) -> i64 {
    park(log, parked, 2).await;
    let counted = Counted::new(log).await;
    assert_eq!(Counted::peek(&counted.log, 100).await, [parked + 1, parked + 2]);
    assert!(counted.log.look().await.waiting.iter().any(|waiting| waiting.tasks));
    counted.pages().await
}
