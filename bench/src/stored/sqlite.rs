//! SQLite: one writer, so that no worker has to skip rows that another one has locked.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use oncebox::{Inbox, SqliteStore};
use sqlx::{AssertSqlSafe, QueryBuilder, Row, Sqlite, SqliteConnection};
use uuid::Uuid;

use super::engine::{Handlers, QueueRow, StoredDatabaseKind, body, ledger_handlers};
use super::keepers::MILAN_TYPE;
use super::ledger::LEDGERS;
use super::meter::Meter;
use crate::message::OrderPaid;

impl StoredDatabaseKind for Sqlite {
    const WORKERS: &'static [usize] = &[1];
    const INBOX_WORKERS: usize = 1;
    const MILAN_SAVE: &'static str = "INSERT INTO inbox_messages (id, type, content, received_on_utc) \
         VALUES ($1, $2, $3, strftime('%Y-%m-%d %H:%M:%f', 'now')) ON CONFLICT (id) DO NOTHING";
    const DISK_BYTES: Option<&'static str> = None;

    fn make_tables(conn: &mut SqliteConnection) -> BoxFuture<'_, Result<(), sqlx::Error>> {
        let tables = sqlx::raw_sql(include_str!("../sql/stored_sqlite.sql"));
        async move { tables.execute(conn).await.map(drop) }.boxed()
    }

    async fn inbox(store: SqliteStore, handlers: Handlers, meter: Arc<Meter>) -> Result<Inbox<SqliteStore>> {
        build_inbox(store, handlers, meter).await
    }

    fn milan_take(
        conn: &mut SqliteConnection,
        limit: i64,
    ) -> BoxFuture<'_, Result<Vec<(Uuid, String)>, sqlx::Error>> {
        async move {
            let rows = sqlx::query(
                "SELECT id, type, content FROM inbox_messages WHERE processed_on_utc IS NULL \
                 ORDER BY received_on_utc LIMIT $1",
            )
            .bind(limit)
            .fetch_all(conn)
            .await?;
            rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(2)?))).collect()
        }
        .boxed()
    }

    fn milan_mark<'c>(
        conn: &'c mut SqliteConnection,
        ids: &'c [Uuid],
    ) -> BoxFuture<'c, Result<(), sqlx::Error>> {
        let mut update = QueryBuilder::new(
            "UPDATE inbox_messages SET processed_on_utc = CURRENT_TIMESTAMP, error = NULL WHERE id IN (",
        );
        let mut list = update.separated(", ");
        for id in ids {
            list.push_bind(*id);
        }
        update.push(")");
        async move { update.build().execute(conn).await.map(drop) }.boxed()
    }

    fn milan_fill(
        conn: &mut SqliteConnection,
        numbers: Range<u64>,
    ) -> BoxFuture<'_, Result<(), sqlx::Error>> {
        let mut insert =
            QueryBuilder::new("INSERT INTO inbox_messages (id, type, content, received_on_utc) ");
        insert.push_values(numbers, |mut row, number| {
            row.push_bind(OrderPaid::numbered(number).order_id)
                .push_bind(MILAN_TYPE)
                .push_bind(body(number))
                .push("strftime('%Y-%m-%d %H:%M:%f', 'now')");
        });
        async move { insert.build().execute(conn).await.map(drop) }.boxed()
    }

    fn queue_take(
        conn: &mut SqliteConnection,
        limit: i64,
    ) -> BoxFuture<'_, Result<Vec<QueueRow>, sqlx::Error>> {
        async move {
            let rows = sqlx::query(
                "DELETE FROM row_queue WHERE id IN (SELECT id FROM row_queue ORDER BY id LIMIT $1) \
                 RETURNING handler, body",
            )
            .bind(limit)
            .fetch_all(conn)
            .await?;
            rows.iter()
                .map(|row| {
                    let handler: i64 = row.try_get(0)?;
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
        conn: &mut SqliteConnection,
        numbers: Range<u64>,
        handlers: usize,
    ) -> BoxFuture<'_, Result<(), sqlx::Error>> {
        let mut insert = QueryBuilder::new("INSERT INTO row_queue (handler, body) ");
        let rows = numbers.flat_map(|number| (0..handlers).map(move |handler| (handler, number)));
        insert.push_values(rows, |mut row, (handler, number)| {
            row.push_bind(i64::try_from(handler).unwrap_or_default()).push_bind(body(number));
        });
        async move { insert.build().execute(conn).await.map(drop) }.boxed()
    }

    fn write_many<'c>(
        conn: &'c mut SqliteConnection,
        handler: usize,
        orders: &'c [OrderPaid],
    ) -> BoxFuture<'c, Result<(), sqlx::Error>> {
        let mut insert =
            QueryBuilder::new(format!("INSERT INTO {} (order_id, customer, cents, note) ", LEDGERS[handler]));
        insert.push_values(orders, |mut row, paid| {
            row.push_bind(paid.order_id)
                .push_bind(&*paid.customer)
                .push_bind(paid.cents)
                .push_bind(&*paid.note);
        });
        async move { insert.build().execute(conn).await.map(drop) }.boxed()
    }

    fn number(conn: &mut SqliteConnection, sql: String) -> BoxFuture<'_, Result<i64, sqlx::Error>> {
        async move { sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await }.boxed()
    }
}

ledger_handlers!(Sqlite, SqliteConnection, SqliteStore);
