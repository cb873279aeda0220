//! The seam to brokers: what a source delivers, and how each delivery is settled.
//!
//! A [`Source`] knows how to connect. [`Source::open`] returns a [`Session`]: one connection that delivers messages, until it fails. A
//! [`Settler`] tells the broker what became of them. [`Inbox::consume`](crate::Inbox::consume) does the rest: it connects again,
//! limits the messages in flight, passes them to the inbox, and settles each of them after its commit.
//!
//! The contract of each trait is checked by the conformance suite for sources in `oncebox-testing`.
//!
//! **Stability.** These traits are for crates that connect a broker. They may gain methods with a default in any release.

mod received;
mod rules;

use std::time::Duration;

pub use received::{Received, ReceivedHeaders, ReceivedMessage};
pub use rules::{FieldLocation, InvalidMessage, SourceRules, text_at};

use crate::{Cause, Error, Settlement};

/// A place that delivers messages: a queue, a stream, a topic.
///
/// - `open` makes one attempt. The consumer tries again, with pauses, and logs what fails.
/// - An error says what is wrong and what to do. It names the setting, and never contains a password.
pub trait Source: Send + 'static {
    /// One connection to the broker.
    type Session: Session;

    /// What the broker can do.
    const ABILITIES: Abilities;

    /// The name of the source. Delivery ids are unique for one source only, so this name is part of keys that are made of them: it
    /// stays the same for as long as the source exists.
    fn name(&self) -> &str;

    /// Connects, checks queues and settings, and subscribes. The broker sends at most `prefetch` before something is settled, as far
    /// as it can limit that.
    fn open(
        &mut self,
        prefetch: Room,
    ) -> impl Future<Output = Result<OpenedSession<Self::Session>, Error>> + Send;
}

/// A session, and what an operator should know about it.
#[derive(Debug)]
pub struct OpenedSession<S> {
    /// The session.
    pub session: S,
    /// Settings that work but are risky, each with the remedy. They are logged once, and shown with the source's status.
    pub warnings: Vec<String>,
}

/// What a broker can do. The conformance suite tests what is declared here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abilities {
    /// It delivers a message again after a delay that the consumer chooses, or after one of its own choice.
    pub delays_retries: bool,
    /// It counts the deliveries of a message. A message that was [abandoned](ReceivedMessage::abandoned) before is then delivered by
    /// itself, while no other one of its session is unsettled: if it crashes its process again, that counts against no other message.
    pub counts_deliveries: bool,
    /// Its deliveries have a deadline, which can be extended.
    pub extends_deadlines: bool,
    /// A receipt of an earlier session still settles its message, with the settler of the current one.
    pub receipts_outlive_sessions: bool,
    /// It has a place for rejected messages.
    pub keeps_rejected: bool,
    /// It acknowledges positions: a message counts as settled when all earlier ones of its partition are settled too. Such a source
    /// cannot deliver one message again later, so its failed messages belong into the log: see [`Mode::spill`](crate::Mode::spill).
    pub settles_positions: bool,
}

impl Abilities {
    /// A broker that can do none of this: it delivers a message again when its session ends.
    pub const NONE: Self = Self {
        delays_retries: false,
        counts_deliveries: false,
        extends_deadlines: false,
        receipts_outlive_sessions: false,
        keeps_rejected: false,
        settles_positions: false,
    };

    /// It delivers a message again after a delay that the consumer chooses.
    #[must_use]
    pub const fn delays_retries(self) -> Self {
        Self { delays_retries: true, ..self }
    }

    /// It counts the deliveries of a message.
    #[must_use]
    pub const fn counts_deliveries(self) -> Self {
        Self { counts_deliveries: true, ..self }
    }

    /// Its deliveries have a deadline, which can be extended.
    #[must_use]
    pub const fn extends_deadlines(self) -> Self {
        Self { extends_deadlines: true, ..self }
    }

    /// A receipt of an earlier session still settles its message.
    #[must_use]
    pub const fn receipts_outlive_sessions(self) -> Self {
        Self { receipts_outlive_sessions: true, ..self }
    }

    /// It has a place for rejected messages.
    #[must_use]
    pub const fn keeps_rejected(self) -> Self {
        Self { keeps_rejected: true, ..self }
    }

    /// It acknowledges positions, not messages.
    #[must_use]
    pub const fn settles_positions(self) -> Self {
        Self { settles_positions: true, ..self }
    }
}

/// How much more may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The number of messages.
    pub messages: usize,
    /// The size of their bodies.
    pub bytes: usize,
}

impl Room {
    /// Whether nothing more may be in flight.
    pub const fn is_full(self) -> bool {
        self.messages == 0 || self.bytes == 0
    }
}

/// One connection that delivers messages, until it fails.
pub trait Session: Send + 'static {
    /// Identifies a delivery, for its settlement.
    type Receipt: Send + Sync + 'static;
    /// Settles the deliveries of this session.
    type Settler: Settler<Receipt = Self::Receipt>;

    /// The settler of this session. It works while [`next`](Self::next) waits.
    fn settler(&self) -> Self::Settler;

    /// Waits for at least one message, and returns those that are there, in the broker's order: at most `room.messages`, and bodies of
    /// at most `room.bytes` unless the first one alone is larger. With a full room it only waits for the end of the session.
    ///
    /// It can be dropped at any await: what has left the wire stays in the session, and the next call returns it. An error ends the
    /// session: a lost connection, a closed channel, a deleted queue.
    fn next(
        &mut self,
        room: Room,
    ) -> impl Future<Output = Result<Vec<Received<Self::Receipt>>, Error>> + Send;

    /// How often deliveries must be extended while their handlers run; `None` if they have no deadline.
    fn extend_every(&self) -> Option<Duration> {
        None
    }

    /// Ends the subscription and the connection, after everything is settled. What was delivered and not settled is delivered again
    /// to another consumer.
    fn close(self) -> impl Future<Output = ()> + Send
    where
        Self: Sized,
    {
        async {}
    }
}

/// Tells the broker what became of deliveries.
pub trait Settler: Clone + Send + Sync + 'static {
    /// Identifies a delivery.
    type Receipt: Send + Sync + 'static;

    /// Settles deliveries, and returns one result for each, in their order. The broker has received everything when this returns, as
    /// far as its protocol can tell. It is called again before an earlier call has ended. If it is dropped, the results are unknown.
    ///
    /// A retry at a source that [settles positions](Abilities::settles_positions) is never requested.
    fn settle(&self, decisions: Vec<Decision<Self::Receipt>>) -> impl Future<Output = Vec<Settled>> + Send;

    /// Extends the deadlines of these deliveries.
    fn extend(&self, held: &[&Self::Receipt]) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = held;
        async { Ok(()) }
    }
}

/// What is to become of a delivery.
#[derive(Clone, Debug)]
pub struct Decision<R> {
    /// The delivery.
    pub receipt: R,
    /// Whether it is acknowledged, delivered again, or rejected.
    pub settlement: Settlement,
    /// The error behind a retry or a rejection.
    pub reason: Option<Cause>,
}

/// The result of settling a delivery.
#[derive(Debug)]
#[non_exhaustive]
pub enum Settled {
    /// The broker has it.
    Done,
    /// The receipt is of a session that has ended: nothing was sent. The broker delivers the message again.
    Stale,
    /// It is not known whether the broker has it. If not, the settler sees to it that the message is delivered again, by ending the
    /// session if nothing else helps.
    Unknown(Error),
}
