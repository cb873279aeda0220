//! Processes: heartbeats, leases, and what happens when a lease expires.

use std::time::Duration;

use uuid::Uuid;

use crate::Error;
use crate::store::{HandlerId, Store};

/// A running process, until its lease expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId(pub Uuid);

/// A process that starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewProcess {
    /// Its id.
    pub id: ProcessId,
    /// What people call it: host and number.
    pub name: String,
    /// The handlers that it has.
    pub handlers: Vec<HandlerId>,
    /// Its lease expires after this time without a heartbeat.
    pub lease: Duration,
    /// The maximum number of messages that it has in flight in one lane.
    pub in_hand: u32,
}

/// Another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its id.
    pub id: ProcessId,
    /// What people call it.
    pub name: String,
    /// The handlers that it has.
    pub handlers: Vec<HandlerId>,
    /// The number of its heartbeats; more than before means that it is alive.
    pub beats: i64,
    /// The time since its last heartbeat, by the database's clock.
    pub silent_for: Duration,
    /// Its lease expires after this time without a heartbeat.
    pub lease: Duration,
}

/// Keeps the running processes. All times are the database's.
pub trait Processes: Store {
    /// Adds a process.
    fn enter(&self, process: &NewProcess) -> impl Future<Output = Result<(), Error>> + Send;

    /// Writes a heartbeat, and returns whether the process was still registered. Where the store can, it uses a connection of its
    /// own.
    // Handlers may hold all connections of the pool, and that must not look like a crash.
    fn beat_process(&self, id: ProcessId) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Removes a process that ends normally: its messages in flight are free at once, and no crash is noted.
    fn leave(&self, id: ProcessId) -> impl Future<Output = Result<(), Error>> + Send;

    /// All processes but this one.
    fn peers(&self, id: ProcessId) -> impl Future<Output = Result<Vec<Peer>, Error>> + Send;

    /// Takes a process for dead in one transaction: if its end was seen, or it is still silent for longer than its lease. The tasks
    /// that it ran are due now, each with one crash more. In every lane of its handlers where something waits, the death is noted,
    /// with the handler's progress and its first task that is due. Care is needed there if one of the two is where it was at the
    /// death before, for as many messages as the process can have had in hand. How many tasks; `None` if it is alive or another
    /// process was faster.
    fn bury_process(
        &self,
        id: ProcessId,
        is_seen: bool,
    ) -> impl Future<Output = Result<Option<u64>, Error>> + Send;
}
