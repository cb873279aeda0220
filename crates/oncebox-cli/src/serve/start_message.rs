//! What whoever starts the gateway sees first: what it does, and what to try.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Result;
use oncebox::Guarantee;
use serde_json::{Value, json};

use crate::config::{Config, DEFAULT_FILE, Handler, To};
use crate::output::Output;
use crate::source::{Part, Source};

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
    let address = reachable(address);
    let curl = curl(config, address);
    let options = match &config.file {
        Some(file) if file.as_os_str() != DEFAULT_FILE => format!(" --config {}", file.display()),
        _ => String::new(),
    };
    out.say(format_args!(
        "\nTry, in another terminal:\n\n  {curl}\n  {curl}   # again: a duplicate\n  \
         curl http://{address}/healthz\n  oncebox status{options}        # from a clone: cargo run --release -- status{options}\n"
    ))?;
    if config.handlers.is_empty() {
        let write = match &config.file {
            Some(file) => format!("add this to {}", file.display()),
            None => format!("write an {DEFAULT_FILE}"),
        };
        out.say(format_args!(
            "To have messages delivered, {write} and start again:\n\n  [handlers.receipts]\n  \
             kinds = [\"shop\"]                       # the kind of a message is its source's name, unless it says another\n  \
             url = \"http://127.0.0.1:9000/\"\n  allow_private = true                   # the address is on this machine\n",
        ))?;
    }
    out.say("Ctrl-C stops it; what is in hand is brought to an end.")
}

/// Where this machine finds what listens on all addresses.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// A request that fits the configuration: a message of a kind that somebody takes, with its key where the source has it.
fn curl(config: &Config, address: SocketAddr) -> String {
    let name = config.sources.names().first().map_or("shop", |name| *name).to_owned();
    let source = config.sources.find(&name).unwrap_or_else(|| Source::named(&name));
    let kind = config.handlers.first().and_then(|handler| handler.kinds.first());
    let (mut headers, mut body) = (String::new(), json!({ "order": 1 }));
    let mut say = |part: &Part, value: &str| match part {
        Part::Header(name) => headers.push_str(&format!(" -H '{name}: {value}'")),
        Part::Pointer(pointer) => put(&mut body, pointer, value),
    };
    let usual = Part::Header("Idempotency-Key".to_owned());
    say(source.key.as_ref().unwrap_or(&usual), "order-1");
    match (&source.kind, kind) {
        (Some(part), Some(kind)) => say(part, kind),
        (None, Some(kind)) if *kind != source.default_kind => say(&Part::Header("ce-type".to_owned()), kind),
        _ => {}
    }
    if let Some(part) = &source.order {
        say(part, "customer-1");
    }
    if config.http.token.is_some() {
        headers.push_str(" -H 'Authorization: Bearer TOKEN'");
    }
    format!("curl http://{address}/in/{name}{headers} -d '{body}'")
}

/// Puts a value where a pointer leads.
fn put(body: &mut Value, pointer: &str, value: &str) {
    let mut place = body;
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[token];
    }
    *place = Value::from(value);
}

fn described(handler: &Handler) -> String {
    let to = match &handler.to {
        // No more of it: there may be a secret in the rest.
        To::Endpoint { url, .. } => url.origin().ascii_serialization(),
        To::Command { program, .. } => program.clone(),
    };
    format!("{}: {} → {to}", handler.name, handler.kinds.join(", "))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn curl_for(config: &str) -> String {
        let config = Config::parse(Path::new("oncebox.toml"), config).unwrap();
        curl(&config, "127.0.0.1:1".parse().unwrap())
    }

    #[test]
    fn what_listens_everywhere_is_found_here() {
        let shown = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(shown("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(shown("[::]:80"), "[::1]:80");
        assert_eq!(shown("10.0.0.1:80"), "10.0.0.1:80");
    }

    #[test]
    fn what_is_printed_fits_what_is_configured() {
        let usual = "curl http://127.0.0.1:1/in/shop -H 'Idempotency-Key: order-1' -d '{\"order\":1}'";
        assert_eq!(curl_for(""), usual);
        let in_the_body = "[sources.bank]\nkey_pointer = \"/data/id\"\nkind_pointer = \"/type\"\norder_pointer = \"/data/of\"\n\
                           [handlers.h]\nkinds = [\"paid\"]\ncommand = [\"cat\"]\n";
        let body = r#"{"data":{"id":"order-1","of":"customer-1"},"order":1,"type":"paid"}"#;
        assert_eq!(curl_for(in_the_body), format!("curl http://127.0.0.1:1/in/bank -d '{body}'"));
        let in_headers = "[http]\ntoken = \"0123456789abcdef\"\n[sources.bank]\nkey_header = \"x-id\"\n\
                          [handlers.h]\nkinds = [\"paid\"]\ncommand = [\"cat\"]\n";
        let headers = "-H 'x-id: order-1' -H 'ce-type: paid' -H 'Authorization: Bearer TOKEN'";
        assert_eq!(
            curl_for(in_headers),
            format!("curl http://127.0.0.1:1/in/bank {headers} -d '{{\"order\":1}}'")
        );
    }
}
