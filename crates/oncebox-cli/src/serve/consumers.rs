//! The consumers of the sources that brokers deliver.

use std::time::Duration;

use anyhow::Result;
use oncebox::{ConsumerStatus, ConsumerWatch, Inbox, LogStore};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::broker::Brokers;
use crate::config::Config;
use crate::exit::chain_text;
use crate::serve::stopped;

/// Takes messages from brokers until the program stops.
pub(super) struct Consumers {
    running: JoinSet<()>,
    watches: Vec<ConsumerWatch>,
}

impl Consumers {
    pub(super) fn start<S: LogStore>(
        inbox: &Inbox<S>,
        config: &Config,
        stop: &watch::Receiver<bool>,
    ) -> Result<Self> {
        let brokers = Brokers::new(&config.brokers)?;
        let mut consumers = Self { running: JoinSet::new(), watches: Vec::new() };
        for source in &config.broker_sources {
            let mut consumer = inbox.consume(brokers.source(source)?).rules(source.rules.clone());
            if let Some(prefetch) = source.prefetch {
                consumer = consumer.prefetch(prefetch);
            }
            consumers.watches.push(consumer.watch());
            let (name, stop) = (source.name.clone(), stopped(stop.clone()));
            consumers.running.spawn(async move {
                match consumer.run(stop).await {
                    Ok(report) => tracing::info!(
                        source = name,
                        received = report.received,
                        acknowledged = report.acknowledged,
                        rejected = report.rejected,
                        "the source is closed"
                    ),
                    Err(error) => {
                        tracing::error!(source = name, error = chain_text(&error), "the source stopped");
                    }
                }
            });
        }
        Ok(consumers)
    }

    /// Views of all consumers.
    pub(super) fn watches(&self) -> Vec<ConsumerWatch> {
        self.watches.clone()
    }

    /// Waits until all have finished their messages in flight.
    pub(super) async fn finish(mut self) {
        while self.running.join_next().await.is_some() {}
    }
}

/// A source as `GET /sources` and `oncebox sources --json` show it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct SourceReport {
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) for_ms: u64,
    pub(crate) sessions: u64,
    pub(crate) received: u64,
    pub(crate) acknowledged: u64,
    pub(crate) retried: u64,
    pub(crate) rejected: u64,
    pub(crate) in_flight: usize,
    pub(crate) oldest_unsettled_ms: Option<u64>,
    /// Why the source cannot be reached, or why its messages wait.
    pub(crate) error: Option<String>,
    pub(crate) warnings: Vec<String>,
}

impl From<ConsumerStatus> for SourceReport {
    fn from(status: ConsumerStatus) -> Self {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            name: status.source,
            state: status.state.name().to_owned(),
            for_ms: ms(status.for_time),
            sessions: status.sessions,
            received: status.received,
            acknowledged: status.acknowledged,
            retried: status.retried,
            rejected: status.rejected,
            in_flight: status.in_flight,
            oldest_unsettled_ms: status.oldest_unsettled.map(ms),
            error: status.source_error.or(status.store_error),
            warnings: status.warnings,
        }
    }
}
