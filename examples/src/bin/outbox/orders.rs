//! Orders: places them, and notes their invoices.

use oncebox::{Message, Outbox, SqliteStore};
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;

use crate::billing::InvoiceWritten;

pub(crate) const TABLE: &str =
    "create table orders (number integer primary key, customer text not null, invoice text)";

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.placed", key = "number", order_by = "customer")]
pub(crate) struct OrderPlaced {
    pub(crate) number: u32,
    pub(crate) customer: String,
    pub(crate) cents: i64,
}

/// Writes an order and publishes it in the same transaction, which the caller ends.
pub(crate) async fn place(
    outbox: &Outbox<SqliteStore>,
    db: &mut SqliteConnection,
    number: u32,
) -> anyhow::Result<()> {
    let customer = format!("customer-{}", number % 7);
    sqlx::query("insert into orders (number, customer) values (?, ?)")
        .bind(number)
        .bind(&customer)
        .execute(&mut *db)
        .await?;
    let order = OrderPlaced { number, customer, cents: 4200 };
    // Copies, as a mistake of the program: their key makes them one message.
    outbox.publish_all(db, [&order, &order, &order]).await?;
    Ok(())
}

/// Notes the invoice of an order.
pub(crate) async fn note_invoice(
    written: InvoiceWritten,
    db: &mut SqliteConnection,
) -> Result<(), sqlx::Error> {
    sqlx::query("update orders set invoice = ? where number = ?")
        .bind(written.invoice)
        .bind(written.order)
        .execute(db)
        .await?;
    Ok(())
}
