//! Brokers of the configuration: sources and sinks on them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use oncebox::Error;
use oncebox::rabbitmq::{Declare, RabbitMq, RabbitSink, RabbitSource};

use crate::config::{BrokerConfig, BrokerSourceConfig, DeclareTopology, ExchangeConfig};

/// The brokers of a configuration. All sources and relays of one share its connection for publishing.
pub(crate) struct Brokers(BTreeMap<String, RabbitMq>);

impl Brokers {
    pub(crate) fn new(configs: &BTreeMap<String, BrokerConfig>) -> Result<Self> {
        let broker = |(name, config): (&String, &BrokerConfig)| Ok((name.clone(), config.rabbitmq()?));
        configs.iter().map(broker).collect::<Result<_, Error>>().map(Self).map_err(Into::into)
    }

    pub(crate) fn source(&self, config: &BrokerSourceConfig) -> Result<RabbitSource> {
        let source = self.find(&config.broker)?.queue(&config.queue).named(&config.name);
        let source = source.declare(match config.declare {
            DeclareTopology::Check => Declare::Check,
            DeclareTopology::Create => Declare::Create,
            DeclareTopology::Nothing => Declare::Nothing,
        });
        Ok(match &config.fault {
            Some(exchange) => source.fault_exchange(exchange),
            None => source,
        })
    }

    pub(crate) fn sink(&self, config: &ExchangeConfig) -> Result<RabbitSink> {
        Ok(self.find(&config.broker)?.exchange(&config.exchange).routing_key(&config.routing_key)?)
    }

    // The configuration names known brokers only.
    fn find(&self, name: &str) -> Result<&RabbitMq> {
        self.0.get(name).with_context(|| format!("no broker is named {name:?}"))
    }
}

impl BrokerConfig {
    /// The client for this broker. It connects later.
    pub(crate) fn rabbitmq(&self) -> Result<RabbitMq, Error> {
        let mut broker = RabbitMq::new(&self.url.0)?;
        if let Some(ca) = &self.tls.ca {
            broker = broker.ca(ca);
        }
        if let (Some(cert), Some(key)) = (&self.tls.cert, &self.tls.key) {
            broker = broker.client_certificate(cert, key);
        }
        Ok(if self.allow_plaintext { broker.allow_plaintext() } else { broker })
    }
}
