//! Intake: takes messages into the log.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep;

use crate::error::chain;
use crate::inbox::InboxStore;
use crate::inbox::combiner::Combiner;
use crate::inbox::engine::Engine;
use crate::inbox::stored::queue::{LaneQueues, Queue};
use crate::inbox::stored::{LogShared, LogStore, lock};

/// The minimum time between two announcements to other processes.
const ANNOUNCE_EVERY: Duration = Duration::from_millis(5);
/// The maximum number of unhandled kinds that are logged, once each.
const UNHANDLED_KINDS_MAX: usize = 1_000;

/// Takes messages into the log, and announces them to other processes.
pub(crate) struct Intake<S: InboxStore> {
    pub(super) engine: Arc<Engine<S>>,
    pub(super) log: Arc<LogShared>,
    pub(super) queue: Queue,
    /// Whether an announcement is in progress.
    announcing: AtomicBool,
    /// Unhandled kinds that were logged already.
    unhandled: Mutex<HashSet<String>>,
}

impl<S: InboxStore> Intake<S> {
    /// Creates an intake with this maximum number of appending transactions.
    pub(super) fn new(engine: Arc<Engine<S>>, log: Arc<LogShared>, max_appenders: usize) -> Self {
        let queue = Combiner::new(LaneQueues::new(log.lanes, max_appenders));
        Self { engine, log, queue, announcing: AtomicBool::new(false), unhandled: Mutex::default() }
    }

    /// Whether an unhandled kind is logged now. Each kind is logged once, up to a maximum number of kinds.
    pub(super) fn is_first_report(&self, kind: &str) -> bool {
        let mut unhandled = lock(&self.unhandled);
        !unhandled.contains(kind)
            && unhandled.len() < UNHANDLED_KINDS_MAX
            && unhandled.insert(kind.to_owned())
    }
}

impl<S: LogStore> Intake<S> {
    /// Notifies other processes in the background, at most every 5 ms.
    pub(crate) fn announce(self: &Arc<Self>) {
        if self.announcing.swap(true, Ordering::AcqRel) {
            return;
        }
        let intake = self.clone();
        tokio::spawn(async move {
            // The wait collects the messages of several transactions into one announcement.
            sleep(ANNOUNCE_EVERY).await;
            // Reset before the call: a message that is appended during it needs another announcement.
            intake.announcing.store(false, Ordering::Release);
            if let Err(error) = intake.engine.store.announce().await {
                tracing::debug!(
                    error = chain(&error),
                    "could not announce new messages: other processes find them by polling"
                );
            }
        });
    }
}
