//! How long a copy waits for the one that runs.

use std::time::{Duration, Instant};

use crate::policy::InFlight;

/// The writer is busy with other keys, most of the time: a unit that does not wait for copies waits for the writer all the same.
const WRITER_WAIT_MIN: Duration = Duration::from_secs(30);

/// A key that another process holds must not keep others waiting: past this a unit is known to be a copy, or its batch is taken
/// apart.
pub(super) const CLAIM_WAIT: Duration = Duration::from_millis(20);

/// A copy's wait for the first one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyWait {
    since: Instant,
    max: Duration,
    lock_timeout: Duration,
}

impl CopyWait {
    pub(crate) fn new(in_flight: InFlight, lock_timeout: Duration) -> Self {
        let max = match in_flight {
            InFlight::Wait { max } => max,
            InFlight::Busy => Duration::ZERO,
        };
        Self { since: Instant::now(), max, lock_timeout }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.since.elapsed() >= self.max
    }

    /// Whether even a store with one writer for all keys has kept it waiting for too long.
    pub(crate) fn is_over_for_the_writer(&self) -> bool {
        self.since.elapsed() >= self.max.max(WRITER_WAIT_MIN)
    }

    /// How long it may still wait.
    pub(crate) fn left(&self) -> Duration {
        self.max.saturating_sub(self.since.elapsed())
    }

    /// How long the next claim may wait for a copy in another process. Only copies that are known to be there are waited for, and not
    /// with the only permit: other units must not wait with them.
    pub(crate) fn claim_timeout(&self, is_copy: bool, permits: usize) -> Duration {
        let lock_timeout = self.lock_timeout();
        if is_copy && permits > 1 { lock_timeout } else { lock_timeout.min(CLAIM_WAIT) }
    }

    /// Never zero: to a database, that means to wait for ever.
    fn lock_timeout(&self) -> Duration {
        self.lock_timeout.min(self.left()).max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A wait that began some time ago.
    fn wait(in_flight: InFlight, ago: Duration) -> CopyWait {
        let since = Instant::now().checked_sub(ago).unwrap();
        CopyWait { since, ..CopyWait::new(in_flight, SECOND) }
    }

    #[test]
    fn a_wait_is_over_after_its_maximum() {
        let max = 10 * SECOND;
        let begun = wait(InFlight::Wait { max }, SECOND);
        assert!(!begun.is_over() && !begun.is_over_for_the_writer());
        assert!(begun.left() > 8 * SECOND && begun.left() <= 9 * SECOND);
        let over = wait(InFlight::Wait { max }, max);
        assert!(over.is_over() && over.left().is_zero());
    }

    #[test]
    fn a_unit_that_waits_for_no_copy_waits_for_the_writer() {
        let begun = wait(InFlight::Busy, SECOND);
        assert!(begun.is_over() && !begun.is_over_for_the_writer());
        assert!(wait(InFlight::Busy, WRITER_WAIT_MIN).is_over_for_the_writer());
    }

    #[test]
    fn a_claim_waits_for_known_copies_only() {
        // The maximum wait, whether a copy is known to run elsewhere, the number of permits; how long the claim waits.
        for (in_flight, is_copy, permits, expected) in [
            (InFlight::Wait { max: 10 * SECOND }, true, 2, SECOND),
            (InFlight::Wait { max: 10 * SECOND }, true, 1, CLAIM_WAIT),
            (InFlight::Wait { max: 10 * SECOND }, false, 2, CLAIM_WAIT),
            (InFlight::Busy, true, 2, Duration::from_millis(1)),
            (InFlight::Busy, false, 2, Duration::from_millis(1)),
        ] {
            let timeout = wait(in_flight, Duration::ZERO).claim_timeout(is_copy, permits);
            assert_eq!(timeout, expected, "{in_flight:?}, {is_copy}, {permits}");
        }
    }
}
