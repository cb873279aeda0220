//! Reading the log: what operators, dashboards and metrics ask. Nothing here counts messages.

use std::time::{Duration, SystemTime};

use crate::store::{HandlerId, KnownHandler, Place, Store, StoredMessage};
use crate::{Error, Key};

/// How a handler is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerStatus {
    /// Which one.
    pub handler: KnownHandler,
    /// How many positions it has passed, over all lanes, those of other kinds and from before its start included: what it grows by
    /// is what the handler got done. A replay takes some back.
    pub passed: u64,
    /// How many positions are ahead of its progress, over all lanes; those of other kinds included.
    pub lag: u64,
    /// How long the oldest message ahead of its progress has waited.
    pub oldest_waiting: Option<Duration>,
    /// Messages set apart: waiting for another try, or for their time.
    pub tasks: u64,
    /// Dead letters.
    pub dead: u64,
}

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// For the time that its sender set.
    Scheduled,
    /// For an earlier message of its ordering key.
    Parked,
    /// For its turn: another try, or the first one.
    Turn,
    /// For nothing: a process runs it outside of a transaction.
    Running,
}

/// What became of a message for one handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// Ahead of the handler's progress.
    Waiting,
    /// Set apart.
    Task {
        /// How often the handler has failed on it.
        failures: u32,
        /// When it is to run.
        due_at: SystemTime,
        /// The last error.
        error: Option<String>,
        /// What it waits for.
        waits: Waits,
    },
    /// The handler's effect is committed.
    Done,
    /// The handler used up its attempts.
    Dead {
        /// The last error.
        error: String,
    },
}

/// A message with what became of it.
#[derive(Clone, Debug)]
pub struct MessageStatus {
    /// The message.
    pub message: StoredMessage,
    /// When it was received.
    pub received_at: SystemTime,
    /// Each handler of its kind, by name, and how far it has come.
    pub handlers: Vec<(String, MessageState)>,
}

/// A message set apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The handler's name.
    pub handler: String,
    /// Where the message sits.
    pub place: Place,
    /// Its kind.
    pub kind: String,
    /// Its key.
    pub key: Option<Key>,
    /// How often the handler has failed on it.
    pub failures: u32,
    /// When it is to run.
    pub due_at: SystemTime,
    /// The last error.
    pub error: Option<String>,
    /// What it waits for.
    pub waits: Waits,
}

/// A kind of which messages were accepted, and that no handler takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnhandledKind {
    /// The kind.
    pub kind: String,
    /// When the first message of it was accepted.
    pub since: SystemTime,
}

/// Answers questions about the log; never writes.
pub trait Survey: Store {
    /// All handlers, by name, and how they are doing.
    fn handler_statuses(&self) -> impl Future<Output = Result<Vec<HandlerStatus>, Error>> + Send;

    /// The next messages that wait for a handler, by lane and position.
    fn pending(
        &self,
        handler: HandlerId,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StoredMessage>, Error>> + Send;

    /// Messages of a lane behind a position, in order.
    fn messages(
        &self,
        lane: u16,
        behind: i64,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<MessageStatus>, Error>> + Send;

    /// Where the message of that kind and key sits, as long as it is there.
    fn find_message(
        &self,
        kind: &str,
        key: &Key,
    ) -> impl Future<Output = Result<Option<Place>, Error>> + Send;

    /// Messages set apart, for one handler or all, the next first.
    fn tasks(
        &self,
        handler: Option<&str>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Task>, Error>> + Send;

    /// Unhandled kinds: messages of them were accepted, and no handler takes them.
    fn unhandled_kinds(&self) -> impl Future<Output = Result<Vec<UnhandledKind>, Error>> + Send;
}
