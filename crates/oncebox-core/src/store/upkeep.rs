//! Upkeep: records live time, and deletes expired markers in batches of limited size.

use std::time::Duration;

use crate::Error;
use crate::store::Store;

/// An interval in which at least one process with an inbox was running, in milliseconds since 1970 by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveTime {
    /// The beginning of the interval.
    pub from_ms: i64,
    /// The last heartbeat in the interval.
    pub until_ms: i64,
}

/// Keeps the tables small.
pub trait Upkeep: Store {
    /// Records a heartbeat for live time. It extends the latest interval if that ended within `tolerance`, else it begins a new
    /// one.
    // Intervals and not a counter: downtime must not count, and after a crash the age of a counter would be unknown.
    fn beat(&self, tolerance: Duration) -> impl Future<Output = Result<(), Error>> + Send;

    /// All intervals of live time, and the database's present time.
    fn live_time(&self) -> impl Future<Output = Result<(Vec<LiveTime>, i64), Error>> + Send;

    /// Deletes up to `limit` markers that are done and were processed before this time, with their results. Returns their
    /// number.
    // Only done ones: without the marker of a spilled message, a copy would run beside the message in the log.
    fn sweep(&self, before_ms: i64, limit: u32) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Deletes the intervals that ended before this time.
    fn forget_live_time(&self, before_ms: i64) -> impl Future<Output = Result<(), Error>> + Send;
}
