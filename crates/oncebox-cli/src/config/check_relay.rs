//! Checks a relay of a configuration, and completes it with defaults.

use oncebox_http::HttpSink;

use crate::config::check::{
    NAME_RULE, WrittenEndpoint, check_endpoint, check_not_zero, check_order, check_retry, is_name, start,
};
use crate::config::check_broker::{self, Brokers, check_exchange};
use crate::config::text::ConfigText;
use crate::config::{RelayConfig, RelayDestination, file};
use crate::exit::Usage;

/// The maximum number of requests without a response. Each has a connection of its own.
const DEFAULT_IN_FLIGHT: usize = 64;

pub(super) fn check_relay(
    name: &toml::Spanned<String>,
    relay: &file::RelaySection,
    brokers: &Brokers,
    text: &ConfigText<'_>,
) -> Result<RelayConfig, Usage> {
    if !is_name(name.get_ref()) {
        return Err(text.at(name, &format!("invalid relay name {:?}: {NAME_RULE}", name.get_ref())));
    }
    let (to, in_flight) = match (&relay.url, &relay.broker) {
        (Some(url), None) => {
            if let Some(written) = relay.exchange.as_ref().or(relay.routing_key.as_ref()) {
                return Err(text.at(written, "exchange and routing_key apply to brokers only: remove them"));
            }
            let written =
                WrittenEndpoint { url, headers: &relay.headers, allow_private: relay.allow_private };
            let endpoint = check_endpoint(&written, HttpSink::header_problem, text)?;
            (RelayDestination::Endpoint(endpoint), DEFAULT_IN_FLIGHT)
        }
        (None, Some(_)) => {
            let exchange = check_exchange(name, relay, brokers, text)?;
            (RelayDestination::Exchange(exchange), check_broker::DEFAULT_IN_FLIGHT)
        }
        (Some(_), Some(broker)) => {
            return Err(text.at(broker, "url and broker are both set: remove one of them"));
        }
        (None, None) => {
            return Err(
                text.at(name, "the relay has no destination: set url = \"https://…\" or broker = \"NAME\"")
            );
        }
    };
    let never = "the relay would never send";
    check_not_zero(relay.in_flight.as_ref(), "in_flight", never, text)?;
    check_not_zero(relay.max_open_tasks.as_ref(), "max_open_tasks", never, text)?;
    check_not_zero(relay.retry.max_attempts.as_ref(), "max_attempts", never, text)?;
    Ok(RelayConfig {
        name: name.get_ref().clone(),
        to,
        kinds: relay.kinds.as_ref().map(|kinds| check_kinds(kinds, text)).transpose()?,
        ordered: check_order(relay.ordered, relay.dead_head.as_ref(), text)?,
        in_flight: relay.in_flight.as_ref().map_or(in_flight, |n| *n.get_ref()),
        max_open_tasks: relay.max_open_tasks.as_ref().map(|n| *n.get_ref()),
        keep_sent: relay.keep_sent.map(|time| time.0),
        start: start(relay.start),
        revive: relay.revive,
        retry: check_retry(&relay.retry, text)?,
    })
}

/// Kinds, or beginnings of kinds with a `*` behind them.
fn check_kinds(
    written: &toml::Spanned<file::StringList>,
    text: &ConfigText<'_>,
) -> Result<Vec<String>, Usage> {
    let kinds = &written.get_ref().0;
    if kinds.is_empty() {
        return Err(text.at(written, "kinds is empty: list kinds, or remove it to send all of them"));
    }
    for kind in kinds {
        if kind.strip_suffix('*').unwrap_or(kind).contains('*') {
            let problem = format!(
                "invalid kind {kind:?}: write a kind, or its beginning with one '*' behind it, such as order.*"
            );
            return Err(text.at(written, &problem));
        }
        if !is_name(kind) {
            return Err(text.at(written, &format!("invalid kind {kind:?}: {NAME_RULE}")));
        }
    }
    Ok(kinds.clone())
}
