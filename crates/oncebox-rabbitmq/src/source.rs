//! A queue as a source, and its options.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use oncebox_core::Error;
use oncebox_core::source::{Abilities, OpenedSession, Room, Source};

use crate::broker::Settings;
use crate::link::{Link, within};
use crate::publisher::Publisher;
use crate::requeues::Requeues;
use crate::session::{ONE_BY_ONE, RabbitSession};
use crate::settler::{Plan, RabbitSettler};
use crate::topology::{self, short};

/// The default of RabbitMQ since 3.8.17.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// The default maximum number of retries.
const MAX_RETRIES: u32 = 10;

/// Whether queues are created or checked when a source connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Declare {
    /// The queue must exist. What differs from the recommended topology is a warning.
    #[default]
    Check,
    /// The queue, its retry queues and its dead queue are created if they do not exist. An existing one must have the same arguments.
    Create,
    /// Nothing is checked. The queues of `Create` are expected to exist.
    Nothing,
}

/// The type of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueType {
    /// Replicated, and counts deliveries.
    #[default]
    Quorum,
    /// On one node. It does not count deliveries: a message that crashes its process is delivered again and again.
    Classic,
}

impl QueueType {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

/// A queue whose messages an inbox consumes.
///
/// | settlement | what happens |
/// |---|---|
/// | acknowledge | `basic.ack`, one for many deliveries where possible |
/// | retry | a copy goes to one of the queues `Q.retry.1s`, `.10s`, `.1m`, `.10m`, and comes back from there; then `basic.ack` |
/// | reject, or no retries left | a copy goes to the queue `Q.dead`, and a report to the fault exchange; then `basic.ack` |
///
/// Each copy is confirmed before the original is acknowledged. Without retry queues a failed message waits in this process, at most a
/// minute, and then goes back to its queue.
///
/// A retried message comes back behind later ones of its ordering key. Where their order matters, consume into a stored inbox, or one
/// that stores failed messages.
///
/// After a connection the source first takes one message at a time while the broker says that it delivers them again. So a message
/// that crashes its process counts against no other. A queue with a [single active consumer](Self::single_active_consumer) is the
/// exception.
///
/// The messages have these fields:
///
/// | field | property or header |
/// |---|---|
/// | kind | the property `type`, or the header `oncebox-kind` |
/// | id | the property `message_id` |
/// | ordering key | the header `oncebox-order-by` |
/// | time | the property `timestamp` |
/// | attempt | the header `oncebox-attempt`, which retries increase |
/// | headers | the headers; `cloudEvents:id` and `cloudEvents_id` are `ce-id`; `content-type`, `content-encoding`, `correlation-id`, `reply-to`; `rabbitmq-exchange` and `rabbitmq-routing-key` |
///
/// Messages in flight are in memory twice: with the handler, and for a copy.
#[derive(Debug)]
#[must_use]
pub struct RabbitSource {
    settings: Settings,
    publisher: Arc<Publisher>,
    options: QueueOptions,
    name: String,
    requeues: Arc<Requeues>,
}

/// The options of a source.
#[derive(Clone, Debug)]
pub(crate) struct QueueOptions {
    pub(crate) queue: String,
    pub(crate) declare: Declare,
    pub(crate) queue_type: QueueType,
    pub(crate) fault_exchange: Option<String>,
    pub(crate) is_single_active: bool,
    max_retries: u32,
    handler_timeout: Option<Duration>,
    consumer_timeout: Duration,
}

impl RabbitSource {
    pub(crate) fn new(settings: Settings, publisher: Arc<Publisher>, queue: String) -> Self {
        let options = QueueOptions {
            queue: queue.clone(),
            declare: Declare::default(),
            queue_type: QueueType::default(),
            fault_exchange: None,
            is_single_active: false,
            max_retries: MAX_RETRIES,
            handler_timeout: None,
            consumer_timeout: CONSUMER_TIMEOUT,
        };
        Self { settings, publisher, options, name: queue, requeues: Arc::default() }
    }

    /// The name of the source, which is part of keys that are made of delivery ids. Default: the name of the queue.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Whether queues are created or checked. Default: [`Declare::Check`].
    pub fn declare(mut self, declare: Declare) -> Self {
        self.options.declare = declare;
        self
    }

    /// The type of the queues. Default: [`QueueType::Quorum`].
    pub fn queue_type(mut self, queue_type: QueueType) -> Self {
        self.options.queue_type = queue_type;
        self
    }

    /// The maximum number of retries of a message; then it goes to the dead queue. Default: 10.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.options.max_retries = retries;
        self
    }

    /// The exchange that receives a message of the kind `oncebox.fault` for each message that goes to the dead queue. It must exist.
    /// Default: none.
    pub fn fault_exchange(mut self, exchange: impl Into<String>) -> Self {
        self.options.fault_exchange = Some(exchange.into());
        self
    }

    /// The queue has a single active consumer (`x-single-active-consumer`): of several processes one consumes, the others wait. Their
    /// messages keep the order of the queue, also when processes crash; with several active consumers they do not.
    ///
    /// Use it for a stored inbox with [ordered](https://docs.rs/oncebox/latest/oncebox/struct.HandlerOptions.html) handlers. In an
    /// inline inbox retries leave the order, and after a crash all messages that the process had in flight count as abandoned.
    pub fn single_active_consumer(mut self) -> Self {
        self.options.is_single_active = true;
        self
    }

    /// The longest time that a handler may take. The source warns when it connects if the broker's consumer time-out is shorter than
    /// twice this time.
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.options.handler_timeout = Some(limit);
        self
    }

    /// The broker's `consumer_timeout`, if it was changed. The protocol does not report it. Default: 30 min.
    pub fn consumer_timeout(mut self, limit: Duration) -> Self {
        self.options.consumer_timeout = limit;
        self
    }
}

impl RabbitSource {
    /// Connects, and checks the queues without consuming or declaring any. Returns what is risky, each with the remedy. An error says
    /// what keeps the source from working.
    pub async fn check(&self) -> Result<Vec<String>, Error> {
        let link = Link::open(&self.settings, &format!("check of {}", self.options.queue)).await?;
        let declare = match self.options.declare {
            Declare::Create | Declare::Check => Declare::Check,
            Declare::Nothing => Declare::Nothing,
        };
        let options = QueueOptions { declare, ..self.options.clone() };
        Ok(topology::prepare(&link, &self.settings, &options).await?.warnings)
    }
}

impl QueueOptions {
    /// What is risky, whatever the broker says.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.queue_type == QueueType::Classic {
            warnings.push(format!(
                "the queue {:?} is a classic one, which does not count deliveries: a message that crashes its process is \
                 delivered again and again. Use a quorum queue",
                self.queue
            ));
        }
        if let Some(limit) = self.handler_timeout
            && limit.saturating_mul(2) > self.consumer_timeout
        {
            warnings.push(format!(
                "the broker's consumer_timeout of {:?} is shorter than twice the handler's time-out of {limit:?}: the broker may \
                 close the channel while a handler runs. Raise consumer_timeout, or lower the handler's time-out",
                self.consumer_timeout
            ));
        }
        warnings
    }
}

impl Source for RabbitSource {
    type Session = RabbitSession;

    const ABILITIES: Abilities = Abilities::NONE.delays_retries().counts_deliveries().keeps_rejected();

    fn name(&self) -> &str {
        &self.name
    }

    async fn open(&mut self, prefetch: Room) -> Result<OpenedSession<RabbitSession>, Error> {
        static EPOCH: AtomicU64 = AtomicU64::new(1);
        let (settings, queue) = (&self.settings, &self.options.queue);
        let link = Link::open(settings, &format!("consumer of {queue}")).await?;
        let found = topology::prepare(&link, settings, &self.options).await?;
        let channel = link.channel().await?;
        let prefetch = u16::try_from(prefetch.messages.max(1)).unwrap_or(u16::MAX);
        // The end of a subscription makes another consumer the active one, while this one still has messages.
        let first = if self.options.is_single_active { prefetch } else { 1 };
        within(settings, "setting the prefetch", channel.basic_qos(first, BasicQosOptions::default()))
            .await?;
        let consuming = channel.basic_consume(
            short(queue)?,
            ONE_BY_ONE.into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let consumer = within(settings, &format!("consuming the queue {queue:?}"), consuming).await?;
        let plan = Plan {
            source: self.name.clone(),
            queue: queue.clone(),
            retries: found.retries,
            max_retries: self.options.max_retries,
            fault_exchange: self.options.fault_exchange.clone(),
        };
        let epoch = EPOCH.fetch_add(1, Ordering::Relaxed);
        let settler = RabbitSettler::new(epoch, channel, plan, self.publisher.clone(), self.requeues.clone());
        let is_full = first == prefetch;
        let session = RabbitSession::new(link, consumer, settler, queue.clone(), prefetch, is_full);
        Ok(OpenedSession { session, warnings: found.warnings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::RabbitMq;

    #[test]
    fn a_short_consumer_timeout_and_a_classic_queue_are_warned_of() {
        let source = || RabbitMq::new("amqp://localhost").unwrap().queue("q");
        assert!(source().options.warnings().is_empty());
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        assert!(source().handler_timeout(minutes(15)).options.warnings().is_empty());
        let warnings = source().handler_timeout(minutes(16)).options.warnings();
        assert!(warnings[0].contains("consumer_timeout"), "{warnings:?}");
        let raised = source().handler_timeout(minutes(16)).consumer_timeout(minutes(60));
        assert!(raised.options.warnings().is_empty());
        let warnings = source().queue_type(QueueType::Classic).options.warnings();
        assert!(warnings[0].contains("quorum"), "{warnings:?}");
    }
}
