//! The stored inbox: accept now, process later.
//!
//! ```console
//! $ cargo run --bin stored
//! ```
//!
//! takes orders into the log, each delivered twice, then lets workers handle them. The mailer is down at first, and one address
//! is no address: that message is tried again, given up, corrected by an operator and sent. Ends by itself with a table, and
//! fails if that is not exact.

#![allow(clippy::print_stdout, reason = "the program shows a person its table")]

mod mailer;

use std::time::Duration;

use anyhow::{Context, ensure};
use mailer::Mailer;
use oncebox::{Envelope, Failure, Inbox, Message, Operator, Retry, Select, SqliteStore, State};
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;

const ORDERS: usize = 100;

#[derive(Clone, Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "order_id", order_by = "customer")]
struct OrderPaid {
    order_id: String,
    customer: String,
    cents: i64,
}

async fn post_to_ledger(order: OrderPaid, db: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::query("insert into ledger (order_id, cents) values (?, ?)")
        .bind(order.order_id)
        .bind(order.cents)
        .execute(db)
        .await?;
    Ok(())
}

async fn queue_mail(
    order: OrderPaid,
    State(mailer): State<Mailer>,
    db: &mut SqliteConnection,
) -> Result<(), Failure> {
    mailer.check(&order.customer)?;
    sqlx::query("insert into mail (order_id, address) values (?, ?)")
        .bind(order.order_id)
        .bind(order.customer)
        .execute(db)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = SqliteStore::connect("sqlite::memory:").await?;
    store.migrate().await?;
    for table in [
        "create table ledger (order_id text, cents integer)",
        "create table mail (order_id text, address text)",
    ] {
        sqlx::query(table).execute(store.pool()).await?;
    }

    let inbox = Inbox::builder(store.clone())
        .stored()
        .on("ledger", post_to_ledger)
        .on("mail", queue_mail)
        .state(Mailer::that_is_down_at_first(3))
        .retry(Retry::new().max_attempts(4).first_delay(Duration::from_millis(20)))
        .on_dead(|letter| println!("given up after {} tries: {}", letter.attempts.len(), letter.error))
        .build()
        .await?;

    // Workers, in as many processes as there are; here one task.
    let worker = inbox.clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let work = tokio::spawn(async move { worker.run(async { drop(stopped.await) }).await });

    let mut duplicates = 0;
    for n in 0..ORDERS {
        let customer =
            if n == 42 { "no address".to_owned() } else { format!("customer-{}@example.org", n % 7) };
        let order = OrderPaid { order_id: format!("o-{n}"), customer, cents: 4200 };
        for _ in 0..2 {
            // Durable when it returns: acknowledge.
            let accepted = inbox.accept(Envelope::of(&order)?).await?;
            duplicates += usize::from(!accepted.is_new());
        }
    }
    println!("accepted {ORDERS} orders and recognised {duplicates} copies");

    let letter = loop {
        if let Some(letter) = inbox.operators().dead_letters(Select::all(), 1).await?.pop() {
            break letter;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let mut order: OrderPaid = serde_json::from_slice(&letter.body)?;
    println!("dead letter: {} of {}, at {:?}", letter.handler, order.order_id, letter.place);
    order.customer = "customer-0@example.org".into();
    let select = Select::all().handler(letter.handler).at(letter.place);
    inbox.operators().edit_dead(select, serde_json::to_vec(&order)?, &Operator::new("ann")?).await?;

    while inbox
        .operators()
        .handler_statuses()
        .await?
        .iter()
        .any(|status| status.lag + status.tasks + status.dead > 0)
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.send(()).ok().context("the workers have stopped by themselves")?;
    let report = work.await??;

    println!("\nhandler  lag  tasks  dead  rows");
    for (handler, table) in [("ledger", "select count(*) from ledger"), ("mail", "select count(*) from mail")]
    {
        let statuses = inbox.operators().handler_statuses().await?;
        let status =
            statuses.iter().find(|status| status.handler.name == handler).context("no such handler")?;
        let rows: i64 = sqlx::query_scalar(table).fetch_one(store.pool()).await?;
        println!("{handler:<7}  {:>3}  {:>5}  {:>4}  {rows:>4}", status.lag, status.tasks, status.dead);
        ensure!(rows == ORDERS as i64, "{handler} took effect {rows} times for {ORDERS} orders");
    }
    for entry in inbox.operators().audit(10).await? {
        println!(
            "audit: {} did {} on {} ({})",
            entry.operator,
            entry.action,
            entry.handler,
            entry.detail.unwrap_or_default()
        );
    }
    ensure!(report.done == 2 * ORDERS as u64, "{report:?}");
    ensure!(report.dead == 1, "{report:?}");
    Ok(())
}
