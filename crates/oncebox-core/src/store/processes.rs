//! Processes: who is at work, and who has died at it.

use std::time::Duration;

use uuid::Uuid;

use crate::Error;
use crate::store::{HandlerId, Store};

/// One process at work, for as long as it is not taken for dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId(pub Uuid);

/// A process that begins to work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewProcess {
    /// Its id.
    pub id: ProcessId,
    /// What people call it: host and number.
    pub name: String,
    /// The handlers that it has.
    pub handlers: Vec<HandlerId>,
    /// It is taken for dead after being silent for so long.
    pub lease: Duration,
    /// The most messages that it has in hand in one lane.
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
    /// How often it has been heard of; more than before means that it is alive.
    pub beats: i64,
    /// How long it has been silent, by the database's clock.
    pub silent_for: Duration,
    /// It is taken for dead after being silent for so long.
    pub lease: Duration,
}

/// Knows the processes at work. All times are the database's.
pub trait Processes: Store {
    /// A process begins to work.
    fn enter(&self, process: &NewProcess) -> impl Future<Output = Result<(), Error>> + Send;

    /// A process is alive; whether it was still taken for that. On a connection that waits for no other one, where the store can.
    fn beat_process(&self, id: ProcessId) -> impl Future<Output = Result<bool, Error>> + Send;

    /// A process ends as it should: what it had in hand is free at once, and nobody needs to be careful.
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
