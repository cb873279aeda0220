//! PostgreSQL.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use oncebox::{Inbox, PostgresStore};
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row};
use uuid::Uuid;

use super::engine::{Handlers, QueueRow, StoredDatabaseKind, body, ledger_handlers};
use super::keepers::MILAN_TYPE;
use super::ledger::LEDGERS;
use super::meter::Meter;
use crate::message::OrderPaid;

impl StoredDatabaseKind for Postgres {
    const WORKERS: &'static [usize] = &[1, 4, 8, 16];
    const INBOX_WORKERS: usize = 8;
    const MILAN_SAVE: &'static str = "INSERT INTO inbox_messages (id, type, content, received_on_utc) \
         VALUES ($1, $2, $3::text::jsonb, clock_timestamp()) ON CONFLICT (id) DO NOTHING";
    const DISK_BYTES: Option<&'static str> = Some(
        "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c \
         WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' \
         AND c.relname NOT LIKE 'ledger%'",
    );

    fn make_tables(conn: &mut PgConnection) -> BoxFuture<'_, Result<(), sqlx::Error>> {
        let tables = sqlx::raw_sql(include_str!("../sql/stored_postgres.sql"));
        async move { tables.execute(conn).await.map(drop) }.boxed()
    }

    async fn inbox(
        store: PostgresStore,
        handlers: Handlers,
        meter: Arc<Meter>,
    ) -> Result<Inbox<PostgresStore>> {
        build_inbox(store, handlers, meter).await
    }

    fn milan_take(
        conn: &mut PgConnection,
        limit: i64,
    ) -> BoxFuture<'_, Result<Vec<(Uuid, String)>, sqlx::Error>> {
        async move {
            let rows = sqlx::query(
                // Reads the type as the original does, although nothing here uses it.
                "SELECT id, type, content::text FROM inbox_messages WHERE processed_on_utc IS NULL \
                 ORDER BY received_on_utc LIMIT $1 FOR UPDATE SKIP LOCKED",
            )
            .bind(limit)
            .fetch_all(conn)
            .await?;
            rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(2)?))).collect()
        }
        .boxed()
    }

    fn milan_mark<'c>(conn: &'c mut PgConnection, ids: &'c [Uuid]) -> BoxFuture<'c, Result<(), sqlx::Error>> {
        async move {
            // The original sends a time with each message; the server's time is equivalent, and cheaper.
            sqlx::query(
                "UPDATE inbox_messages SET processed_on_utc = now(), error = v.error \
                 FROM unnest($1::uuid[], $2::text[]) AS v(id, error) WHERE inbox_messages.id = v.id",
            )
            .bind(ids)
            .bind(vec![None::<String>; ids.len()])
            .execute(conn)
            .await
            .map(drop)
        }
        .boxed()
    }

    fn milan_fill(conn: &mut PgConnection, numbers: Range<u64>) -> BoxFuture<'_, Result<(), sqlx::Error>> {
        async move {
            let ids: Vec<Uuid> = numbers.clone().map(|number| OrderPaid::numbered(number).order_id).collect();
            sqlx::query(
                "INSERT INTO inbox_messages (id, type, content, received_on_utc) \
                 SELECT v.id, $3, v.content::jsonb, clock_timestamp() \
                 FROM unnest($1::uuid[], $2::text[]) AS v(id, content)",
            )
            .bind(ids)
            .bind(numbers.map(body).collect::<Vec<_>>())
            .bind(MILAN_TYPE)
            .execute(conn)
            .await
            .map(drop)
        }
        .boxed()
    }

    fn queue_take(conn: &mut PgConnection, limit: i64) -> BoxFuture<'_, Result<Vec<QueueRow>, sqlx::Error>> {
        async move {
            // A subquery in an array runs once under any plan.
            let rows = sqlx::query(
                "DELETE FROM row_queue WHERE id = ANY (ARRAY( \
                     SELECT id FROM row_queue ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED \
                 )) RETURNING handler, body",
            )
            .bind(limit)
            .fetch_all(conn)
            .await?;
            rows.iter()
                .map(|row| {
                    let handler: i32 = row.try_get(0)?;
                    Ok(QueueRow {
                        handler: usize::try_from(handler).unwrap_or_default(),
                        body: row.try_get(1)?,
                    })
                })
                .collect()
        }
        .boxed()
    }

    fn queue_fill(
        conn: &mut PgConnection,
        numbers: Range<u64>,
        handlers: usize,
    ) -> BoxFuture<'_, Result<(), sqlx::Error>> {
        async move {
            sqlx::query(
                "INSERT INTO row_queue (handler, body) \
                 SELECT h, body FROM unnest($1::text[]) AS body, generate_series(0, $2 - 1) AS h",
            )
            .bind(numbers.map(body).collect::<Vec<_>>())
            .bind(i32::try_from(handlers).unwrap_or(1))
            .execute(conn)
            .await
            .map(drop)
        }
        .boxed()
    }

    fn write_many<'c>(
        conn: &'c mut PgConnection,
        handler: usize,
        orders: &'c [OrderPaid],
    ) -> BoxFuture<'c, Result<(), sqlx::Error>> {
        async move {
            sqlx::query(AssertSqlSafe(format!(
                "INSERT INTO {} (order_id, customer, cents, note) \
                 SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[])",
                LEDGERS[handler]
            )))
            .bind(orders.iter().map(|paid| paid.order_id).collect::<Vec<_>>())
            .bind(orders.iter().map(|paid| &*paid.customer).collect::<Vec<_>>())
            .bind(orders.iter().map(|paid| paid.cents).collect::<Vec<_>>())
            .bind(orders.iter().map(|paid| &*paid.note).collect::<Vec<_>>())
            .execute(conn)
            .await
            .map(drop)
        }
        .boxed()
    }

    fn number(conn: &mut PgConnection, sql: String) -> BoxFuture<'_, Result<i64, sqlx::Error>> {
        async move { sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await }.boxed()
    }
}

ledger_handlers!(Postgres, PgConnection, PostgresStore);
