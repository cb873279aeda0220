//! Two modules of one program that send each other messages, exactly once: the outbox with local delivery.
//!
//! ```console
//! $ cargo run --bin outbox
//! ```
//!
//! Orders are placed in transactions of the program's own, which publish `order.placed`. Every fifth one rolls back. Billing
//! writes an invoice and publishes `invoice.written`, which comes back to the orders. Each message is published three times by
//! mistake, and billing fails now and then. Ends by itself with a table, and fails if that is not exact.

#![allow(clippy::print_stdout, reason = "the program shows a person its table")]

mod billing;
mod orders;

use std::time::Duration;

use anyhow::ensure;
use oncebox::{Inbox, Outbox, Retry, SqliteStore};
use tokio::sync::oneshot;

const ORDERS: u32 = 100;
const ONE_IN_ROLLS_BACK: u32 = 5;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = SqliteStore::connect("sqlite::memory:").await?;
    store.migrate().await?;
    for table in [orders::TABLE, billing::TABLE] {
        sqlx::query(table).execute(store.pool()).await?;
    }

    let outbox = Outbox::builder(store.clone()).build().await?;
    let inbox = Inbox::builder(store.clone())
        .stored()
        .outbox(&outbox)
        .on_with("billing", billing::write_invoice, |options| options.ordered())
        .on("orders", orders::note_invoice)
        .retry(Retry::default().first_delay(Duration::from_millis(10)))
        .build()
        .await?;

    // One call runs the workers and the mover of the outbox.
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn({
        let inbox = inbox.clone();
        async move { inbox.run(async { drop(stopped.await) }).await }
    });

    for number in 0..ORDERS {
        let mut tx = store.pool().begin().await?;
        orders::place(&outbox, &mut tx, number).await?;
        if number % ONE_IN_ROLLS_BACK == 0 {
            tx.rollback().await?;
        } else {
            tx.commit().await?;
            outbox.wake();
        }
    }
    let placed = i64::from(ORDERS - ORDERS / ONE_IN_ROLLS_BACK);
    let count = async |query: &'static str| sqlx::query_scalar::<_, i64>(query).fetch_one(store.pool()).await;
    while count("select count(*) from orders where invoice is not null").await? < placed {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(stop);
    running.await??;

    println!("orders placed              {:>4}", count("select count(*) from orders").await?);
    println!("invoices written           {:>4}", count("select count(*) from invoices").await?);
    println!("invoices of unknown orders {:>4}", count(billing::WITHOUT_ORDER).await?);
    ensure!(count("select count(*) from orders").await? == placed);
    ensure!(count("select count(*) from invoices").await? == placed);
    ensure!(count(billing::WITHOUT_ORDER).await? == 0);
    ensure!(outbox.status().await?.waiting == 0);
    println!("\nexact: one invoice for each committed order, and none for an order that was rolled back");
    Ok(())
}
