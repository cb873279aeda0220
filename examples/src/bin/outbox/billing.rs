//! Billing: writes an invoice for each order, and publishes it.

use oncebox::{Attempt, Failure, Message, Publish};
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;

use crate::orders::OrderPlaced;

pub(crate) const TABLE: &str =
    "create table invoices (invoice text not null, number integer not null, cents integer not null)";
pub(crate) const WITHOUT_ORDER: &str =
    "select count(*) from invoices where number not in (select number from orders)";

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "invoice.written", key = "invoice")]
pub(crate) struct InvoiceWritten {
    pub(crate) invoice: String,
    pub(crate) order: u32,
}

/// Writes the invoice. Its message commits with it: a failed attempt publishes nothing.
pub(crate) async fn write_invoice(
    order: OrderPlaced,
    Attempt(attempt): Attempt,
    db: &mut SqliteConnection,
) -> Result<Publish<InvoiceWritten>, Failure> {
    let invoice = format!("i-{}", order.number);
    sqlx::query("insert into invoices (invoice, number, cents) values (?, ?, ?)")
        .bind(&invoice)
        .bind(order.number)
        .bind(order.cents)
        .execute(db)
        .await?;
    if order.number % 10 == 3 && attempt == 1 {
        return Err("the printer is out of paper".into());
    }
    Ok(Publish::new(&InvoiceWritten { invoice, order: order.number }))
}
