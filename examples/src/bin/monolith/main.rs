//! A modular monolith: three modules handle one event, each exactly once, none in the way of another.
//!
//! ```console
//! $ cargo run --bin monolith
//! ```
//!
//! delivers `order.placed` three times. Shipping fails at first, and it alone runs again: every handler has a
//! transaction and a marker of its own. Ends by itself with a table, and fails if that is not exact.

#![allow(clippy::print_stdout, reason = "the program shows a person its table")]

mod billing;
mod mail_log;
mod runs;
mod shipping;

use anyhow::ensure;
use oncebox::{Envelope, Inbox, Message, Outcome, Report, Settlement, SqliteStore};
use runs::RunCounts;
use serde::{Deserialize, Serialize};
use shipping::Carrier;
use uuid::Uuid;

/// The event, which all modules know. They know nothing of each other.
#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.placed", key = "order_id")]
struct OrderPlaced {
    order_id: Uuid,
    customer: String,
    cents: i64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = SqliteStore::connect("sqlite::memory:").await?;
    store.migrate().await?;
    for table in [billing::TABLE, shipping::TABLE, mail_log::TABLE] {
        sqlx::query(table).execute(store.pool()).await?;
    }
    let runs = RunCounts::default();
    let inbox = Inbox::builder(store.clone())
        .on(billing::HANDLER, billing::write_invoice)
        .on(shipping::HANDLER, shipping::book_parcel)
        .on(mail_log::HANDLER, mail_log::log_confirmation)
        .state(runs.clone())
        .state(Carrier::that_fails_at_first(1))
        .build()
        .await?;

    let order = OrderPlaced { order_id: Uuid::now_v7(), customer: "Ada".into(), cents: 4200 };
    let mut deliveries = Vec::new();
    for attempt in 1..=3 {
        let report = inbox.process(Envelope::of(&order)?.with_attempt(attempt)).await?;
        let markers = inbox.markers(order.order_id).await?;
        let markers: Vec<_> = markers.iter().map(|marker| marker.handler.as_str()).collect();
        println!("delivery {attempt}: {:?}, markers: {}", report.settlement(), markers.join(", "));
        deliveries.push(report);
    }

    println!("\nhandler     delivery 1  delivery 2  delivery 3  runs  rows");
    let once = ["done", "duplicate", "duplicate"];
    let once_after_a_failure = ["retry", "done", "duplicate"];
    for (handler, count_rows, expected, expected_runs) in [
        (billing::HANDLER, "select count(*) from invoices", once, 1),
        (shipping::HANDLER, "select count(*) from parcels", once_after_a_failure, 2),
        (mail_log::HANDLER, "select count(*) from mail_log", once, 1),
    ] {
        let outcomes: Vec<_> =
            deliveries.iter().filter_map(|report| report.outcome(handler).map(Outcome::name)).collect();
        let runs = runs.of(handler);
        let rows: i64 = sqlx::query_scalar(count_rows).fetch_one(store.pool()).await?;
        print!("{handler:<10}");
        outcomes.iter().for_each(|outcome| print!("  {outcome:<10}"));
        println!("  {runs:>4}  {rows:>4}");
        ensure!(outcomes == expected && runs == expected_runs && rows == 1, "{handler} is not exact");
    }
    let settlements: Vec<_> = deliveries.iter().map(Report::settlement).collect();
    ensure!(settlements == [Settlement::Retry { after: None }, Settlement::Ack, Settlement::Ack]);
    println!("\nexact: every handler took effect once, and only the one that had failed ran again");
    Ok(())
}
