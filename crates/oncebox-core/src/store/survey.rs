//! Survey: reads the log for operators, dashboards and metrics. No query here counts the messages of the log.

use std::time::{Duration, SystemTime};

use crate::store::{HandlerId, KnownHandler, Place, Store, StoredMessage};
use crate::{Error, Key};

/// The status of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerStatus {
    /// The handler.
    pub handler: KnownHandler,
    /// The number of positions that it has passed in all lanes, including those of other kinds and from before its start. Its
    /// growth shows the handler's rate. A replay decreases it.
    pub passed: u64,
    /// The number of positions ahead of its progress in all lanes, including those of other kinds.
    // Positions, not messages of its kinds: a difference of two numbers needs no scan of the log.
    pub lag: u64,
    /// The waiting time of the oldest message ahead of its progress.
    pub oldest_waiting: Option<Duration>,
    /// The number of tasks.
    pub tasks: u64,
    /// The number of dead letters.
    pub dead: u64,
}

/// The reason why a task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// It waits for the due time that its sender set.
    Scheduled,
    /// It waits for an earlier message of its ordering key.
    Parked,
    /// It waits for its next attempt, or its first.
    Turn,
    /// It does not wait: a process runs it outside a transaction.
    Running,
}

/// The state of a message for one handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// The message is ahead of the handler's progress.
    Waiting,
    /// The message is a task.
    Task {
        /// The number of failed attempts.
        failures: u32,
        /// The time of its next attempt.
        due_at: SystemTime,
        /// The last error.
        error: Option<String>,
        /// The reason why it waits.
        waits: Waits,
    },
    /// The handler's effect is committed.
    Done,
    /// The message is a dead letter: the handler has no attempts left.
    Dead {
        /// The last error.
        error: String,
    },
}

/// A message with its state for each handler.
#[derive(Clone, Debug)]
pub struct MessageStatus {
    /// The message.
    pub message: StoredMessage,
    /// When it was received.
    pub received_at: SystemTime,
    /// The handlers of its kind by name, with the message's state for each.
    pub handlers: Vec<(String, MessageState)>,
}

/// A task, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The handler's name.
    pub handler: String,
    /// The message's place in the log.
    pub place: Place,
    /// Its kind.
    pub kind: String,
    /// Its key.
    pub key: Option<Key>,
    /// The number of failed attempts.
    pub failures: u32,
    /// The time of its next attempt.
    pub due_at: SystemTime,
    /// The last error.
    pub error: Option<String>,
    /// The reason why it waits.
    pub waits: Waits,
}

/// An unhandled kind: messages of it were accepted, and no handler is registered for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnhandledKind {
    /// The kind.
    pub kind: String,
    /// The time at which its first message was accepted.
    pub since: SystemTime,
}

/// Reads the state of handlers and messages; never writes.
pub trait Survey: Store {
    /// The status of all handlers, sorted by name.
    fn handler_statuses(&self) -> impl Future<Output = Result<Vec<HandlerStatus>, Error>> + Send;

    /// The next messages that wait for a handler, sorted by lane and position.
    fn pending(
        &self,
        handler: HandlerId,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StoredMessage>, Error>> + Send;

    /// The messages of a lane behind a position, in order.
    fn messages(
        &self,
        lane: u16,
        behind: i64,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<MessageStatus>, Error>> + Send;

    /// The place of the message with this kind and key, if it is still in the log.
    // By its accept marker: an index of the messages' keys would cost an entry per message, for a rare query.
    fn find_message(
        &self,
        kind: &str,
        key: &Key,
    ) -> impl Future<Output = Result<Option<Place>, Error>> + Send;

    /// The tasks of one handler or of all, the next ones first.
    fn tasks(
        &self,
        handler: Option<&str>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Task>, Error>> + Send;

    /// The unhandled kinds: messages of them were accepted, and no handler is registered for them.
    fn unhandled_kinds(&self) -> impl Future<Output = Result<Vec<UnhandledKind>, Error>> + Send;
}
