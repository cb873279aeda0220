//! The log: messages in lanes, appended once and never changed.

use std::time::{Duration, SystemTime};

use crate::store::{HandlerId, Marker, Store, Unit};
use crate::{Error, Fingerprint, Headers, Key, MessageId, StoredKey};

/// A message that is to be appended.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// Its kind.
    pub kind: String,
    /// The key that deduplicates it, together with the kind; `None` appends it in any case.
    pub key: Option<StoredKey>,
    /// The fingerprint of its body.
    pub fingerprint: Fingerprint,
    /// Its ordering key.
    pub order_by: Option<Key>,
    /// Its headers.
    pub headers: Headers,
    /// The encoded message.
    pub body: Vec<u8>,
    /// The time of the event that it reports.
    pub occurred_at: Option<SystemTime>,
    /// Its due time, if it is not to be handled at once.
    pub due_at: Option<SystemTime>,
    /// The time since it arrived, by this process's steady clock.
    // A duration, not a time: the clocks of process and database may differ.
    pub waited: Duration,
    /// Its id, if it was published.
    pub message_id: Option<MessageId>,
}

/// The choice of a lane for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneChoice {
    /// This lane; wait for it.
    Only(u16),
    /// Any lane to which no other transaction appends at the moment; this one if all are in use.
    // Only for messages without an ordering key: messages of one ordering key must share a lane.
    Prefer(u16),
}

impl LaneChoice {
    /// The lane of the choice.
    pub fn lane(self) -> u16 {
        match self {
            Self::Only(lane) | Self::Prefer(lane) => lane,
        }
    }
}

/// The place of a message in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The lane.
    pub lane: u16,
    /// The position in it, from 1.
    pub pos: i64,
}

/// The result of appending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// It is in the log.
    New(Place),
    /// Its key was known.
    Known {
        /// The place of the first message, which may be pruned by now; `None` for an imported key.
        place: Option<Place>,
        /// The fingerprint of the first message's body.
        fingerprint: Option<Fingerprint>,
    },
}

/// An inline message that moves to the log for one handler.
#[derive(Clone, Debug)]
pub struct Spill {
    /// The handler.
    pub handler: HandlerId,
    /// Its marker; `None` if the handler runs without dedup.
    pub marker: Option<Unit>,
    /// The message.
    pub message: NewMessage,
    /// The lane to which it is appended.
    pub lane: LaneChoice,
    /// The number of failed attempts of this handler.
    pub failures: u32,
    /// The time until its next attempt.
    pub due_in: Duration,
    /// The error of the last attempt, if there was one.
    pub error: Option<String>,
    /// Whether it becomes a dead letter at once.
    pub is_dead: bool,
}

/// The result of moving an inline message to the log.
#[derive(Clone, Debug)]
pub enum Spilled {
    /// It is in the log, for this handler only.
    New(Place),
    /// Another copy was first.
    Known(Marker),
    /// Another copy is in flight.
    Busy,
}

/// The messages of a lane that one step of pruning examines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PruneRange {
    /// The position behind which it begins.
    pub behind: i64,
    /// The maximum number of positions.
    pub positions: u32,
    /// Messages received at this time or later stay. `None`: messages that a handler reads stay, whatever their age.
    // A process that only relays does not know how long the handlers' messages are to be kept.
    pub before_ms: Option<i64>,
}

/// The result of one step of pruning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pruned {
    /// The number of deleted messages.
    pub deleted: u64,
    /// The position behind which the next step begins; `None` at the end.
    pub next: Option<i64>,
}

/// Appends messages to the log, and removes messages that all handlers have passed.
pub trait Log: Store {
    /// Appends messages to one lane in one transaction, in their order. When it returns, they are durable. No two of the messages
    /// have the same kind and key. The results are in the order of the messages.
    ///
    /// Positions have no gaps and become visible in their order. For this the store locks the lane first, and reads the newest
    /// position with a later statement.
    // Progress is one number per lane: a position that became visible late would never be read.
    fn append(
        &self,
        lane: LaneChoice,
        messages: &[NewMessage],
    ) -> impl Future<Output = Result<Vec<Appended>, Error>> + Send;

    /// Moves an inline message to the log for one handler. One transaction writes its marker as known and not done
    /// ([`MarkerState::Spilled`](crate::store::MarkerState::Spilled)), the message with this handler as its target, and its task
    /// or dead letter. It waits up to `lock_timeout` for another transaction that holds the marker.
    // One transaction, because a crash must not leave a marker whose message is missing.
    fn spill(
        &self,
        spill: &Spill,
        lock_timeout: Duration,
    ) -> impl Future<Output = Result<Spilled, Error>> + Send;

    /// Records keys that were accepted elsewhere, so that copies are duplicates. Returns the number of new ones.
    fn import_accepted(
        &self,
        kind: &str,
        keys: &[StoredKey],
    ) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Deletes messages of one lane within a range. It deletes those that
    ///
    /// - have no task and no dead letter,
    /// - have been passed by all handlers and relays that read them. There must be at least one such reader, unless the message
    ///   was for a single handler only,
    /// - are older than each of these relays keeps sent messages.
    ///
    /// It never deletes the lane's newest message.
    // The newest one stays because the next append reads its position there.
    fn prune(&self, lane: u16, range: PruneRange) -> impl Future<Output = Result<Pruned, Error>> + Send;

    /// Deletes up to `limit` accept markers from before this time whose messages are pruned, and returns their number.
    fn sweep_accepted(&self, before_ms: i64, limit: u32) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Notifies other processes of new messages in the log. This is a hint only, and never part of another transaction.
    // A lost hint costs time only: workers also look for work at intervals.
    fn announce(&self) -> impl Future<Output = Result<(), Error>> + Send {
        async { Ok(()) }
    }

    /// Calls back whenever another process announces new messages, until the connection is lost. A store that cannot listen
    /// never returns.
    fn listen(&self, heard: impl Fn() + Send) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = heard;
        // Neither success nor error: after both the caller listens again.
        std::future::pending()
    }
}
