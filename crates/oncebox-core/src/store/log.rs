//! The log: messages in lanes, appended once and never changed.

use std::time::{Duration, SystemTime};

use crate::store::{HandlerId, Marker, Store, Unit};
use crate::{Error, Fingerprint, Headers, Key, StoredKey};

/// A message that is to be appended.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// Its kind.
    pub kind: String,
    /// What it is deduplicated by, with the kind; `None` appends it in any case.
    pub key: Option<StoredKey>,
    /// Of its body.
    pub fingerprint: Fingerprint,
    /// What it stays in order with.
    pub order_by: Option<Key>,
    /// What travels beside the body.
    pub headers: Headers,
    /// The encoded message.
    pub body: Vec<u8>,
    /// When the thing that it tells of happened.
    pub occurred_at: Option<SystemTime>,
    /// When it is to be handled, if not at once.
    pub due_at: Option<SystemTime>,
    /// How long ago it arrived, by this process's steady clock.
    pub waited: Duration,
}

/// Which lane a batch goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneChoice {
    /// This one: wait for it.
    Only(u16),
    /// Any lane that no other transaction appends to at the moment; this one if there is none.
    Prefer(u16),
}

impl LaneChoice {
    /// The lane that is named.
    pub fn lane(self) -> u16 {
        match self {
            Self::Only(lane) | Self::Prefer(lane) => lane,
        }
    }
}

/// Where a message sits in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The lane.
    pub lane: u16,
    /// The position in it, from 1.
    pub pos: i64,
}

/// What became of a message that was to be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// It is in the log.
    New(Place),
    /// Its key was known.
    Known {
        /// Where the first one sits, or sat; `None` for a key that was imported.
        place: Option<Place>,
        /// Of the first one's body.
        fingerprint: Option<Fingerprint>,
    },
}

/// A message that was to run inline, and is set apart for one handler.
#[derive(Clone, Debug)]
pub struct Spill {
    /// The handler.
    pub handler: HandlerId,
    /// Its marker; `None` where there is no dedup.
    pub marker: Option<Unit>,
    /// The message.
    pub message: NewMessage,
    /// Where it goes.
    pub lane: LaneChoice,
    /// How often the handler has failed on it.
    pub failures: u32,
    /// When it is to run.
    pub due_in: Duration,
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// Whether it is a dead letter already.
    pub is_dead: bool,
}

/// What became of a message that was to be set apart.
#[derive(Clone, Debug)]
pub enum Spilled {
    /// It is in the log, for this handler only.
    New(Place),
    /// Another copy was faster.
    Known(Marker),
    /// Another copy is running.
    Busy,
}

/// How far a step of pruning came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pruned {
    /// How many messages were deleted.
    pub deleted: u64,
    /// Where to go on; `None` at the end.
    pub next: Option<i64>,
}

/// Appends to the log, and removes what everybody has passed.
pub trait Log: Store {
    /// Appends messages to one lane in one transaction, in their order, and durably when it returns. Equal (kind, key) are not
    /// passed. The answers are in the order of the messages.
    ///
    /// Positions have no gaps and are visible in their order: the lane is locked first, and read by a later statement.
    fn append(
        &self,
        lane: LaneChoice,
        messages: &[NewMessage],
    ) -> impl Future<Output = Result<Vec<Appended>, Error>> + Send;

    /// Sets a message apart for one handler, in one transaction: its marker, which says known and not done
    /// ([`MarkerState::Spilled`](crate::store::MarkerState::Spilled)), the message with this handler as its target, and its task
    /// or dead letter. Waits for another transaction that holds the marker, no longer than `lock_timeout`.
    fn spill(
        &self,
        spill: &Spill,
        lock_timeout: Duration,
    ) -> impl Future<Output = Result<Spilled, Error>> + Send;

    /// Notes that keys were accepted elsewhere: copies of them will be duplicates. How many were new.
    fn import_accepted(
        &self,
        kind: &str,
        keys: &[StoredKey],
    ) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Deletes messages of one lane, beginning behind a position and looking at `positions` of them, that were received before
    /// this time, that all handlers of their kind that read the log have passed (of which there is at least one, unless the
    /// message was for one handler alone), that no task and no dead letter refers to; never the lane's newest one.
    // The newest one stays because the next append reads its position there.
    fn prune(
        &self,
        lane: u16,
        behind: i64,
        positions: u32,
        before_ms: i64,
    ) -> impl Future<Output = Result<Pruned, Error>> + Send;

    /// Deletes at most `limit` accept markers from before this time whose messages are pruned; how many.
    fn sweep_accepted(&self, before_ms: i64, limit: u32) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Notifies other processes of new messages in the log. This is a hint only, and never part of another transaction.
    // A lost hint costs time only: workers also look for work at intervals.
    fn announce(&self) -> impl Future<Output = Result<(), Error>> + Send {
        async { Ok(()) }
    }

    /// Calls back whenever another process announces something, until the connection is lost. Stores that cannot listen
    /// never return.
    fn listen(&self, heard: impl Fn() + Send) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = heard;
        // Neither success nor error: after both the caller listens again.
        std::future::pending()
    }
}
