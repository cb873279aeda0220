//! The mail log notes which confirmations are to be sent.

use oncebox::State;
use sqlx::SqliteConnection;

use crate::OrderPlaced;
use crate::runs::RunCounts;

pub(crate) const HANDLER: &str = "mail-log";
pub(crate) const TABLE: &str = "create table mail_log (order_id text not null, customer text not null)";

pub(crate) async fn log_confirmation(
    order: OrderPlaced,
    State(runs): State<RunCounts>,
    db: &mut SqliteConnection,
) -> Result<(), sqlx::Error> {
    runs.count(HANDLER);
    sqlx::query("insert into mail_log (order_id, customer) values (?, ?)")
        .bind(order.order_id.to_string())
        .bind(order.customer)
        .execute(db)
        .await?;
    Ok(())
}
