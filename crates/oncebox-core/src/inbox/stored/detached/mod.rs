//! Detached handlers: messages are leased in a short transaction, and run outside of any transaction.
//!
//! A running task belongs to its process, which sends heartbeats. The end of the task is recorded under the fence of its lease.
//! If the process crashes, another one leases the task under a newer fence, and the end of the first run does not count.

mod company;
mod end;
mod lease;
mod run;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub(super) use run::Bodies;
use tokio::sync::Semaphore;

use crate::handler::Detachment;
use crate::inbox::InboxStore;
use crate::inbox::stored::completer::Completer;
use crate::inbox::stored::lanes::LaneVisitor;
use crate::inbox::stored::worker::WorkReport;

/// The concurrency limit of one detached handler.
#[derive(Debug)]
pub(crate) struct DetachedSlots {
    settings: Detachment,
    free: Arc<Semaphore>,
}

impl DetachedSlots {
    pub(crate) fn new(settings: Detachment) -> Self {
        Self { settings, free: Arc::new(Semaphore::new(settings.concurrency.min(Semaphore::MAX_PERMITS))) }
    }
}

/// Leases messages of detached handlers, runs them, and records their ends.
pub(super) struct DetachedRuns<S: InboxStore> {
    lanes: Arc<LaneVisitor<S>>,
    completer: Arc<Completer<S>>,
    bodies: Arc<Bodies>,
    /// Whether a message that may crash the process waits to run alone, or runs.
    has_suspect: AtomicBool,
}

impl<S: InboxStore> DetachedRuns<S> {
    pub(super) fn new(lanes: Arc<LaneVisitor<S>>, bodies: Arc<Bodies>) -> Self {
        let completer = Arc::new(Completer::new(lanes.engine.clone(), lanes.presence.clone()));
        Self { lanes, completer, bodies, has_suspect: AtomicBool::new(false) }
    }

    /// Waits until no body runs. Returns the report of all bodies that ended since the last call.
    pub(super) async fn idle(&self) -> WorkReport {
        self.bodies.idle().await;
        self.bodies.report()
    }
}
