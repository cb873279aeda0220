//! How many units share a transaction: rules without clocks or queues.

use std::time::Duration;

/// A batch should not hold its locks, or keep its last unit waiting, for longer than this.
const BATCH_TIME: Duration = Duration::from_millis(50);
/// So much of handlers' time is worth a transaction of its own: less, and what a transaction costs by itself weighs more
/// than running beside each other gains.
const WORTH: Duration = Duration::from_millis(4);
/// One runs while another is being committed.
const TRANSACTIONS_MIN: usize = 2;
/// Handlers faster than this keep the processor busy, not waiting: beyond a few transactions per core, more of them only
/// slow each other down.
const FAST: Duration = Duration::from_millis(1);
const FAST_TRANSACTIONS_PER_CORE: usize = 2;
/// So many clean units in a row let the limit grow again; more after each trouble, so that a handler that is better off
/// alone is left alone.
const CLEAN_UNITS_TO_GROW: usize = 16;
const CLEAN_UNITS_TO_GROW_MAX: usize = 65_536;

/// Learns from what batches came to.
#[derive(Debug)]
pub(crate) struct BatchSize {
    /// How long a batch should take.
    time: Duration,
    cores: usize,
    max: usize,
    /// Halved by trouble, grown by clean runs.
    limit: usize,
    clean: usize,
    clean_to_grow: usize,
    /// A moving average per unit.
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

    /// The same with another time for a batch.
    pub(crate) fn within(self, time: Duration) -> Self {
        Self { time, ..self }
    }

    /// How many units the next transaction takes.
    pub(crate) fn next(&self) -> usize {
        let by_time = match self.handle_time.as_micros() {
            0 => self.max,
            micros => usize::try_from(self.time.as_micros() / micros).unwrap_or(self.max),
        };
        self.limit.min(by_time).max(1)
    }

    /// How many transactions so many units are worth: slow handlers run beside each other, fast ones together.
    pub(crate) fn transactions(&self, units: usize) -> usize {
        if self.next() == 1 {
            // Those who share nothing gain from each other's company alone.
            return usize::MAX;
        }
        let worth = self.time_of(units).as_micros().div_ceil(WORTH.as_micros());
        let max = match self.is_fast() {
            true => FAST_TRANSACTIONS_PER_CORE * self.cores,
            false => usize::MAX,
        };
        usize::try_from(worth).unwrap_or(usize::MAX).min(max).max(TRANSACTIONS_MIN)
    }

    /// How long the handlers of so many units take together.
    pub(crate) fn time_of(&self, units: usize) -> Duration {
        self.handle_time.saturating_mul(u32::try_from(units).unwrap_or(u32::MAX))
    }

    /// Whether handlers keep the processor busy rather than wait.
    fn is_fast(&self) -> bool {
        self.handle_time < FAST
    }

    /// The handlers of so many units took so long together.
    pub(crate) fn took(&mut self, units: usize, time: Duration) {
        let per_unit = time / u32::try_from(units.max(1)).unwrap_or(u32::MAX);
        self.handle_time = (self.handle_time * 3 + per_unit) / 4;
    }

    /// A transaction of so many units was committed.
    pub(crate) fn clean(&mut self, units: usize) {
        self.clean += units;
        if self.limit < self.max && self.clean >= self.clean_to_grow.max(self.limit) {
            self.clean = 0;
            self.limit = (self.limit * 2).min(self.max);
            if self.limit == self.max {
                self.clean_to_grow = CLEAN_UNITS_TO_GROW;
            }
        }
    }

    /// A batch had to be taken apart.
    pub(crate) fn trouble(&mut self) {
        self.clean = 0;
        self.limit = (self.limit / 2).max(1);
        self.clean_to_grow = (self.clean_to_grow * 2).min(CLEAN_UNITS_TO_GROW_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_halves_it_and_clean_runs_grow_it_back() {
        let mut size = BatchSize::new(64, 2);
        assert_eq!(size.next(), 64);
        for expected in [32, 16, 8, 4, 2, 1, 1] {
            size.trouble();
            assert_eq!(size.next(), expected);
        }
        // The more trouble there was, the longer it takes.
        size.clean(CLEAN_UNITS_TO_GROW);
        assert_eq!(size.next(), 1);
        for _ in 0..1_000 {
            size.clean(1_000);
        }
        assert_eq!(size.next(), 64);
        size.trouble();
        size.clean(2 * CLEAN_UNITS_TO_GROW);
        assert_eq!(size.next(), 64, "old troubles are forgotten");
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
