//! A webhook endpoint: the provider delivers every event at least once, each takes effect once.
//!
//! ```console
//! $ cargo run --release
//! ```
//!
//! starts it on 127.0.0.1:8080 with the database `oncebox-webhook.db`, and prints curl lines to try. `PORT` and
//! `DATABASE` change that; `PORT=0` takes any free port.
//!
//! Start to read in `events.rs` (the message, its key, the handler), then `endpoint.rs` (HTTP).

#![allow(clippy::print_stdout, reason = "the program shows a person what to try")]

mod endpoint;
mod events;
mod self_test;

use std::env;
use std::io::{self, IsTerminal};
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

/// An event that takes effect.
const PAYMENT: &str =
    r#"{"id":"evt_1","type":"payment_intent.succeeded","data":{"object":{"id":"pi_1","amount":4200}}}"#;
/// An event that this program has no use for.
const UNKNOWN: &str = r#"{"id":"evt_2","type":"customer.created","data":{"object":{"id":"cus_1"}}}"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours).init();
    if env::var_os("ONCEBOX_EXAMPLE_SELF_TEST").is_some_and(|value| value == "1") {
        return self_test::run().await;
    }

    let database = env::var("DATABASE").unwrap_or_else(|_| "oncebox-webhook.db".into());
    let port: u16 = match env::var("PORT") {
        Ok(port) => port.parse().with_context(|| format!("PORT is {port:?}: use a number up to 65535"))?,
        Err(_) => 8080,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| format!("cannot listen on port {port}: set PORT to another one, or to 0 for any"))?;
    let inbox = events::open_inbox(&database).await?;
    print_what_to_try(listener.local_addr()?, &database);
    endpoint::serve(listener, inbox, ctrl_c()).await?;
    println!("stopped");
    Ok(())
}

/// Returns when the person at the terminal wants the program to stop.
async fn ctrl_c() {
    if let Err(error) = tokio::signal::ctrl_c().await {
        tracing::error!(%error, "cannot listen for Ctrl-C: stopping at once");
    }
}

fn print_what_to_try(address: SocketAddr, database: &str) {
    println!(
        "Listening on http://{address} with the database {database}; press Ctrl-C to stop. In another terminal:

Deliver an event; it takes effect:
  curl http://{address}/webhooks/stripe -d '{PAYMENT}'
Deliver it again, as providers do; it is a duplicate, with the answer of the first:
  curl http://{address}/webhooks/stripe -d '{PAYMENT}'
Deliver an event of an unhandled type:
  curl http://{address}/webhooks/stripe -d '{UNKNOWN}'
See that there is one payment:
  curl http://{address}/payments
"
    );
}
