//! Beside whom a message runs: one of which a process may have died has the process to itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};

use super::DetachedRuns;
use crate::inbox::stored::LogStore;
use crate::store::StoredMessage;

/// Beside whom messages run, from before they are leased until it is written how they ended: whoever dies with a process is
/// blamed for it, so those of which one may have died already have the process to themselves.
#[derive(Clone)]
pub(super) enum Company {
    Others(#[allow(dead_code, reason = "held")] Arc<OwnedRwLockReadGuard<()>>),
    Nobody(#[allow(dead_code, reason = "held")] Arc<OwnedRwLockWriteGuard<()>>),
}

impl Company {
    /// Whether a message may run in it.
    pub(super) fn suits(&self, message: &StoredMessage) -> bool {
        match self {
            Self::Others(_) => message.crashes == 0,
            Self::Nobody(_) => message.crashes > 0,
        }
    }
}

/// A message that may kill the process waits, or runs; however it ends, the next one may.
pub(super) struct Suspect<S: LogStore>(pub(super) Arc<DetachedRuns<S>>);

impl<S: LogStore> Drop for Suspect<S> {
    fn drop(&mut self) {
        self.0.has_suspect.store(false, Ordering::Release);
        self.0.lanes.log.wake.notify_one();
    }
}
