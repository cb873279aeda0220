//! Decides which messages run concurrently. A message that may have crashed a process runs alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};

use super::DetachedRuns;
use crate::inbox::stored::LogStore;
use crate::store::StoredMessage;

/// Whether messages run with others or alone, from before their lease until their end is recorded. A crash counts against every
/// message that runs at that time, so a message that may have crashed a process already runs alone.
#[derive(Clone)]
pub(super) enum Isolation {
    WithOthers(#[allow(dead_code, reason = "held")] Arc<OwnedRwLockReadGuard<()>>),
    Alone(#[allow(dead_code, reason = "held")] Arc<OwnedRwLockWriteGuard<()>>),
}

impl Isolation {
    /// Whether a message may run in this way.
    pub(super) fn allows(&self, message: &StoredMessage) -> bool {
        match self {
            Self::WithOthers(_) => message.crashes == 0,
            Self::Alone(_) => message.crashes > 0,
        }
    }
}

/// Marks that a suspect waits or runs: a message that may crash the process. Dropping it allows the next suspect.
pub(super) struct SuspectGuard<S: LogStore>(pub(super) Arc<DetachedRuns<S>>);

impl<S: LogStore> Drop for SuspectGuard<S> {
    fn drop(&mut self) {
        self.0.has_suspect.store(false, Ordering::Release);
        self.0.lanes.log.wake.notify_one();
    }
}
