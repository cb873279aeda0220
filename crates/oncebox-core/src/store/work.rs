//! Work: reading a lane behind a handler's progress, and settling what was read.

use std::time::{Duration, SystemTime};

use crate::store::{HandlerId, Place, Store};
use crate::{Error, Headers, Key};

/// A message in the log, as a handler is to see it.
#[derive(Clone, Debug)]
pub struct StoredMessage {
    /// Where it sits.
    pub place: Place,
    /// Its kind.
    pub kind: String,
    /// What it is deduplicated by.
    pub key: Option<Key>,
    /// What it stays in order with.
    pub order_by: Option<Key>,
    /// What travels beside the body.
    pub headers: Headers,
    /// The encoded message; an operator's correction, if there is one.
    pub body: Vec<u8>,
    /// When the thing that it tells of happened.
    pub occurred_at: Option<SystemTime>,
    /// When it is to be handled, if that was said.
    pub due_at: Option<SystemTime>,
    /// How long it is still to wait for that.
    pub due_in: Duration,
    /// How long ago it was received.
    pub waited: Duration,
    /// How often this handler has failed on it.
    pub failures: u32,
    /// What a task carries along: the failed tries so far, in the store's own form.
    pub attempts: Option<String>,
    /// Whether the body is an operator's correction.
    pub edited: bool,
}

/// Where there is work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// For this handler.
    pub handler: HandlerId,
    /// In this lane.
    pub lane: u16,
    /// Whether messages are ahead of its progress.
    pub messages: bool,
    /// Whether tasks are due.
    pub tasks: bool,
}

/// What a look at all lanes saw.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Where there is work.
    pub waiting: Vec<Waiting>,
    /// When the next task is due, if none is now.
    pub next_due: Option<Duration>,
}

/// Who takes messages, and from where.
#[derive(Clone, Copy, Debug)]
pub struct Taker<'a> {
    /// The handler.
    pub handler: HandlerId,
    /// Its kinds.
    pub kinds: &'a [String],
    /// The lane.
    pub lane: u16,
}

/// How much is taken at once.
#[derive(Clone, Copy, Debug)]
pub struct TakeLimits {
    /// At most so many messages.
    pub messages: u32,
    /// Looking at no more than so many positions.
    pub positions: u32,
    /// Ending with the one that exceeds this, in bytes of bodies.
    pub bytes: u64,
}

/// What was taken from a lane. The lane is locked until the transaction ends.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The handler's epoch in this lane.
    pub epoch: i32,
    /// Its progress so far.
    pub from: i64,
    /// Its progress when all of these are settled.
    pub reached: i64,
    /// The lane's newest position.
    pub head: i64,
    /// The messages in between, in order.
    pub messages: Vec<StoredMessage>,
}

/// How far a handler has come in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The handler.
    pub handler: HandlerId,
    /// The lane.
    pub lane: u16,
    /// The epoch; a replay begins a new one.
    pub epoch: i32,
    /// The position.
    pub pos: i64,
}

/// A message that is set apart for a later try, or for its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetApart {
    /// Where it sits.
    pub pos: i64,
    /// What it stays in order with.
    pub order_by: Option<Key>,
    /// How often the handler has failed on it.
    pub failures: u32,
    /// When it is to run.
    pub due_in: Duration,
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// The failed tries before this one, as they were taken.
    pub attempts: Option<String>,
    /// An operator's correction of the body.
    pub body: Option<Vec<u8>>,
}

/// What became of messages beside the progress.
#[derive(Clone, Debug, Default)]
pub struct Settled {
    /// Messages that are to run later.
    pub apart: Vec<SetApart>,
    /// Messages that used up their attempts.
    pub dead: Vec<SetApart>,
}

impl Settled {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.apart.is_empty() && self.dead.is_empty()
    }
}

/// Hands out the messages of the log, and keeps what became of them.
pub trait Work: Store {
    /// Where there is work for these handlers. One question for all of them, which writes nothing.
    fn look(&self, handlers: &[HandlerId]) -> impl Future<Output = Result<Look, Error>> + Send;

    /// Locks a lane for a handler, and by a later statement reads its progress and the messages behind it; `None` if another
    /// transaction has the lane, or the handler is gone. Makes ready for handlers as [`arm`](Store::arm) does.
    fn take(
        &self,
        tx: &mut Self::Tx,
        taker: Taker<'_>,
        limits: TakeLimits,
    ) -> impl Future<Output = Result<Option<Batch>, Error>> + Send;

    /// Locks a lane for a handler, and by a later statement takes its tasks that are due out of the table: what is not put
    /// back by [`settle`](Work::settle) is done. Otherwise as [`take`](Work::take).
    fn take_tasks(
        &self,
        tx: &mut Self::Tx,
        taker: Taker<'_>,
        limit: u32,
    ) -> impl Future<Output = Result<Option<Vec<StoredMessage>>, Error>> + Send;

    /// Writes what became of messages, after all handlers of the transaction have run.
    fn settle(
        &self,
        tx: &mut Self::Tx,
        taker: Taker<'_>,
        settled: &Settled,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Commits as [`commit_and_begin`](Store::commit_and_begin) does, with the handler's progress appended behind the proof.
    fn finish(
        &self,
        tx: Self::Tx,
        progress: Option<Progress>,
    ) -> impl Future<Output = Result<Option<Self::Begun>, Error>> + Send;
}
