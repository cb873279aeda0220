//! The tables of the handlers: each handler has its own, so that each row shows its handler.

use anyhow::{Result, ensure};
use sqlx::Pool;

use super::engine::StoredDatabaseKind;
use crate::message::OrderPaid;
use crate::store::{DatabaseKind, Value};

/// A table for each handler.
pub(crate) const LEDGERS: [&str; 3] = ["ledger", "ledger_2", "ledger_3"];

const INSERTS: [&str; 3] = [
    "INSERT INTO ledger (order_id, customer, cents, note) VALUES ($1, $2, $3, $4)",
    "INSERT INTO ledger_2 (order_id, customer, cents, note) VALUES ($1, $2, $3, $4)",
    "INSERT INTO ledger_3 (order_id, customer, cents, note) VALUES ($1, $2, $3, $4)",
];

/// The business write of a handler.
pub(crate) async fn write<E: DatabaseKind>(
    handler: usize,
    paid: &OrderPaid,
    conn: &mut E::Connection,
) -> Result<(), sqlx::Error> {
    let values = [
        Value::Uuid(paid.order_id),
        Value::Text(&paid.customer),
        Value::Int(paid.cents),
        Value::Text(&paid.note),
    ];
    E::execute(conn, INSERTS[handler], &values).await.map(drop)
}

/// The number of rows of all these handlers; an error if a message was handled twice.
pub(crate) async fn rows<E: StoredDatabaseKind>(pool: &Pool<E>, handlers: usize) -> Result<u64> {
    let mut conn = pool.acquire().await?;
    let mut all = 0;
    for ledger in &LEDGERS[..handlers] {
        let rows = E::number(&mut conn, format!("SELECT count(*) FROM {ledger}")).await?;
        let messages =
            E::number(&mut conn, format!("SELECT count(*) FROM (SELECT DISTINCT order_id FROM {ledger}) d"))
                .await?;
        ensure!(rows == messages, "{ledger} has {rows} rows of {messages} messages: some were handled twice");
        all += u64::try_from(rows)?;
    }
    Ok(all)
}
