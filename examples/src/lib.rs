//! A handler as an application has one, for the test in `tests/ledger.rs`; the programs are in `src/bin`.

#![forbid(unsafe_code)]

use oncebox::Message;
use serde::{Deserialize, Serialize};
use sqlx::{SqliteConnection, SqlitePool};

/// An order was paid.
#[derive(Clone, Debug, Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "order_id")]
pub struct OrderPaid {
    /// What identifies the message.
    pub order_id: String,
    /// How much was paid.
    pub cents: i64,
}

/// Creates the handler's table.
pub async fn create_ledger(pool: &SqlitePool) -> Result<(), sqlx::Error> {
    sqlx::query("create table ledger (order_id text not null, cents integer not null)").execute(pool).await?;
    Ok(())
}

/// Posts a paid order to the ledger.
pub async fn post_to_ledger(order: OrderPaid, db: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::query("insert into ledger (order_id, cents) values (?, ?)")
        .bind(order.order_id)
        .bind(order.cents)
        .execute(db)
        .await?;
    Ok(())
}
