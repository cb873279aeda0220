//! The lines that the README shows of the stored inbox: here they are compiled.

use oncebox::{Envelope, Inbox, Message, Operator, Select, SqliteStore};
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "order_id")]
struct OrderPaid {
    order_id: String,
}

async fn post_to_ledger(_order: OrderPaid, _db: &mut SqliteConnection) {}

#[allow(dead_code, reason = "it runs until Ctrl-C")]
async fn stored(store: SqliteStore, order: OrderPaid) -> anyhow::Result<()> {
    let inbox = Inbox::builder(store.clone()).stored().on("ledger", post_to_ledger).build().await?;

    // In the consumer: durable and deduplicated when it returns. Acknowledge.
    inbox.accept(Envelope::of(&order)?).await?;

    // Run this in any number of processes: they share the work, without a leader. Ctrl-C stops it.
    inbox.run(async { drop(tokio::signal::ctrl_c().await) }).await?;

    let operators = inbox.operators();
    let letters = operators.dead_letters(Select::all().handler("ledger"), 100).await?;
    operators.retry_dead(Select::all().handler("ledger").error("timeout"), &Operator::new("ann")?).await?;
    drop(letters);
    Ok(())
}

#[test]
fn the_readme_shows_what_is_compiled_here() {
    let readme = include_str!("../../README.md");
    let (_, behind) = readme.split_once("## Accept now, process later").unwrap();
    let (_, block) = behind.split_once("```rust,ignore\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let here = include_str!("readme.rs");
    let lines = block.lines().map(str::trim).filter(|line| !line.is_empty());
    assert!(lines.clone().count() >= 8);
    for line in lines {
        assert!(here.contains(line), "a line of the README is not compiled: {line}");
    }
}
