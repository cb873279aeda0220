//! Removing what is no longer needed, a bounded batch at a time.

use std::time::Duration;

use crate::Error;
use crate::store::Store;

/// A stretch of time during which some process of this inbox was alive, in milliseconds since 1970 by the
/// database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveTime {
    /// When it began.
    pub from_ms: i64,
    /// The last sign of life.
    pub until_ms: i64,
}

/// Keeps the tables small.
pub trait Upkeep: Store {
    /// Signs that a process is alive. Prolongs the latest stretch if its end is no longer ago than
    /// `tolerance`, else begins a new one.
    fn beat(&self, tolerance: Duration) -> impl Future<Output = Result<(), Error>> + Send;

    /// All stretches on record and the database's time now.
    fn live_time(&self) -> impl Future<Output = Result<(Vec<LiveTime>, i64), Error>> + Send;

    /// Deletes at most `limit` markers that are done and were processed before this time, with their results;
    /// how many it were.
    fn sweep(&self, before_ms: i64, limit: u32) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Forgets the stretches that ended before this time.
    fn forget_live_time(&self, before_ms: i64) -> impl Future<Output = Result<(), Error>> + Send;
}
