//! The waiting time of a copy while the first one runs.

use std::time::{Duration, Instant};

use crate::policy::InFlight;

/// The minimum wait for the one writer of a store. It is mostly busy with other keys, so even a unit that does not wait for copies
/// waits for the writer.
const WRITER_WAIT_MIN: Duration = Duration::from_secs(30);

/// How long a claim waits for a key that another process may hold. After it, the unit is known to be a copy, or its batch is split,
/// so that one key does not block the others.
pub(super) const CLAIM_WAIT: Duration = Duration::from_millis(20);

/// The waiting time of a copy.
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
            // The claim still waits a moment: see `lock_timeout`.
            InFlight::Busy => Duration::ZERO,
        };
        Self { since: Instant::now(), max, lock_timeout }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.since.elapsed() >= self.max
    }

    /// Whether the wait for the one writer of a store is over too.
    pub(crate) fn is_over_for_the_writer(&self) -> bool {
        self.since.elapsed() >= self.max.max(WRITER_WAIT_MIN)
    }

    /// The remaining waiting time.
    pub(crate) fn left(&self) -> Duration {
        self.max.saturating_sub(self.since.elapsed())
    }

    /// How long the next claim may wait for a copy in another process. It waits longer only for a copy that is known to run, and only
    /// if there are other permits, so that other units do not wait with it.
    pub(crate) fn claim_timeout(&self, is_copy: bool, permits: usize) -> Duration {
        let lock_timeout = self.lock_timeout();
        if is_copy && permits > 1 { lock_timeout } else { lock_timeout.min(CLAIM_WAIT) }
    }

    /// The lock timeout, never zero: for a database zero means no limit.
    fn lock_timeout(&self) -> Duration {
        self.lock_timeout.min(self.left()).max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A wait that started this long ago.
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
        // Maximum wait, whether a copy is known to run elsewhere, number of permits; the timeout of the claim.
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
