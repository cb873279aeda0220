//! How long a copy waits for the one that runs.

use std::time::{Duration, Instant};

use crate::policy::InFlight;

/// The writer is busy with other keys, most of the time: a unit that does not wait for copies waits for the writer all the same.
const WRITER_WAIT_MIN: Duration = Duration::from_secs(30);

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

    /// How long the next claim may wait. Never zero: to a database, that means to wait for ever.
    pub(crate) fn lock_timeout(&self) -> Duration {
        self.lock_timeout.min(self.left()).max(Duration::from_millis(1))
    }
}
