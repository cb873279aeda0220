//! The message, its key, and the handler that takes effect once per key.

use std::time::Duration;

use oncebox::{Failure, InFlight, Inbox, Message, Reply, SqliteStore};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::SqliteConnection;

/// The handler's name. It is part of what is deduplicated, so it stays when the function is renamed.
pub(crate) const HANDLER: &str = "stripe";

/// An event as the provider sends it.
///
/// A second event under the same id is compared by these fields only. That is on purpose: other fields, such as
/// a counter of pending deliveries, differ between two deliveries of one event.
#[derive(Message, Serialize, Deserialize)]
#[message(kind = "stripe.webhook", key = "stripe:{id}")]
pub(crate) struct StripeWebhook {
    id: String,
    #[serde(rename = "type")]
    event_type: String,
    data: Value,
}

/// What the handler answers. It is stored with the marker, and duplicates get it too.
#[derive(Serialize, Deserialize)]
pub(crate) struct WebhookResult {
    /// Whether this program does anything about events of this type.
    pub(crate) handled: bool,
}

#[derive(Deserialize)]
struct Data<T> {
    object: T,
}

#[derive(Deserialize)]
struct PaymentIntent {
    id: String,
    amount: i64,
}

#[derive(Deserialize)]
struct Charge {
    id: String,
    amount_refunded: i64,
}

/// What this writes and the proof that it ran commit together, or not at all.
///
/// `?` asks for another delivery, also for an event that cannot be read: by then, a newer version of this program
/// may be able to.
async fn on_event(event: StripeWebhook, db: &mut SqliteConnection) -> Result<Reply<WebhookResult>, Failure> {
    match event.event_type.as_str() {
        "payment_intent.succeeded" => {
            let Data::<PaymentIntent> { object: payment } = serde_json::from_value(event.data)?;
            sqlx::query("insert into payments (payment_id, amount) values (?, ?)")
                .bind(payment.id)
                .bind(payment.amount)
                .execute(db)
                .await?;
        }
        "charge.refunded" => {
            let Data::<Charge> { object: charge } = serde_json::from_value(event.data)?;
            sqlx::query("insert into refunds (charge_id, amount_refunded) values (?, ?)")
                .bind(charge.id)
                .bind(charge.amount_refunded)
                .execute(db)
                .await?;
        }
        _ => return Ok(Reply(WebhookResult { handled: false })),
    }
    Ok(Reply(WebhookResult { handled: true }))
}

/// The inbox on a database file, with everything that the handler needs.
pub(crate) async fn open_inbox(database: &str) -> anyhow::Result<Inbox<SqliteStore>> {
    let store = SqliteStore::connect(database).await?;
    store.migrate().await?;
    // No unique constraints: nothing but the inbox keeps a second row out.
    for table in [
        "create table if not exists payments (payment_id text not null, amount integer not null)",
        "create table if not exists refunds (charge_id text not null, amount_refunded integer not null)",
    ] {
        sqlx::query(table).execute(store.pool()).await?;
    }
    let inbox = Inbox::builder(store)
        .on(HANDLER, on_event)
        // A copy waits for the one that runs, but less long than the provider waits for a response.
        .in_flight(InFlight::Wait { max: Duration::from_secs(5) })
        .build()
        .await?;
    Ok(inbox)
}

/// What all events together have done.
#[derive(Serialize)]
pub(crate) struct Totals {
    payments: i64,
    paid: i64,
    refunds: i64,
}

pub(crate) async fn totals(inbox: &Inbox<SqliteStore>) -> Result<Totals, sqlx::Error> {
    let (payments, paid, refunds) = sqlx::query_as(
        "select (select count(*) from payments),
                (select coalesce(sum(amount), 0) from payments),
                (select count(*) from refunds)",
    )
    .fetch_one(inbox.store().pool())
    .await?;
    Ok(Totals { payments, paid, refunds })
}
