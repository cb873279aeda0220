//! Billing writes an invoice for every order.

use oncebox::State;
use sqlx::SqliteConnection;

use crate::OrderPlaced;
use crate::runs::RunCounts;

pub(crate) const HANDLER: &str = "billing";
pub(crate) const TABLE: &str = "create table invoices (order_id text not null, cents integer not null)";

pub(crate) async fn write_invoice(
    order: OrderPlaced,
    State(runs): State<RunCounts>,
    db: &mut SqliteConnection,
) -> Result<(), sqlx::Error> {
    runs.count(HANDLER);
    sqlx::query("insert into invoices (order_id, cents) values (?, ?)")
        .bind(order.order_id.to_string())
        .bind(order.cents)
        .execute(db)
        .await?;
    Ok(())
}
