//! Checks brokers, the sources that they deliver, and relays to them.

use std::collections::BTreeMap;

use oncebox::source::SourceRules;

use crate::config::check::{NAME_RULE, is_source_name};
use crate::config::text::ConfigText;
use crate::config::{
    BrokerConfig, BrokerSourceConfig, DeclareTopology, ExchangeConfig, SecretUrl, TlsFiles, file,
};
use crate::exit::Usage;

/// The maximum number of messages without a confirm.
pub(super) const DEFAULT_IN_FLIGHT: usize = 1_000;
/// Messages are published under their kind.
const DEFAULT_ROUTING_KEY: &str = "{kind}";

/// The brokers of a file.
pub(super) type Brokers = BTreeMap<toml::Spanned<String>, file::BrokerSection>;

pub(super) fn check_broker(
    name: &toml::Spanned<String>,
    broker: &file::BrokerSection,
    text: &ConfigText<'_>,
) -> Result<(String, BrokerConfig), Usage> {
    if !is_source_name(name.get_ref()) {
        return Err(text.at(name, &format!("invalid broker name {:?}: {NAME_RULE}", name.get_ref())));
    }
    let url = text.expand(&broker.url)?;
    let tls = &broker.tls;
    match (&tls.cert, &tls.key) {
        (Some(cert), None) => return Err(text.at(cert, "tls.cert needs its private key: set tls.key")),
        (None, Some(key)) => return Err(text.at(key, "tls.key needs its certificate: set tls.cert")),
        _ => {}
    }
    let path =
        |path: &Option<toml::Spanned<std::path::PathBuf>>| path.as_ref().map(|it| it.get_ref().clone());
    let tls = TlsFiles { ca: path(&tls.ca), cert: path(&tls.cert), key: path(&tls.key) };
    let config = BrokerConfig {
        name: name.get_ref().clone(),
        url: SecretUrl(url),
        tls,
        allow_plaintext: broker.allow_plaintext,
    };
    // The error of the client names the setting, and this one the line. As it is written: a variable may hold a secret.
    let _valid = config.rabbitmq().map_err(|error| text.at(&broker.url, &error.to_string()))?;
    Ok((config.name.clone(), config))
}

/// The source of a broker; `None` for a source of HTTP requests.
pub(super) fn check_broker_source(
    name: &toml::Spanned<String>,
    source: &file::SourceSection,
    rules: &SourceRules,
    brokers: &Brokers,
    text: &ConfigText<'_>,
) -> Result<Option<BrokerSourceConfig>, Usage> {
    if source.protocol == file::SourceType::Http {
        let needs = |written: Option<std::ops::Range<usize>>, key: &str| match written {
            Some(span) => Err(text.at_span(
                span,
                &format!("{key} applies to sources of a broker only: set type = \"rabbitmq\", or remove it"),
            )),
            None => Ok(()),
        };
        needs(source.broker.as_ref().map(toml::Spanned::span), "broker")?;
        needs(source.queue.as_ref().map(toml::Spanned::span), "queue")?;
        needs(source.prefetch.as_ref().map(toml::Spanned::span), "prefetch")?;
        needs(source.declare.as_ref().map(toml::Spanned::span), "declare")?;
        needs(source.fault.as_ref().map(toml::Spanned::span), "fault")?;
        return Ok(None);
    }
    let Some(queue) = source.queue.as_ref().filter(|queue| !queue.get_ref().is_empty()) else {
        return Err(text.at(name, "the source has no queue: set queue = \"…\""));
    };
    if let Some(prefetch) = &source.prefetch
        && *prefetch.get_ref() == 0
    {
        return Err(text.at(prefetch, "prefetch is 0, so nothing would arrive: set 1 or more"));
    }
    Ok(Some(BrokerSourceConfig {
        name: name.get_ref().clone(),
        broker: known_broker(name, source.broker.as_ref(), brokers, text)?,
        queue: queue.get_ref().clone(),
        prefetch: source.prefetch.as_ref().map(|n| usize::from(*n.get_ref())),
        declare: match source.declare.as_ref().map(|declare| *declare.get_ref()).unwrap_or_default() {
            file::DeclareSetting::Check => DeclareTopology::Check,
            file::DeclareSetting::Create => DeclareTopology::Create,
            file::DeclareSetting::Nothing => DeclareTopology::Nothing,
        },
        fault: source.fault.as_ref().map(|fault| fault.get_ref().clone()),
        rules: rules.clone(),
    }))
}

/// The exchange of a relay.
pub(super) fn check_exchange(
    name: &toml::Spanned<String>,
    relay: &file::RelaySection,
    brokers: &Brokers,
    text: &ConfigText<'_>,
) -> Result<ExchangeConfig, Usage> {
    if let Some((header, _)) = relay.headers.first_key_value() {
        return Err(text.at(header, "headers apply to URLs only: a broker gets those of the message"));
    }
    let Some(exchange) = &relay.exchange else {
        return Err(text
            .at(name, "the relay has no exchange: set exchange = \"…\", or \"\" for the default exchange"));
    };
    Ok(ExchangeConfig {
        broker: known_broker(name, relay.broker.as_ref(), brokers, text)?,
        exchange: exchange.get_ref().clone(),
        routing_key: relay
            .routing_key
            .as_ref()
            .map_or_else(|| DEFAULT_ROUTING_KEY.to_owned(), |key| key.get_ref().clone()),
    })
}

/// The name of a broker of this file.
fn known_broker(
    name: &toml::Spanned<String>,
    broker: Option<&toml::Spanned<String>>,
    brokers: &Brokers,
    text: &ConfigText<'_>,
) -> Result<String, Usage> {
    let Some(broker) = broker else {
        return Err(text.at(name, "no broker is named: set broker = \"NAME\", and its url in [brokers.NAME]"));
    };
    let known: Vec<&str> = brokers.keys().map(|name| name.get_ref().as_str()).collect();
    if known.contains(&broker.get_ref().as_str()) {
        return Ok(broker.get_ref().clone());
    }
    let advice = match known.is_empty() {
        true => format!("add [brokers.{}] with its url", broker.get_ref()),
        false => format!("the configured brokers are {}", known.join(", ")),
    };
    Err(text.at(broker, &format!("unknown broker {:?}: {advice}", broker.get_ref())))
}
