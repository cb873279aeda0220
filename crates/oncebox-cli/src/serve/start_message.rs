//! The message at the start of the gateway: its settings, and commands to try.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Result;
use oncebox::Guarantee;
use oncebox::source::{FieldLocation, SourceRules};
use serde_json::{Value, json};

use crate::config::{
    Config, DEFAULT_FILE, Destination, EndpointConfig, HandlerConfig, RelayConfig, RelayDestination,
};
use crate::output::CommandOutput;

pub(super) fn print(
    config: &Config,
    address: SocketAddr,
    store: &str,
    guarantee: Guarantee,
    with_handlers: bool,
) -> Result<()> {
    let out = CommandOutput { json: false };
    let from =
        config.file.as_ref().map_or_else(|| "no configuration".to_owned(), |file| file.display().to_string());
    out.line(format_args!("oncebox {} · {from}", env!("CARGO_PKG_VERSION")))?;
    out.line(format_args!("  messages in   http://{address}/in/SOURCE"))?;
    out.line(format_args!(
        "  database      {} ({store}, each message accepted {guarantee})",
        config.target.redacted_url()
    ))?;
    for source in &config.broker_sources {
        out.line(format_args!(
            "  source        {}: queue {} of {}",
            source.name, source.queue, source.broker
        ))?;
    }
    match (&config.handlers[..], with_handlers) {
        ([], _) => out.line("  handlers      none: messages wait for one")?,
        (_, false) => out.line("  handlers      run in other processes")?,
        (handlers, true) => {
            for handler in handlers {
                out.line(format_args!("  handler       {}", description(handler)))?;
            }
        }
    }
    match (&config.relays[..], with_handlers) {
        ([], _) => {}
        (_, false) => out.line("  relays        run in other processes")?,
        (relays, true) => {
            for relay in relays {
                out.line(format_args!("  relay         {}", relay_description(relay)))?;
            }
        }
    }
    let address = reachable(address);
    let curl = curl(config, address);
    let options = match &config.file {
        Some(file) if file.as_os_str() != DEFAULT_FILE => format!(" --config {}", file.display()),
        _ => String::new(),
    };
    out.line(format_args!(
        "\nTry, in another terminal:\n\n  {curl}\n  {curl}   # a duplicate\n  \
         curl http://{address}/healthz\n  oncebox status{options}        # from a clone: cargo run --release -- status{options}\n"
    ))?;
    if !config.delivers() {
        let edit = match &config.file {
            Some(file) => format!("add this to {}", file.display()),
            None => format!("create {DEFAULT_FILE} with this"),
        };
        out.line(format_args!(
            "To deliver messages, {edit} and restart:\n\n  [handlers.receipts]\n  \
             kinds = [\"shop\"]                       # by default the kind is the source's name\n  \
             url = \"http://127.0.0.1:9000/\"\n  allow_private = true                   # the address is on this machine\n",
        ))?;
    }
    out.line("Press Ctrl-C to stop. In-flight work is finished first.")
}

/// An address by which this machine reaches a gateway that listens on all interfaces.
pub(crate) fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// A request that fits the configuration: a kind with a handler, and the key at the source's location.
fn curl(config: &Config, address: SocketAddr) -> String {
    let name = config.sources.names().first().map_or("shop", |name| *name).to_owned();
    let source = config.sources.find(&name).unwrap_or_else(|| SourceRules::new(&name));
    let kind = config.handlers.first().and_then(|handler| handler.kinds.first());
    let (mut headers, mut body) = (String::new(), json!({ "order": 1 }));
    let mut add = |part: &FieldLocation, value: &str| match part {
        FieldLocation::Header(name) => headers.push_str(&format!(" -H '{name}: {value}'")),
        FieldLocation::Pointer(pointer) => put(&mut body, pointer, value),
    };
    let usual = FieldLocation::Header("Idempotency-Key".to_owned());
    add(source.key.as_ref().unwrap_or(&usual), "order-1");
    match (&source.kind, kind) {
        (Some(part), Some(kind)) => add(part, kind),
        (None, Some(kind)) if *kind != source.default_kind => {
            add(&FieldLocation::Header("ce-type".to_owned()), kind);
        }
        _ => {}
    }
    if let Some(part) = &source.order {
        add(part, "customer-1");
    }
    if config.http.token.is_some() {
        headers.push_str(" -H 'Authorization: Bearer TOKEN'");
    }
    format!("curl http://{address}/in/{name}{headers} -d '{body}'")
}

/// Sets the value at a JSON pointer.
fn put(body: &mut Value, pointer: &str, value: &str) {
    let mut place = body;
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        // A pointer may lead below the sample's `order`, which is a number.
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[token];
    }
    *place = Value::from(value);
}

fn description(handler: &HandlerConfig) -> String {
    let to = match &handler.to {
        Destination::Endpoint(to) => origin(to),
        Destination::Command { program, .. } => program.clone(),
    };
    format!("{}: {} → {to}", handler.name, handler.kinds.join(", "))
}

fn relay_description(relay: &RelayConfig) -> String {
    let kinds = relay.kinds.as_ref().map_or_else(|| "all kinds".to_owned(), |kinds| kinds.join(", "));
    format!("{}: {kinds} → {}", relay.name, destination(&relay.to))
}

fn destination(to: &RelayDestination) -> String {
    match to {
        RelayDestination::Endpoint(endpoint) => origin(endpoint),
        RelayDestination::Exchange(to) => format!("exchange {:?} of {}", to.exchange, to.broker),
    }
}

/// The address without the path, which may have a secret.
fn origin(endpoint: &EndpointConfig) -> String {
    endpoint.url.origin().ascii_serialization()
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
    fn an_address_of_all_interfaces_is_shown_as_loopback() {
        let shown = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(shown("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(shown("[::]:80"), "[::1]:80");
        assert_eq!(shown("10.0.0.1:80"), "10.0.0.1:80");
    }

    #[test]
    fn the_printed_request_fits_the_configuration() {
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
