//! Decides which messages run concurrently. A message that was in flight in two crashes runs alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};

use super::DetachedRuns;
use crate::inbox::stored::LogStore;
use crate::store::StoredMessage;

/// The number of crashes after which a message is a suspect: it may be the one that crashes the process.
// Not one: after a single `kill -9` from outside, all messages in flight would run one by one, and the next kill would find one
// of them alone. Only a few are in flight twice.
const SUSPECT_CRASHES: u32 = 2;

/// Whether a message may be the one that crashes its processes.
pub(super) fn is_suspect(message: &StoredMessage) -> bool {
    message.crashes >= SUSPECT_CRASHES
}

/// Whether messages run with others or alone, from before their lease until their end is recorded. A crash counts against every
/// message that runs at that time, so a suspect runs alone.
#[derive(Clone)]
pub(super) enum Isolation {
    WithOthers(#[allow(dead_code, reason = "held")] Arc<OwnedRwLockReadGuard<()>>),
    Alone(#[allow(dead_code, reason = "held")] Arc<OwnedRwLockWriteGuard<()>>),
}

impl Isolation {
    /// Whether a message may run in this way.
    pub(super) fn allows(&self, message: &StoredMessage) -> bool {
        match self {
            Self::WithOthers(_) => !is_suspect(message),
            Self::Alone(_) => is_suspect(message),
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
