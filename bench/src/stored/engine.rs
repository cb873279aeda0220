//! The differences between the databases for stored messages.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use futures_util::future::BoxFuture;
use oncebox::{Inbox, LogStore};
use uuid::Uuid;

use super::meter::Meter;
use crate::message::OrderPaid;
use crate::store::DatabaseKind;

/// The handlers of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handlers {
    /// The number of handlers of each message.
    pub(crate) count: usize,
    pub(crate) takes: Takes,
    /// Whether the inbox also moves the messages of an outbox.
    pub(crate) moves: bool,
}

/// The input and the work of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    Singles,
    Sets,
    /// Sets, and writes nothing.
    Nothing,
}

/// A row of a queue.
#[derive(Debug)]
pub(crate) struct QueueRow {
    pub(crate) handler: usize,
    pub(crate) body: String,
}

/// A kind of database that keeps messages for later.
pub(crate) trait StoredDatabaseKind: DatabaseKind<Store: LogStore> {
    /// The numbers of workers of which a baseline gets the best.
    const WORKERS: &'static [usize];
    /// The default number of workers of an inbox.
    const INBOX_WORKERS: usize;
    /// Saves a message (id, type, content) if it is new, as Milan's consumer does.
    const MILAN_SAVE: &'static str;
    /// Asks for the bytes of all tables and indexes but the ledgers.
    const DISK_BYTES: Option<&'static str>;

    /// Makes the tables of the baselines.
    fn make_tables(conn: &mut Self::Connection) -> BoxFuture<'_, Result<(), sqlx::Error>>;

    /// An inbox whose handlers count what they do.
    fn inbox(
        store: Self::Store,
        handlers: Handlers,
        meter: Arc<Meter>,
    ) -> impl Future<Output = Result<Inbox<Self::Store>>>;

    /// The next messages of Milan's inbox, locked: id and content.
    fn milan_take(
        conn: &mut Self::Connection,
        limit: i64,
    ) -> BoxFuture<'_, Result<Vec<(Uuid, String)>, sqlx::Error>>;

    /// Marks messages of Milan's inbox as processed.
    fn milan_mark<'c>(
        conn: &'c mut Self::Connection,
        ids: &'c [Uuid],
    ) -> BoxFuture<'c, Result<(), sqlx::Error>>;

    /// Fills Milan's inbox with one statement.
    fn milan_fill(conn: &mut Self::Connection, numbers: Range<u64>)
    -> BoxFuture<'_, Result<(), sqlx::Error>>;

    /// Takes the next rows out of a queue.
    fn queue_take(
        conn: &mut Self::Connection,
        limit: i64,
    ) -> BoxFuture<'_, Result<Vec<QueueRow>, sqlx::Error>>;

    /// Fills a queue with one statement, with a row for each handler.
    fn queue_fill(
        conn: &mut Self::Connection,
        numbers: Range<u64>,
        handlers: usize,
    ) -> BoxFuture<'_, Result<(), sqlx::Error>>;

    /// Writes many rows to a handler's ledger with one statement.
    fn write_many<'c>(
        conn: &'c mut Self::Connection,
        handler: usize,
        orders: &'c [OrderPaid],
    ) -> BoxFuture<'c, Result<(), sqlx::Error>>;

    /// Asks for a number.
    fn number(conn: &mut Self::Connection, sql: String) -> BoxFuture<'_, Result<i64, sqlx::Error>>;
}

/// The body of a message, as text.
pub(super) fn body(number: u64) -> String {
    String::from_utf8(OrderPaid::body(number)).unwrap_or_default()
}

/// Writes the handlers of one database and the inbox with them. A macro, because the compiler cannot tell that generic handlers
/// are `Send`.
macro_rules! ledger_handlers {
    ($database:ty, $connection:ty, $store:ty) => {
        async fn build_inbox(
            store: $store,
            handlers: $crate::stored::engine::Handlers,
            meter: std::sync::Arc<$crate::stored::meter::Meter>,
        ) -> anyhow::Result<oncebox::Inbox<$store>> {
            use $crate::stored::engine::Takes;
            let [first, second, third] = $crate::stored::keepers::HANDLERS;
            let mut builder = oncebox::Inbox::builder(store.clone()).stored().state(meter);
            if handlers.moves {
                builder = builder.outbox(&oncebox::Outbox::builder(store).build().await?);
            }
            builder = match handlers.takes {
                Takes::Singles => builder.on(first, handle::<0>),
                Takes::Sets => builder.on(first, handle_set::<0>),
                Takes::Nothing => builder.on(first, skip_set),
            };
            if handlers.count > 1 {
                builder = match handlers.takes {
                    Takes::Singles => builder.on(second, handle::<1>).on(third, handle::<2>),
                    Takes::Sets => builder.on(second, handle_set::<1>).on(third, handle_set::<2>),
                    Takes::Nothing => builder.on(second, skip_set).on(third, skip_set),
                };
            }
            Ok(builder.build().await?)
        }

        async fn handle<const N: usize>(
            paid: $crate::message::OrderPaid,
            oncebox::State(meter): oncebox::State<std::sync::Arc<$crate::stored::meter::Meter>>,
            db: &mut $connection,
        ) -> Result<(), oncebox::Failure> {
            $crate::stored::ledger::write::<$database>(N, &paid, db).await?;
            meter.add(1);
            Ok(())
        }

        async fn handle_set<const N: usize>(
            orders: Vec<$crate::message::OrderPaid>,
            oncebox::State(meter): oncebox::State<std::sync::Arc<$crate::stored::meter::Meter>>,
            db: &mut $connection,
        ) -> Result<(), oncebox::Failure> {
            <$database>::write_many(db, N, &orders).await?;
            meter.add(orders.len() as u64);
            Ok(())
        }

        async fn skip_set(
            orders: Vec<$crate::message::OrderPaid>,
            oncebox::State(meter): oncebox::State<std::sync::Arc<$crate::stored::meter::Meter>>,
            _db: &mut $connection,
        ) -> Result<(), oncebox::Failure> {
            meter.add(orders.len() as u64);
            Ok(())
        }
    };
}
pub(super) use ledger_handlers;
