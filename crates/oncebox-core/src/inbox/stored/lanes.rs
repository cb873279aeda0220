//! Lanes: the work of handlers that run in the lane's transaction.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::RwLock;

use crate::inbox::InboxStore;
use crate::inbox::engine::Engine;
use crate::inbox::stored::LogShared;
use crate::inbox::stored::presence::Presence;
use crate::inbox::stored::unknown::UnknownCommit;
use crate::store::HandlerId;

/// Visits lanes: takes messages or tasks, runs their handlers, settles them.
pub(super) struct Lanes<S: InboxStore> {
    pub(super) engine: Arc<Engine<S>>,
    pub(super) log: Arc<LogShared>,
    pub(super) presence: Arc<Presence<S>>,
    /// Commits whose answer was lost: where they would have led, and with how many messages.
    pub(super) unknown: Mutex<HashMap<(HandlerId, u16), UnknownCommit>>,
    /// Held by messages that run outside of transactions; exclusively by one that may kill the process.
    pub(super) alone: Arc<RwLock<()>>,
}

impl<S: InboxStore> Lanes<S> {
    pub(super) fn new(engine: Arc<Engine<S>>, log: Arc<LogShared>, presence: Arc<Presence<S>>) -> Self {
        Self { engine, log, presence, unknown: Mutex::default(), alone: Arc::default() }
    }
}
