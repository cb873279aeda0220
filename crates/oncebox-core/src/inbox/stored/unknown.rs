//! Commits whose answer was lost: noted, and found out about when the lane is locked the next time.

use crate::inbox::registered::Registered;
use crate::inbox::stored::visit::Taken;
use crate::inbox::stored::{Lanes, LogStore, lock};
use crate::observe;
use crate::store::Taker;

/// What a lane will show if the commit has happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnknownCommit {
    epoch: i32,
    reached: i64,
    messages: u64,
}

impl<S: LogStore> Lanes<S> {
    pub(super) fn note_unknown(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        taken: &Taken,
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

    /// The lane's lock is ours: whether a commit whose answer was lost has happened is certain now.
    pub(super) fn find_out_unknown(&self, handler: &Registered<S>, taker: Taker<'_>, epoch: i32, from: i64) {
        let Some(unknown) = lock(&self.unknown).remove(&(taker.handler, taker.lane)) else { return };
        if unknown.epoch == epoch && from >= unknown.reached {
            tracing::info!(handler = &*handler.name, "a commit whose response was lost had succeeded");
            for _ in 0..unknown.messages {
                self.engine.observer.count(observe::COMMITS_RECOVERED, &handler.name);
                self.engine.observer.count(observe::PROCESSED, &handler.name);
            }
        }
    }
}
