//! Whether everybody is at work again after a fault. Messages alone do not tell: what one worker can no longer take, others do.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Who has done nothing new since the last fault.
#[derive(Debug)]
pub(crate) struct Recovery {
    awaited: BTreeSet<usize>,
    since: Instant,
}

impl Recovery {
    /// Nobody is awaited.
    pub(crate) fn complete() -> Self {
        Self { awaited: BTreeSet::new(), since: Instant::now() }
    }

    /// A fault is over: all of these are awaited.
    pub(crate) fn of(workers: usize, now: Instant) -> Self {
        Self { awaited: (0..workers).collect(), since: now }
    }

    /// A worker has acknowledged a message, with this word. Copies of what is done say nothing of its ability to write.
    pub(crate) fn acknowledged(&mut self, worker: usize, word: &str) {
        if word.split('+').any(|outcome| matches!(outcome, "done" | "accepted")) {
            self.awaited.remove(&worker);
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.awaited.is_empty()
    }

    /// Those who have done nothing for longer than this; nobody waits for them any more.
    pub(crate) fn give_up(&mut self, patience: Duration, now: Instant) -> BTreeSet<usize> {
        match now.duration_since(self.since) > patience {
            true => std::mem::take(&mut self.awaited),
            false => BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(90);

    #[test]
    fn everybody_has_to_do_something_new() {
        let now = Instant::now();
        let mut recovery = Recovery::of(3, now);
        recovery.acknowledged(0, "accepted");
        recovery.acknowledged(1, "duplicate+done");
        for word in ["known", "duplicate+duplicate", "queued"] {
            recovery.acknowledged(2, word);
        }
        assert!(!recovery.is_complete());
        assert_eq!(recovery.give_up(PATIENCE, now + PATIENCE), BTreeSet::new());
        assert_eq!(recovery.give_up(PATIENCE, now + PATIENCE * 2), BTreeSet::from([2]));
        assert!(recovery.is_complete());
    }
}
