//! Lanes: the shared state of visits to lanes.

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
pub(super) struct LaneVisitor<S: InboxStore> {
    pub(super) engine: Arc<Engine<S>>,
    pub(super) log: Arc<LogShared>,
    pub(super) presence: Arc<Presence<S>>,
    /// Commits with a lost response, by handler and lane.
    pub(super) unknown: Mutex<HashMap<(HandlerId, u16), UnknownCommit>>,
    /// Held shared by messages that run outside of transactions, and exclusively by one that may crash the process.
    pub(super) alone: Arc<RwLock<()>>,
}

impl<S: InboxStore> LaneVisitor<S> {
    pub(super) fn new(engine: Arc<Engine<S>>, log: Arc<LogShared>, presence: Arc<Presence<S>>) -> Self {
        Self { engine, log, presence, unknown: Mutex::default(), alone: Arc::default() }
    }
}
