//! Decides how many units share a transaction. These rules use no clock and no queue.

use std::time::Duration;

/// The target duration of a batch. It limits how long locks are held and how long the last unit waits.
const BATCH_TIME: Duration = Duration::from_millis(50);
/// The handler time that justifies another transaction. With less, the cost of the transaction exceeds the gain from
/// running concurrently.
const WORTH: Duration = Duration::from_millis(4);
/// Two at least, so that one runs while another is being committed.
const TRANSACTIONS_MIN: usize = 2;
/// Handlers faster than this use the processor and do not wait. Beyond two transactions per core, more of them slow each
/// other down.
const FAST: Duration = Duration::from_millis(1);
const FAST_TRANSACTIONS_PER_CORE: usize = 2;
/// The number of consecutive clean units after which the limit grows again. It doubles after each failed batch, so that a
/// handler that does not suit batches keeps its small ones.
const CLEAN_UNITS_TO_GROW: usize = 16;
const CLEAN_UNITS_TO_GROW_MAX: usize = 65_536;

/// Learns the batch size from the results of batches.
#[derive(Debug)]
pub(crate) struct BatchSize {
    /// The target duration of a batch.
    time: Duration,
    cores: usize,
    max: usize,
    /// Halved by failed batches, doubled by clean ones.
    limit: usize,
    clean: usize,
    clean_to_grow: usize,
    /// The moving average of the handler's time per unit.
    handle_time: Duration,
}

impl BatchSize {
    pub(crate) fn new(max: usize, cores: usize) -> Self {
        let max = max.max(1);
        Self {
            time: BATCH_TIME,
            cores,
            max,
            limit: max,
            clean: 0,
            clean_to_grow: CLEAN_UNITS_TO_GROW,
            handle_time: Duration::ZERO,
        }
    }

    /// Sets another target duration of a batch.
    pub(crate) fn within(self, time: Duration) -> Self {
        Self { time, ..self }
    }

    /// The maximum number of units of the next transaction.
    pub(crate) fn next(&self) -> usize {
        let by_time = match self.handle_time.as_micros() {
            0 => self.max,
            micros => usize::try_from(self.time.as_micros() / micros).unwrap_or(self.max),
        };
        self.limit.min(by_time).max(1)
    }

    /// The number of transactions for this number of units. Slow handlers run concurrently, fast ones share a transaction.
    pub(crate) fn transactions(&self, units: usize) -> usize {
        if self.next() == 1 {
            // Units that never share a transaction gain from concurrency only.
            return usize::MAX;
        }
        let worth = self.time_of(units).as_micros().div_ceil(WORTH.as_micros());
        let max = match self.is_fast() {
            true => FAST_TRANSACTIONS_PER_CORE * self.cores,
            false => usize::MAX,
        };
        usize::try_from(worth).unwrap_or(usize::MAX).min(max).max(TRANSACTIONS_MIN)
    }

    /// The expected handler time of this number of units.
    pub(crate) fn time_of(&self, units: usize) -> Duration {
        self.handle_time.saturating_mul(u32::try_from(units).unwrap_or(u32::MAX))
    }

    /// Whether the handler uses the processor rather than waits.
    fn is_fast(&self) -> bool {
        self.handle_time < FAST
    }

    /// Records the handler time of this number of units.
    pub(crate) fn took(&mut self, units: usize, time: Duration) {
        let per_unit = time / u32::try_from(units.max(1)).unwrap_or(u32::MAX);
        // The last batch counts a quarter: quick to adapt, but one slow batch does not change the size much.
        self.handle_time = (self.handle_time * 3 + per_unit) / 4;
    }

    /// Records a commit of this number of units.
    pub(crate) fn clean(&mut self, units: usize) {
        self.clean += units;
        if self.limit < self.max && self.clean >= self.clean_to_grow.max(self.limit) {
            self.clean = 0;
            self.limit = (self.limit * 2).min(self.max);
            if self.limit == self.max {
                // At full size again: earlier failures are no longer relevant.
                self.clean_to_grow = CLEAN_UNITS_TO_GROW;
            }
        }
    }

    /// Records that a batch failed and its units run one by one.
    pub(crate) fn failed(&mut self) {
        self.clean = 0;
        self.limit = (self.limit / 2).max(1);
        self.clean_to_grow = (self.clean_to_grow * 2).min(CLEAN_UNITS_TO_GROW_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_batches_halve_the_size_and_clean_ones_restore_it() {
        let mut size = BatchSize::new(64, 2);
        assert_eq!(size.next(), 64);
        for expected in [32, 16, 8, 4, 2, 1, 1] {
            size.failed();
            assert_eq!(size.next(), expected);
        }
        // The more batches failed, the longer it takes.
        size.clean(CLEAN_UNITS_TO_GROW);
        assert_eq!(size.next(), 1);
        for _ in 0..1_000 {
            size.clean(1_000);
        }
        assert_eq!(size.next(), 64);
        size.failed();
        size.clean(2 * CLEAN_UNITS_TO_GROW);
        assert_eq!(size.next(), 64, "earlier failures no longer count");
    }

    #[test]
    fn slow_handlers_run_beside_each_other() {
        let mut size = BatchSize::new(64, 2);
        for _ in 0..20 {
            size.took(1, Duration::from_millis(20));
        }
        assert_eq!(size.transactions(10), 50, "as many as there may be");
        assert!(size.next() <= 3, "{}", size.next());
        for _ in 0..20 {
            size.took(1, Duration::from_secs(1));
        }
        assert_eq!(size.next(), 1);
        for _ in 0..60 {
            size.took(10, Duration::from_millis(1));
        }
        assert_eq!(size.transactions(10), 2);
        assert_eq!(size.transactions(100), 3);
        assert_eq!(size.transactions(1_000), 4, "no more than keep two cores busy");
        assert_eq!(size.next(), 64);
    }
}
