//! Processes: heartbeats, leases, and what happens when a lease expires.

use std::time::Duration;

use uuid::Uuid;

use crate::Error;
use crate::store::{HandlerId, Store};

/// A running process, until its lease expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
// Not host name and process number: two containers may share both.
pub struct ProcessId(pub Uuid);

/// A process at its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewProcess {
    /// Its id.
    pub id: ProcessId,
    /// Its name for people: host and process number.
    pub name: String,
    /// The handlers that it has.
    pub handlers: Vec<HandlerId>,
    /// Its lease expires after this time without a heartbeat.
    pub lease: Duration,
    /// The maximum number of messages that it has in flight in one lane.
    pub in_flight: u32,
    /// Whether it has an outbox, and so a mover.
    pub moves: bool,
}

/// Another running process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its id.
    pub id: ProcessId,
    /// Its name for people.
    pub name: String,
    /// The handlers that it has.
    pub handlers: Vec<HandlerId>,
    /// The number of its heartbeats; more than before means that it is alive.
    // A counter and not a time: a clock that jumps cannot change it.
    pub beats: i64,
    /// The time since its last heartbeat, by the database's clock.
    pub silent_for: Duration,
    /// Its lease expires after this time without a heartbeat.
    pub lease: Duration,
    /// Whether it has an outbox, and so a mover.
    pub moves: bool,
}

/// Keeps the running processes. All times are those of the database's clock.
pub trait Processes: Store {
    /// Adds a process.
    fn enter(&self, process: &NewProcess) -> impl Future<Output = Result<(), Error>> + Send;

    /// Writes a heartbeat, and returns whether the process was still registered. Where the store can, it uses a connection of its
    /// own.
    // Handlers may hold all connections of the pool, and that must not look like a crash.
    fn beat_process(&self, id: ProcessId) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Removes a process that ends normally. Its messages in flight are free at once, and no crash is recorded.
    fn leave(&self, id: ProcessId) -> impl Future<Output = Result<(), Error>> + Send;

    /// All processes except this one.
    fn peers(&self, id: ProcessId) -> impl Future<Output = Result<Vec<Peer>, Error>> + Send;

    /// Declares a process crashed, in one transaction, if its end was seen (`is_seen`) or its lease has expired.
    ///
    /// - The tasks that it ran are due now, each with one more crash.
    /// - In every lane of its handlers with waiting work, the crash is recorded with the handler's progress and first due task.
    /// - A lane needs crash care if one of these two is unchanged since the previous crash: for as many messages as the process
    ///   can have had in flight.
    ///
    /// Returns the number of tasks, or `None` if the process is alive or another process declared it crashed first.
    fn remove_crashed(
        &self,
        id: ProcessId,
        is_seen: bool,
    ) -> impl Future<Output = Result<Option<u64>, Error>> + Send;
}
