//! Two services, each a process with its own database: orders reach billing over HTTP or RabbitMQ, and each takes effect there once.
//!
//! ```console
//! $ cargo run --bin two-services                      # over HTTP
//! $ cargo run --bin two-services amqp://localhost     # over RabbitMQ
//! ```
//!
//! Orders are placed in transactions that publish `order.placed`, and some roll back. A relay sends the messages to billing, whose
//! inbox writes one invoice for each. Billing is killed twice meanwhile (`kill -9`), so that messages are sent again. Ends by itself
//! with a table, and fails if that is not exact. `two-services billing URL` and `two-services orders URL` run one service alone.
//!
//! Start to read in `orders.rs` (the sender), then `billing.rs` (the receiver).

#![allow(clippy::print_stdout, reason = "the program shows a person its table")]

mod billing;
mod orders;

use std::env;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use sqlx::SqlitePool;
use tokio::process::{Child, Command};

/// How often billing is killed.
const KILLS: i64 = 2;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => both(&free_address()?).await,
        [url] => both(url).await,
        ["orders", url] => orders::run(url).await,
        ["billing", url] => billing::run(url).await,
        _ => bail!("usage: two-services [orders | billing] [http://127.0.0.1:PORT | amqp://HOST]"),
    }
}

/// Whether messages travel over RabbitMQ; otherwise over HTTP.
fn is_broker(url: &str) -> bool {
    url.starts_with("amqp")
}

/// An address for billing over HTTP.
fn free_address() -> anyhow::Result<String> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    Ok(format!("http://127.0.0.1:{port}"))
}

/// Runs both services in a temporary folder, and compares their databases.
async fn both(url: &str) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut orders = start("orders", url, folder.path())?;
    let mut billing = start("billing", url, folder.path())?;
    let (placed, invoiced) =
        (Database::open(folder.path(), orders::DATABASE)?, Database::open(folder.path(), billing::DATABASE)?);

    let expected = i64::from(orders::committed());
    for part in 1..=KILLS {
        while invoiced.count(billing::INVOICES).await < expected * part / (KILLS + 1) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Messages in flight are not acknowledged: the sender does not know whether their invoices are written.
        billing.kill().await?;
        billing = start("billing", url, folder.path())?;
    }
    // It ends when all messages are sent. Over a broker, billing may not have received them yet.
    ensure!(orders.wait().await?.success(), "orders failed");
    while invoiced.count(billing::INVOICED_ORDERS).await < expected {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    billing.kill().await?;

    let orders = placed.count(orders::ORDERS).await;
    let (invoices, distinct) =
        (invoiced.count(billing::INVOICES).await, invoiced.count(billing::INVOICED_ORDERS).await);
    println!("orders placed     {orders:>4}");
    println!("invoices written  {invoices:>4}");
    println!("orders with one   {distinct:>4}");
    ensure!(orders == expected && invoices == expected && distinct == expected);
    println!("\nexact: one invoice for each committed order, although billing was killed {KILLS} times");
    Ok(())
}

/// Starts a service as a process of its own. It ends with this one.
fn start(role: &str, url: &str, folder: &Path) -> anyhow::Result<Child> {
    let mut service = Command::new(env::current_exe()?);
    service.args([role, url]).current_dir(folder).kill_on_drop(true);
    service.spawn().with_context(|| format!("cannot start {role}"))
}

/// The database of a service, from outside.
struct Database(SqlitePool);

impl Database {
    fn open(folder: &Path, file: &str) -> anyhow::Result<Self> {
        let url = format!("sqlite://{}?mode=rwc", folder.join(file).display());
        Ok(Self(SqlitePool::connect_lazy(&url)?))
    }

    /// The result of a count; 0 before the service has created its table.
    async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(&self.0).await.unwrap_or(0)
    }
}
