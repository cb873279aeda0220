//! A clock that tests can move.

use std::time::Duration;

/// A store whose clock tests can move forward. All its statements use the database's clock plus the time travelled.
///
/// A trait, so that no store has the method unless a test imports it. `oncebox_testing::travel` also records the heartbeats of
/// that time, which retention counts.
pub trait TestTime {
    /// Moves the clock forward, as if no process had been running meanwhile.
    fn travel(&self, time: Duration);
}
