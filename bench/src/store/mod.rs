//! The databases that contenders run on, behind one small interface, so that each contender is written once.

mod postgres;
mod sqlite;

use anyhow::{Context, Result};
use futures_util::future::BoxFuture;
use oncebox::{Inbox, InboxStore};
use sqlx::pool::PoolOptions;
use sqlx::{Arguments, Connection, Database, Encode, IntoArguments, Pool, Type};
use uuid::Uuid;

use crate::business::HandlerWork;
use crate::message::OrderPaid;

/// A value in a statement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'v> {
    Int(i64),
    Text(&'v str),
    Uuid(Uuid),
}

/// How an inbox calls its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandlerCalls {
    /// As the engine likes, a handler of single messages.
    Singles,
    /// As the engine likes, a handler of sets.
    Sets,
    /// Each message in a transaction of its own.
    Off,
}

/// A kind of database.
pub(crate) trait DatabaseKind: Database {
    const STORE: &'static str;
    /// Begins a transaction that is going to write.
    const BEGIN: &'static str;
    /// The sizes of pool of which a baseline gets the best.
    const POOLS: &'static [u32];
    /// The size of pool that an inbox gets.
    const INBOX_POOL: u32;
    /// Whether transactions that write wait for each other.
    const ONE_WRITER: bool;

    type Server: Server<DatabaseKind = Self>;
    type Ground: Ground<DatabaseKind = Self>;
    type Store: InboxStore;

    /// Runs a prepared statement; returns the number of rows that it wrote.
    fn execute<'c>(
        conn: &'c mut Self::Connection,
        sql: &'static str,
        values: &'c [Value<'c>],
    ) -> BoxFuture<'c, Result<u64, sqlx::Error>>;

    /// Runs a prepared query; returns whether it found a row.
    fn exists<'c>(
        conn: &'c mut Self::Connection,
        sql: &'static str,
        values: &'c [Value<'c>],
    ) -> BoxFuture<'c, Result<bool, sqlx::Error>>;

    /// Writes many rows of the ledger with one statement.
    fn insert_many<'c>(
        conn: &'c mut Self::Connection,
        orders: &'c [OrderPaid],
    ) -> BoxFuture<'c, Result<(), sqlx::Error>>;
}

/// A running server, or a folder for databases.
pub(crate) trait Server: Sized {
    type DatabaseKind: DatabaseKind<Server = Self>;

    async fn start() -> Result<Self>;

    /// A place with empty tables.
    async fn fresh(&self) -> Result<<Self::DatabaseKind as DatabaseKind>::Ground>;
}

/// Where one measurement takes place: tables that no run has used before.
pub(crate) trait Ground: Sized {
    type DatabaseKind: DatabaseKind<Ground = Self>;

    /// A pool with all its connections open.
    async fn pool(&self, connections: u32) -> Result<Pool<Self::DatabaseKind>>;

    /// The store of an inbox on a pool.
    fn store(&self, pool: Pool<Self::DatabaseKind>) -> Result<<Self::DatabaseKind as DatabaseKind>::Store>;

    /// An inbox on a pool, with a handler that does `work`, and a second one if there is work for it.
    async fn inbox(
        &self,
        pool: Pool<Self::DatabaseKind>,
        batching: HandlerCalls,
        work: HandlerWork,
    ) -> Result<Inbox<<Self::DatabaseKind as DatabaseKind>::Store>>;

    /// The number of rows in the ledger.
    async fn ledger_rows(&self) -> Result<u64>;

    /// The number of updates to the rows that handlers update in opposite order.
    async fn crossing_updates(&self) -> Result<u64>;

    /// The number of bytes that the server has written to its log, if known.
    async fn log_bytes(&self) -> Result<Option<u64>>;

    /// Removes it.
    async fn discard(self) -> Result<()>;
}

pub(crate) use sqlx::{Postgres, Sqlite};

fn bind<'q, DB>(
    sql: &'static str,
    values: &[Value<'q>],
) -> sqlx::query::Query<'q, DB, <DB as Database>::Arguments>
where
    DB: Database,
    DB::Arguments: Arguments + IntoArguments<DB>,
    i64: Encode<'q, DB> + Type<DB>,
    &'q str: Encode<'q, DB> + Type<DB>,
    Uuid: Encode<'q, DB> + Type<DB>,
{
    values.iter().fold(sqlx::query(sql), |query, value| match *value {
        Value::Int(value) => query.bind(value),
        Value::Text(value) => query.bind(value),
        Value::Uuid(value) => query.bind(value),
    })
}

/// The tables of every contender, in the dialect that both databases understand.
const TABLES: &str = include_str!("../sql/tables.sql");

/// Opens a pool with all its connections.
async fn open_pool<DB: Database>(
    connections: u32,
    options: <DB::Connection as Connection>::Options,
) -> Result<Pool<DB>> {
    PoolOptions::new()
        // All connections are open before the measurement, which must not include connecting.
        .min_connections(connections)
        .max_connections(connections)
        // Saves every contender one round trip.
        .test_before_acquire(false)
        .connect_with(options)
        .await
        .context("opening a pool")
}

/// Writes the methods of [`DatabaseKind`] that run a prepared statement: sqlx's executors are not generic over a connection.
macro_rules! prepared_statements {
    ($connection:ty) => {
        fn execute<'c>(
            conn: &'c mut $connection,
            sql: &'static str,
            values: &'c [$crate::store::Value<'c>],
        ) -> BoxFuture<'c, Result<u64, sqlx::Error>> {
            $crate::store::bind::<Self>(sql, values)
                .execute(conn)
                .map(|done| Ok(done?.rows_affected()))
                .boxed()
        }

        fn exists<'c>(
            conn: &'c mut $connection,
            sql: &'static str,
            values: &'c [$crate::store::Value<'c>],
        ) -> BoxFuture<'c, Result<bool, sqlx::Error>> {
            $crate::store::bind::<Self>(sql, values)
                .fetch_optional(conn)
                .map(|row| Ok(row?.is_some()))
                .boxed()
        }
    };
}
use prepared_statements;

/// Writes the handlers of one database and the inbox with them. A macro, because the compiler cannot tell that generic handlers
/// are `Send`.
macro_rules! inbox_handlers {
    ($database:ty, $connection:ty, $store:ty) => {
        async fn build_inbox(
            store: $store,
            batching: HandlerCalls,
            work: HandlerWork,
        ) -> Result<Inbox<$store>> {
            use $crate::contenders::{HANDLER, SECOND_HANDLER};
            let builder = Inbox::builder(store).state(work);
            let builder = match batching {
                HandlerCalls::Singles => builder.on(HANDLER, handle),
                HandlerCalls::Sets => builder.on(HANDLER, handle_set),
                HandlerCalls::Off => builder.on(HANDLER, handle).max_batch(1),
            };
            let builder = match work.of_second_handler() {
                Some(_) => builder.on(SECOND_HANDLER, handle_second),
                None => builder,
            };
            Ok(builder.build().await?)
        }

        async fn handle(
            paid: OrderPaid,
            oncebox::State(work): oncebox::State<HandlerWork>,
            db: &mut $connection,
        ) -> Result<(), oncebox::Failure> {
            Ok(work.run::<$database>(&paid, db).await?)
        }

        async fn handle_second(
            paid: OrderPaid,
            oncebox::State(work): oncebox::State<HandlerWork>,
            db: &mut $connection,
        ) -> Result<(), oncebox::Failure> {
            match work.of_second_handler() {
                Some(work) => Ok(work.run::<$database>(&paid, db).await?),
                None => Ok(()),
            }
        }

        async fn handle_set(orders: Vec<OrderPaid>, db: &mut $connection) -> Result<(), oncebox::Failure> {
            Ok(<$database>::insert_many(db, &orders).await?)
        }
    };
}
use inbox_handlers;
