//! How many units share a transaction: rules without clocks or queues.

use std::time::Duration;

/// A batch should not hold its locks, or keep its last unit waiting, for longer than this.
const BATCH_TIME: Duration = Duration::from_millis(50);
/// Above this, handlers gain more from running beside each other than from sharing a commit.
const SLOW: Duration = Duration::from_millis(2);
/// So many clean units in a row let the limit grow again.
const CLEAN_UNITS_TO_GROW: usize = 16;

/// Learns from what batches came to.
#[derive(Debug)]
pub(crate) struct BatchSize {
    max: usize,
    /// Halved by trouble, grown by clean runs.
    limit: usize,
    clean: usize,
    /// A moving average per unit.
    handle_time: Duration,
}

impl BatchSize {
    pub(crate) fn new(max: usize) -> Self {
        let max = max.max(1);
        Self { max, limit: max, clean: 0, handle_time: Duration::ZERO }
    }

    /// How many units the next transaction takes.
    pub(crate) fn next(&self) -> usize {
        let by_time = match self.handle_time.as_micros() {
            0 => self.max,
            micros => usize::try_from(BATCH_TIME.as_micros() / micros).unwrap_or(self.max),
        };
        self.limit.min(by_time).max(1)
    }

    /// Whether handlers are so slow that as many as possible should run at once.
    pub(crate) fn is_slow(&self) -> bool {
        self.handle_time >= SLOW
    }

    /// The handlers of so many units took so long together.
    pub(crate) fn took(&mut self, units: usize, time: Duration) {
        let per_unit = time / u32::try_from(units.max(1)).unwrap_or(u32::MAX);
        self.handle_time = (self.handle_time * 3 + per_unit) / 4;
    }

    /// A transaction of so many units was committed.
    pub(crate) fn clean(&mut self, units: usize) {
        self.clean += units;
        if self.limit < self.max && self.clean >= CLEAN_UNITS_TO_GROW.max(self.limit) {
            self.clean = 0;
            self.limit = (self.limit * 2).min(self.max);
        }
    }

    /// A batch had to be taken apart.
    pub(crate) fn trouble(&mut self) {
        self.clean = 0;
        self.limit = (self.limit / 2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_halves_it_and_clean_runs_grow_it_back() {
        let mut size = BatchSize::new(64);
        assert_eq!(size.next(), 64);
        for expected in [32, 16, 8, 4, 2, 1, 1] {
            size.trouble();
            assert_eq!(size.next(), expected);
        }
        for _ in 0..CLEAN_UNITS_TO_GROW {
            size.clean(1);
        }
        assert_eq!(size.next(), 2);
        for _ in 0..1_000 {
            size.clean(size.next());
        }
        assert_eq!(size.next(), 64);
    }

    #[test]
    fn slow_handlers_run_beside_each_other() {
        let mut size = BatchSize::new(64);
        for _ in 0..20 {
            size.took(1, Duration::from_millis(20));
        }
        assert!(size.is_slow());
        assert!(size.next() <= 3, "{}", size.next());
        for _ in 0..20 {
            size.took(1, Duration::from_secs(1));
        }
        assert_eq!(size.next(), 1);
        for _ in 0..60 {
            size.took(10, Duration::from_millis(1));
        }
        assert!(!size.is_slow());
        assert_eq!(size.next(), 64);
    }
}
