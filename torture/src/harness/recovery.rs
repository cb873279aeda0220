//! Whether all workers work again after a fault. Acknowledged messages alone do not show it: other workers take over the work.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const CARE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum time from a fault to the next one because of crash care.
const CARE_LIMIT: Duration = Duration::from_secs(2);

/// The workers that have not made progress since the last fault, and the handlers at a receiver that have not run.
#[derive(Debug)]
pub(crate) struct Recovery {
    waiting_for: Waiting,
    /// Whether crash care is over.
    is_careless: bool,
    care_checked: Instant,
    since: Instant,
}

/// Workers and handlers without progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) workers: BTreeSet<usize>,
    pub(crate) handlers: BTreeSet<&'static str>,
    /// Workers whose consumer has not got a message, where they do not get all messages by a queue.
    pub(crate) consumers: BTreeSet<usize>,
}

impl Recovery {
    /// All workers have made progress.
    pub(crate) fn complete() -> Self {
        let now = Instant::now();
        Self { waiting_for: Waiting::default(), is_careless: true, care_checked: now, since: now }
    }

    /// A fault is over: all workers must make progress, also the consumers of so many of them, and messages must reach these handlers.
    pub(crate) fn of(workers: usize, consumers: usize, handlers: &[&'static str], now: Instant) -> Self {
        let waiting_for = Waiting {
            workers: (0..workers).collect(),
            handlers: handlers.iter().copied().collect(),
            consumers: (0..consumers).collect(),
        };
        Self { waiting_for, is_careless: false, care_checked: now, since: now }
    }

    /// A handler has run, in any worker: the lanes of a relay may all be leased by other processes.
    pub(crate) fn ran(&mut self, handler: &str) {
        self.waiting_for.handlers.remove(handler);
    }

    /// The consumer of a worker has got a message.
    pub(crate) fn consumed(&mut self, worker: usize) {
        self.waiting_for.consumers.remove(&worker);
    }

    /// A worker has acknowledged a message, with these outcomes. Duplicates do not show that it can write.
    pub(crate) fn acknowledged(&mut self, worker: usize, outcomes: &str) {
        if outcomes.split('+').any(|outcome| matches!(outcome, "done" | "accepted")) {
            self.waiting_for.workers.remove(&worker);
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.waiting_for == Waiting::default()
    }

    /// Whether it is time to ask the database again whether crash care is needed.
    pub(crate) fn is_care_unknown(&mut self, now: Instant) -> bool {
        let is_due = !self.is_careless && now.duration_since(self.care_checked) >= CARE_CHECK_INTERVAL;
        if is_due {
            self.care_checked = now;
        }
        is_due
    }

    /// Crash care is over.
    pub(crate) fn end_care(&mut self) {
        self.is_careless = true;
    }

    /// Whether the next fault may come: crash care is over, or takes too long to wait for it. Kills in quick succession would make
    /// innocent messages dead letters, because a message that crashes its process looks the same.
    pub(crate) fn is_care_over(&self, now: Instant) -> bool {
        self.is_careless || now.duration_since(self.since) >= CARE_LIMIT
    }

    /// Removes and returns what is without progress for longer than `limit`.
    pub(crate) fn take_overdue(&mut self, limit: Duration, now: Instant) -> Waiting {
        match now.duration_since(self.since) > limit {
            // Taken, so that each is reported once per fault.
            true => std::mem::take(&mut self.waiting_for),
            false => Waiting::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(90);

    #[test]
    fn the_next_fault_waits_for_the_end_of_crash_care() {
        let now = Instant::now();
        assert!(Recovery::complete().is_care_over(now));
        let mut recovery = Recovery::of(1, 0, &[], now);
        assert!(!recovery.is_care_unknown(now), "not more often than every 100 ms");
        assert!(recovery.is_care_unknown(now + CARE_CHECK_INTERVAL));
        assert!(!recovery.is_care_over(now + CARE_CHECK_INTERVAL));
        assert!(recovery.is_care_over(now + CARE_LIMIT));
        recovery.end_care();
        assert!(recovery.is_care_over(now) && !recovery.is_care_unknown(now + CARE_LIMIT));
    }

    #[test]
    fn every_worker_must_handle_or_accept_a_new_message() {
        let now = Instant::now();
        let mut recovery = Recovery::of(3, 0, &[], now);
        recovery.acknowledged(0, "accepted");
        recovery.acknowledged(1, "duplicate+done");
        for outcomes in ["known", "duplicate+duplicate", "queued"] {
            recovery.acknowledged(2, outcomes);
        }
        assert!(!recovery.is_complete());
        assert_eq!(recovery.take_overdue(LIMIT, now + LIMIT), Waiting::default());
        assert_eq!(recovery.take_overdue(LIMIT, now + LIMIT * 2).workers, BTreeSet::from([2]));
        assert!(recovery.is_complete());
    }

    #[test]
    fn messages_must_reach_the_handlers_of_a_receiver() {
        let now = Instant::now();
        let mut recovery = Recovery::of(0, 1, &["ledger", "notes"], now);
        for handler in ["books", "notes"] {
            recovery.ran(handler);
        }
        assert!(!recovery.is_complete());
        let overdue = recovery.take_overdue(LIMIT, now + LIMIT * 2);
        assert_eq!((overdue.handlers, overdue.consumers), (BTreeSet::from(["ledger"]), BTreeSet::from([0])));
        assert!(recovery.is_complete());
    }
}
