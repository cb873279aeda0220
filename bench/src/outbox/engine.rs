//! The differences between the databases for the outbox.

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use oncebox::{Envelope, Outbox, OutboxStore, PostgresStore, SqliteStore};
use sqlx::{PgConnection, Postgres, Sqlite, SqliteConnection};

use crate::message::OrderPaid;
use crate::stored::engine::StoredDatabaseKind;

/// A row of an outbox that is polled.
pub(crate) type PolledRow = (i64, String);

/// A kind of database with an outbox.
pub(crate) trait OutboxDatabaseKind: StoredDatabaseKind<Store: OutboxStore> {
    /// Makes the table of business rows, and an outbox that is polled.
    const TABLES: &'static [&'static str];
    /// Whether the poller locks the rows that it sends. With one writer, it could not send them then.
    const LOCKS_ROWS: bool;
    /// Begins a transaction that keeps one snapshot.
    const HOLD_SNAPSHOT: &'static str;

    /// Publishes messages in a transaction.
    fn publish<'a>(
        outbox: &'a Outbox<Self::Store>,
        conn: &'a mut Self::Connection,
        messages: &'a [OrderPaid],
    ) -> BoxFuture<'a, Result<()>>;

    /// Publishes messages in a transaction, with their customers as ordering keys.
    fn publish_in_order<'a>(
        outbox: &'a Outbox<Self::Store>,
        conn: &'a mut Self::Connection,
        messages: &'a [OrderPaid],
    ) -> BoxFuture<'a, Result<()>>;

    /// Takes up to 500 rows out of the outbox that is polled, the oldest first.
    fn take_batch(conn: &mut Self::Connection) -> BoxFuture<'_, Result<Vec<PolledRow>, sqlx::Error>>;

    /// The next hundred unsent rows of the outbox that is polled, the oldest first.
    fn poll(conn: &mut Self::Connection) -> BoxFuture<'_, Result<Vec<PolledRow>, sqlx::Error>>;
}

/// Writes what differs in types only.
macro_rules! publish_and_poll {
    ($connection:ty, $store:ty, $poll:literal, $take_batch:literal) => {
        fn publish<'a>(
            outbox: &'a Outbox<$store>,
            conn: &'a mut $connection,
            messages: &'a [OrderPaid],
        ) -> BoxFuture<'a, Result<()>> {
            async move { Ok(outbox.publish_all(conn, messages).await.map(drop)?) }.boxed()
        }

        fn publish_in_order<'a>(
            outbox: &'a Outbox<$store>,
            conn: &'a mut $connection,
            messages: &'a [OrderPaid],
        ) -> BoxFuture<'a, Result<()>> {
            async move {
                let envelope =
                    |paid: &OrderPaid| Envelope::of(paid).map(|it| it.with_order_by(paid.customer.as_str()));
                let envelopes = messages.iter().map(envelope).collect::<Result<Vec<_>, _>>()?;
                Ok(outbox.publish_envelopes(conn, envelopes).await.map(drop)?)
            }
            .boxed()
        }

        fn take_batch(conn: &mut $connection) -> BoxFuture<'_, Result<Vec<PolledRow>, sqlx::Error>> {
            sqlx::query_as($take_batch).fetch_all(conn).boxed()
        }

        fn poll(conn: &mut $connection) -> BoxFuture<'_, Result<Vec<PolledRow>, sqlx::Error>> {
            sqlx::query_as($poll).fetch_all(conn).boxed()
        }
    };
}

impl OutboxDatabaseKind for Postgres {
    const TABLES: &'static [&'static str] = &[
        "CREATE TABLE placed (order_id uuid NOT NULL, customer text NOT NULL, cents bigint NOT NULL, note text NOT NULL)",
        "CREATE TABLE polled_outbox (id bigserial PRIMARY KEY, content text NOT NULL, sent_at timestamptz)",
        "CREATE INDEX polled_outbox_unsent ON polled_outbox (id) WHERE sent_at IS NULL",
    ];
    const LOCKS_ROWS: bool = true;
    const HOLD_SNAPSHOT: &'static str = "BEGIN ISOLATION LEVEL REPEATABLE READ";

    publish_and_poll!(
        PgConnection,
        PostgresStore,
        "SELECT id, content FROM polled_outbox WHERE sent_at IS NULL ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED",
        "DELETE FROM polled_outbox WHERE id IN (SELECT id FROM polled_outbox ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED) RETURNING id, content"
    );
}

impl OutboxDatabaseKind for Sqlite {
    const TABLES: &'static [&'static str] = &[
        "CREATE TABLE placed (order_id blob NOT NULL, customer text NOT NULL, cents integer NOT NULL, note text NOT NULL)",
        "CREATE TABLE polled_outbox (id integer PRIMARY KEY AUTOINCREMENT, content text NOT NULL, sent_at text)",
        "CREATE INDEX polled_outbox_unsent ON polled_outbox (id) WHERE sent_at IS NULL",
    ];
    const LOCKS_ROWS: bool = false;
    const HOLD_SNAPSHOT: &'static str = "BEGIN";

    publish_and_poll!(
        SqliteConnection,
        SqliteStore,
        "SELECT id, content FROM polled_outbox WHERE sent_at IS NULL ORDER BY id LIMIT 100",
        "DELETE FROM polled_outbox WHERE id IN (SELECT id FROM polled_outbox ORDER BY id LIMIT 500) RETURNING id, content"
    );
}
