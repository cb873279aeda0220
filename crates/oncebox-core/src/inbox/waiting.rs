//! How long a copy waits for the one that runs.

use std::time::{Duration, Instant};

use crate::policy::InFlight;

/// A copy's patience with the one that runs.
pub(crate) struct Waiting {
    since: Instant,
    max: Duration,
    lock_timeout: Duration,
}

impl Waiting {
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

    /// How long the next claim may wait. Never zero: to a database, that means to wait for ever.
    pub(crate) fn lock_timeout(&self) -> Duration {
        let left = self.max.saturating_sub(self.since.elapsed());
        self.lock_timeout.min(left).max(Duration::from_millis(1))
    }
}
