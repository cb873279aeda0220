//! Whether all workers work again after a fault. Acknowledged messages alone do not show it: other workers take over the work.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The workers that have not made progress since the last fault.
#[derive(Debug)]
pub(crate) struct Recovery {
    waiting_for: BTreeSet<usize>,
    since: Instant,
}

impl Recovery {
    /// All workers have made progress.
    pub(crate) fn complete() -> Self {
        Self { waiting_for: BTreeSet::new(), since: Instant::now() }
    }

    /// A fault is over: all workers must make progress.
    pub(crate) fn of(workers: usize, now: Instant) -> Self {
        Self { waiting_for: (0..workers).collect(), since: now }
    }

    /// A worker has acknowledged a message, with these outcomes. Duplicates do not show that it can write.
    pub(crate) fn acknowledged(&mut self, worker: usize, outcomes: &str) {
        if outcomes.split('+').any(|outcome| matches!(outcome, "done" | "accepted")) {
            self.waiting_for.remove(&worker);
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.waiting_for.is_empty()
    }

    /// Removes and returns the workers without progress for longer than `limit`.
    pub(crate) fn take_overdue(&mut self, limit: Duration, now: Instant) -> BTreeSet<usize> {
        match now.duration_since(self.since) > limit {
            true => std::mem::take(&mut self.waiting_for),
            false => BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(90);

    #[test]
    fn every_worker_must_handle_or_accept_a_new_message() {
        let now = Instant::now();
        let mut recovery = Recovery::of(3, now);
        recovery.acknowledged(0, "accepted");
        recovery.acknowledged(1, "duplicate+done");
        for outcomes in ["known", "duplicate+duplicate", "queued"] {
            recovery.acknowledged(2, outcomes);
        }
        assert!(!recovery.is_complete());
        assert_eq!(recovery.take_overdue(LIMIT, now + LIMIT), BTreeSet::new());
        assert_eq!(recovery.take_overdue(LIMIT, now + LIMIT * 2), BTreeSet::from([2]));
        assert!(recovery.is_complete());
    }
}
