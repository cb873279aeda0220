//! A relay: sends the messages of an outbox to a sink.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::outbox::sink::{ErasedSink, Sink};
use crate::{DeadHead, Retry, Start};

/// Sends published messages to a [`Sink`], each at least once. Messages of one ordering key arrive in the order in which they were
/// published.
///
/// A relay belongs to an [outbox](crate::OutboxBuilder::relay). It is registered in the database under its name, as a handler is:
/// the commands and methods for operators work on both.
///
/// ```
/// # use oncebox_core::{Outgoing, Relay, Sink, Verdict};
/// # use std::time::Duration;
/// struct Stdout;
///
/// impl Sink for Stdout {
///     async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
///         wave.iter().map(|message| { println!("{}", message.kind); Verdict::Confirmed }).collect()
///     }
/// }
///
/// let relay = Relay::new("events", Stdout).kinds(["order.*"]).keep_sent(Duration::from_secs(3_600));
/// ```
#[must_use]
pub struct Relay {
    pub(crate) name: String,
    pub(crate) kinds: Vec<String>,
    pub(crate) ordered: Option<DeadHead>,
    pub(crate) retry: Retry,
    pub(crate) start: Start,
    pub(crate) revive: bool,
    pub(crate) keep_sent: Duration,
    pub(crate) in_flight: usize,
    pub(crate) open_tasks: u32,
    pub(crate) sink: Arc<dyn ErasedSink>,
}

impl Relay {
    /// Creates a relay under a name, which stays the same for as long as the outbox exists.
    pub fn new(name: impl Into<String>, sink: impl Sink) -> Self {
        Self {
            name: name.into(),
            kinds: vec!["*".to_owned()],
            ordered: Some(DeadHead::Hold),
            retry: Retry::default(),
            start: Start::default(),
            revive: false,
            keep_sent: Duration::from_secs(24 * 60 * 60),
            in_flight: 1_000,
            open_tasks: 1_000,
            sink: Arc::new(sink),
        }
    }

    /// The kinds to send: a kind, or the beginning of kinds with a `*` behind it, such as `order.*`. Default: all. A new set of
    /// kinds counts for messages that the relay has not passed yet.
    pub fn kinds<K: Into<String>>(mut self, kinds: impl IntoIterator<Item = K>) -> Self {
        self.kinds = kinds.into_iter().map(Into::into).collect();
        // One order for equal sets, so that the registration does not change without need.
        self.kinds.sort();
        self.kinds.dedup();
        self
    }

    /// What happens to later messages of an ordering key behind a dead letter. Default: they wait for an operator.
    pub fn dead_head(mut self, policy: DeadHead) -> Self {
        self.ordered = Some(policy);
        self
    }

    /// Sends messages without regard to their ordering keys.
    pub fn unordered(mut self) -> Self {
        self.ordered = None;
        self
    }

    /// The number of attempts for a message that the sink refuses, and the delay between them. Default: 25, from 1 s to 10 min.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Where a new relay begins in the log. Default: the oldest message.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Allows a removed relay of this name to register again; it begins like a new one.
    pub fn revive(mut self) -> Self {
        self.revive = true;
        self
    }

    /// How long messages stay in the log for a replay, from the time when they were published. Default: 1 day.
    pub fn keep_sent(mut self, time: Duration) -> Self {
        self.keep_sent = time;
        self
    }

    /// The maximum number of messages without a verdict, in this process. Default: 1,000.
    pub fn in_flight(mut self, messages: usize) -> Self {
        self.in_flight = messages;
        self
    }

    /// The maximum number of refused messages in a lane that wait for a retry; further messages there wait. Default: 1,000.
    pub fn max_open_tasks(mut self, tasks: u32) -> Self {
        self.open_tasks = tasks;
        self
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("name", &self.name).field("kinds", &self.kinds).finish_non_exhaustive()
    }
}

/// The connection of a registered relay to its sink.
pub(crate) struct RelayLink {
    pub(crate) sink: Arc<dyn ErasedSink>,
    /// The maximum number of messages without a verdict.
    pub(crate) in_flight: usize,
    pub(crate) open_tasks: u32,
    pub(crate) keep_sent: Duration,
    /// A permit for each message without a verdict.
    pub(crate) permits: Arc<Semaphore>,
    /// Why messages have no verdict, if that was so for the last ones, and when they were sent.
    waits: Mutex<Option<(Instant, String)>>,
}

impl RelayLink {
    pub(crate) fn new(relay: &Relay) -> Self {
        Self {
            sink: relay.sink.clone(),
            in_flight: relay.in_flight,
            open_tasks: relay.open_tasks,
            keep_sent: relay.keep_sent,
            permits: Arc::new(Semaphore::new(relay.in_flight.min(Semaphore::MAX_PERMITS))),
            waits: Mutex::default(),
        }
    }

    /// Records why the sink does not confirm, or that it responds. It logs changes only, so that an outage does not fill the log.
    pub(crate) fn note(&self, relay: &str, waits: Option<String>) {
        let mut noted = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*noted, &waits) {
            (None, Some(why)) => {
                tracing::error!(relay, error = why, "the relay waits: its sink does not confirm");
            }
            (Some(_), None) => tracing::info!(relay, "the relay goes on"),
            _ => {}
        }
        *noted = waits.map(|why| (Instant::now(), why));
    }

    /// Why the sink does not confirm, if this process has tried it within this time.
    pub(crate) fn waits(&self, within: Duration) -> Option<String> {
        let noted = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        noted.as_ref().filter(|(tried, _)| tried.elapsed() <= within).map(|(_, why)| why.clone())
    }
}
