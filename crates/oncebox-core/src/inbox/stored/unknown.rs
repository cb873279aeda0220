//! Commits with a lost response: noted, and resolved at the next lock of the lane.

use crate::inbox::registered::Registered;
use crate::inbox::stored::visit::TakenBatch;
use crate::inbox::stored::{LaneVisitor, LogStore, lock};
use crate::observe;
use crate::store::Taker;

/// The state that a lane has if the commit succeeded.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnknownCommit {
    epoch: i32,
    reached: i64,
    messages: u64,
}

impl<S: LogStore> LaneVisitor<S> {
    pub(super) fn note_unknown_commit(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        taken: &TakenBatch,
        messages: usize,
    ) {
        for _ in 0..messages {
            self.engine.observer.count(observe::COMMITS_UNKNOWN, &handler.name);
        }
        if let Some(progress) = taken.progress {
            let unknown =
                UnknownCommit { epoch: progress.epoch, reached: progress.pos, messages: messages as u64 };
            lock(&self.unknown).insert((taker.handler, taker.lane), unknown);
        }
    }

    /// Finds out whether a commit with a lost response succeeded. It needs the lane's lock: then no commit is still in progress.
    pub(super) fn resolve_unknown_commit(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        epoch: i32,
        from: i64,
    ) {
        // Removed in every case: this visit decides the question once and for all.
        let Some(unknown) = lock(&self.unknown).remove(&(taker.handler, taker.lane)) else { return };
        // A replay starts a new epoch and moves the progress back, so positions of two epochs are not comparable.
        if unknown.epoch == epoch && from >= unknown.reached {
            tracing::info!(handler = &*handler.name, "a commit whose response was lost had succeeded");
            for _ in 0..unknown.messages {
                self.engine.observer.count(observe::COMMITS_RECOVERED, &handler.name);
                self.engine.observer.count(observe::PROCESSED, &handler.name);
            }
        }
    }
}
