//! Consuming: takes messages from a source, passes them to the inbox, and settles each of them after its commit.
//!
//! [`Inbox::consume`] returns a [`Consumer`]. It connects again after every lost session, limits the messages in flight, and never
//! settles a delivery before its outcome is durable. While the store does not respond, deliveries wait: they are neither rejected nor
//! returned, and no further ones are requested.

mod deliver;
mod flights;
mod session;
mod status;

use std::fmt;
use std::ops::AddAssign;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::timeout;

use deliver::Deliverer;
use flights::Flights;
use session::SessionEnd;
use status::StatusBoard;
pub use status::{ConsumerState, ConsumerStatus, ConsumerWatch};

use crate::backoff::Retries;
use crate::inbox::InboxStore;
use crate::source::{OpenedSession, Room, Session, Source, SourceRules};
use crate::{Error, Inbox};

/// The default number of messages in flight.
const PREFETCH: usize = 500;
/// The default size of their bodies.
const PREFETCH_BYTES: usize = 64 * 1024 * 1024;
/// The default time for messages in flight to end at shutdown.
const DRAIN: Duration = Duration::from_secs(30);
/// The delay of a retry that nothing else chooses: not the handler, not the consumer, and not the source.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The default number of abandoned deliveries after which a message is rejected.
const CRASHES_MAX: u32 = 5;
/// The pauses between attempts to connect are this many times longer than those of a store: up to 5 s.
const CONNECT_PAUSES: u32 = 5;
/// The maximum time of one attempt to connect. A source has shorter limits of its own, with better errors.
const OPEN_LIMIT: Duration = Duration::from_secs(60);
/// The maximum time for which a session may close.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Takes messages from a source, until it is told to stop. Made by [`Inbox::consume`].
#[must_use = "a consumer does nothing until it runs"]
pub struct Consumer<S: InboxStore, C: Source> {
    inbox: Inbox<S>,
    source: C,
    rules: SourceRules,
    settings: ConsumerSettings,
    board: Arc<StatusBoard>,
}

/// The settings of a consumer.
#[derive(Clone, Copy, Debug)]
struct ConsumerSettings {
    prefetch: Room,
    drain: Duration,
    retry_after: Option<Duration>,
    crashes_max: u32,
}

/// What a consumer has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumeReport {
    /// Deliveries that have arrived.
    pub received: u64,
    /// Deliveries that were acknowledged.
    pub acknowledged: u64,
    /// Deliveries that the source delivers again later.
    pub retried: u64,
    /// Deliveries that were rejected.
    pub rejected: u64,
    /// Deliveries without a settlement: their session had ended, or it is not known whether the source has received it. They are
    /// delivered again.
    pub unsettled: u64,
}

impl<S: InboxStore> Inbox<S> {
    /// Takes messages from a source: see [`Consumer::run`].
    ///
    /// The mode of the inbox decides when a delivery is acknowledged: inline after its handlers have committed, stored after the
    /// message is in the log.
    pub fn consume<C: Source>(&self, source: C) -> Consumer<S, C> {
        let rules = SourceRules::new(source.name());
        Consumer {
            board: Arc::new(StatusBoard::new(source.name(), self.observer())),
            inbox: self.clone(),
            source,
            rules,
            settings: ConsumerSettings {
                prefetch: Room { messages: PREFETCH, bytes: PREFETCH_BYTES },
                drain: DRAIN,
                retry_after: None,
                crashes_max: CRASHES_MAX,
            },
        }
    }
}

impl<S: InboxStore, C: Source> Consumer<S, C> {
    /// The maximum number of messages in flight. Default: 500.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.settings.prefetch.messages = messages.max(1);
        self
    }

    /// The maximum size of all messages in flight. One message alone may be larger. Default: 64 MiB.
    pub fn prefetch_bytes(mut self, bytes: usize) -> Self {
        self.settings.prefetch.bytes = bytes.max(1);
        self
    }

    /// Where messages have their key, kind and ordering key. Default: the usual places, see [`SourceRules::delivery`].
    pub fn rules(mut self, rules: SourceRules) -> Self {
        self.rules = rules;
        self
    }

    /// The kind of messages that name none. Default: the name of the source.
    pub fn default_kind(mut self, kind: impl Into<String>) -> Self {
        self.rules = self.rules.default_kind(kind);
        self
    }

    /// How long a shutdown waits for messages in flight. The others are delivered again to another consumer. Default: 30 s.
    pub fn drain_timeout(mut self, limit: Duration) -> Self {
        self.settings.drain = limit;
        self
    }

    /// The delay before a failed message is delivered again, where its handler has not chosen one. Default: the delays of the source, or
    /// 1 s at a source that has none.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.settings.retry_after = Some(delay);
        self
    }

    /// The number of deliveries without a settlement after which a message is rejected instead of handled, where the source counts
    /// them: it may crash each process that handles it. Default: 5. In a stored inbox it does not apply, because a crash there is one
    /// of the workers.
    pub fn max_crashes(mut self, crashes: u32) -> Self {
        self.settings.crashes_max = crashes.max(1);
        self
    }

    /// A view of this consumer's state, for health checks and dashboards. It stays valid while the consumer runs and afterwards.
    pub fn watch(&self) -> ConsumerWatch {
        ConsumerWatch::new(self.board.clone())
    }

    /// Consumes until `shutdown` is ready or the inbox is closed. Then it stops the intake, waits for messages in flight, settles them
    /// and disconnects.
    ///
    /// A source that cannot be reached is tried again and again, with pauses of up to 5 s. An error means that the inbox can never take
    /// a message.
    ///
    /// This can be dropped at any time. What was not settled is delivered again.
    pub async fn run(mut self, shutdown: impl Future<Output = ()> + Send) -> Result<ConsumeReport, Error> {
        self.inbox.check_consumes()?;
        let deliverer = Arc::new(Deliverer {
            inbox: self.inbox.clone(),
            rules: self.rules,
            abilities: C::ABILITIES,
            retry_after: self.settings.retry_after,
            crashes_max: self.settings.crashes_max,
            board: self.board.clone(),
        });
        let mut flights = Flights::new(self.settings.prefetch);
        let mut report = ConsumeReport::default();
        let closed = self.inbox.closed();
        let stopped = async move {
            tokio::select! {
                () = shutdown => {}
                () = closed => {}
            }
        };
        let mut shutdown = pin!(stopped.fuse());
        let mut retries = Retries::unlimited();
        // How long deliveries of lost sessions may still run.
        let mut grace = self.settings.drain;
        loop {
            self.board.connecting();
            let opened = tokio::select! {
                biased;
                () = &mut shutdown => break,
                opened = open(&mut self.source, self.settings.prefetch) => opened,
            };
            let OpenedSession { mut session, warnings } = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    self.board.lost(&error);
                    let pause = retries.next_pause() * CONNECT_PAUSES;
                    tokio::select! {
                        biased;
                        () = &mut shutdown => break,
                        () = tokio::time::sleep(pause) => continue,
                    }
                }
            };
            self.board.running(warnings);
            let consuming = session::Consuming {
                deliverer: &deliverer,
                flights: &mut flights,
                report: &mut report,
                drain: self.settings.drain,
            };
            match consuming.run(&mut session, shutdown.as_mut()).await {
                SessionEnd::Drained => {
                    let _ = timeout(CLOSE_LIMIT, session.close()).await;
                    grace = Duration::ZERO;
                    break;
                }
                SessionEnd::LostWhileDraining => break,
                SessionEnd::Lost { error, has_worked } => {
                    drop(session);
                    self.board.lost(&error);
                    if has_worked {
                        retries.reset();
                    }
                    let pause = retries.next_pause();
                    tokio::select! {
                        biased;
                        () = &mut shutdown => break,
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            }
        }
        // Their sessions are gone: the effects of what still runs are committed or not, and the source delivers all of it again.
        flights.abandon(grace, &mut report).await;
        self.board.closed();
        Ok(report)
    }
}

/// One attempt to connect.
async fn open<C: Source>(source: &mut C, prefetch: Room) -> Result<OpenedSession<C::Session>, Error> {
    let opened = timeout(OPEN_LIMIT, source.open(prefetch)).await;
    opened.unwrap_or_else(|_elapsed| {
        let limit = OPEN_LIMIT.as_secs();
        Err(Error::new(
            crate::ErrorKind::Unavailable,
            format!("the source did not connect within {limit} s: check that it responds at its address"),
        ))
    })
}

impl AddAssign for ConsumeReport {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.acknowledged += other.acknowledged;
        self.retried += other.retried;
        self.rejected += other.rejected;
        self.unsettled += other.unsettled;
    }
}

impl<S: InboxStore, C: Source> fmt::Debug for Consumer<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("source", &self.rules.name)
            .field("prefetch", &self.settings.prefetch)
            .finish_non_exhaustive()
    }
}
