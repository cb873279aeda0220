//! What whoever starts the gateway sees first: what it does, and what to try.

use std::net::SocketAddr;

use anyhow::Result;
use oncebox::Guarantee;

use crate::config::{Config, Handler, To};
use crate::output::Output;

pub(super) fn print(
    config: &Config,
    address: SocketAddr,
    store: &str,
    guarantee: Guarantee,
    with_handlers: bool,
) -> Result<()> {
    let out = Output { json: false };
    let from =
        config.file.as_ref().map_or_else(|| "no configuration".to_owned(), |file| file.display().to_string());
    out.say(format_args!("oncebox {} · {from}", env!("CARGO_PKG_VERSION")))?;
    out.say(format_args!("  messages in   http://{address}/in/SOURCE"))?;
    out.say(format_args!(
        "  kept in       {} ({store}, each message accepted {guarantee})",
        config.target.shown()
    ))?;
    match (&config.handlers[..], with_handlers) {
        ([], _) => out.say("  handlers      none yet: messages wait for one")?,
        (_, false) => out.say("  handlers      left to other processes")?,
        (handlers, true) => {
            for handler in handlers {
                out.say(format_args!("  handler       {}", described(handler)))?;
            }
        }
    }
    let source = config.sources.names().first().map_or("shop", |name| *name).to_owned();
    let token = if config.http.token.is_some() { " -H \"Authorization: Bearer $ONCEBOX_TOKEN\"" } else { "" };
    let curl = format!(
        "curl http://{address}/in/{source}{token} -H 'Idempotency-Key: order-1' -d '{{\"order\":1}}'"
    );
    out.say(format_args!(
        "\nTry, in another terminal:\n\n  {curl}\n  {curl}   # again: a duplicate\n  \
         curl http://{address}/healthz\n  oncebox status        # from a clone: cargo run --release -- status\n"
    ))?;
    if config.handlers.is_empty() {
        out.say(
            "To have messages delivered, write an oncebox.toml and start again:\n\n  [handlers.receipts]\n  \
             kinds = [\"shop\"]                       # the kind of a message is its source's name, unless it says another\n  \
             url = \"http://127.0.0.1:9000/\"\n  allow_private = true                   # the address is on this machine\n",
        )?;
    }
    out.say("Ctrl-C stops it; what is in hand is brought to an end.")
}

fn described(handler: &Handler) -> String {
    let to = match &handler.to {
        // No more of it: there may be a secret in the rest.
        To::Endpoint { url, .. } => url.origin().ascii_serialization(),
        To::Command { program, .. } => program.clone(),
    };
    format!("{}: {} → {to}", handler.name, handler.kinds.join(", "))
}
