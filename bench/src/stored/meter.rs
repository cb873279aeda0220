//! Counts handler runs, and signals when the goal is reached.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

/// Shared by a keeper's handlers and the measurement that waits for them.
#[derive(Debug)]
pub(crate) struct Meter {
    done: AtomicU64,
    goal: AtomicU64,
    enough: watch::Sender<bool>,
    /// A mark is made after this many messages.
    every: AtomicU64,
    marks: Mutex<Vec<(u64, Instant)>>,
}

impl Meter {
    pub(crate) fn new() -> Meter {
        Meter {
            done: AtomicU64::new(0),
            goal: AtomicU64::new(u64::MAX),
            enough: watch::Sender::new(false),
            every: AtomicU64::new(u64::MAX),
            marks: Mutex::default(),
        }
    }

    /// Expects this many more messages, with this many marks on the way.
    pub(crate) fn ask_for(&self, more: u64, marks: u64) {
        self.goal.store(self.done() + more, Ordering::Relaxed);
        self.every.store((more / marks).max(1), Ordering::Relaxed);
        let mut made = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        made.clear();
        made.push((self.done(), Instant::now()));
        self.enough.send_replace(false);
    }

    pub(crate) fn add(&self, runs: u64) {
        let before = self.done.fetch_add(runs, Ordering::Relaxed);
        let (now, every) = (before + runs, self.every.load(Ordering::Relaxed));
        // One batch can pass several marks at once, and has one time for all of them.
        if before / every < now / every {
            self.marks.lock().unwrap_or_else(PoisonError::into_inner).push((now, Instant::now()));
        }
        if now >= self.goal.load(Ordering::Relaxed) {
            // Not `send`: without a receiver it would drop the value, and workers that look later would miss it.
            self.enough.send_replace(true);
        }
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Lets workers stop before they have reached the goal.
    pub(crate) fn give_up(&self) {
        self.goal.store(0, Ordering::Relaxed);
        self.enough.send_replace(true);
    }

    pub(crate) fn gave_up(&self) -> bool {
        self.goal.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn is_enough(&self) -> bool {
        *self.enough.borrow()
    }

    pub(crate) async fn until_enough(&self) {
        // The sender lives as long as `self`.
        let _ = self.enough.subscribe().wait_for(|enough| *enough).await;
    }

    /// The rates between marks, per second.
    pub(crate) fn slices(&self) -> Vec<f64> {
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        marks.windows(2).map(|pair| super::per_second(pair[1].0 - pair[0].0, pair[1].1 - pair[0].1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn says_when_it_is_enough_and_marks_the_way() {
        let meter = Meter::new();
        meter.ask_for(100, 10);
        for _ in 0..9 {
            meter.add(10);
        }
        assert!(!meter.is_enough());
        meter.add(10);
        assert!(meter.is_enough());
        meter.until_enough().await;
        assert_eq!(meter.slices().len(), 10);
        meter.ask_for(1, 1);
        assert!(!meter.is_enough());
        meter.give_up();
        assert!(meter.is_enough() && meter.gave_up());
    }
}
