//! Retention of markers: rules without clocks or databases.

use std::time::Duration;

use crate::store::LiveTime;

/// The retention period of markers, and how sweeps delete expired ones.
///
/// Only time with a live process counts. After a long downtime the broker may redeliver messages that were handled before
/// it; their markers are still there.
///
/// ```
/// # use oncebox_core::Retention;
/// # use std::time::Duration;
/// const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// let retention = Retention::default().period(14 * DAY);
/// # assert_eq!(retention, Retention::new().period(14 * DAY));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Retention {
    pub(crate) period: Duration,
    pub(crate) automatic: bool,
    pub(crate) every: Duration,
    pub(crate) batch: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Self::new()
    }
}

impl Retention {
    /// The default of [`period`](Self::period): 7 days.
    pub const DEFAULT_PERIOD: Duration = Duration::from_secs(7 * 24 * 60 * 60);

    /// The defaults: 7 days, an automatic sweep every hour, up to 1,000 markers per statement.
    pub const fn new() -> Self {
        Self {
            period: Self::DEFAULT_PERIOD,
            automatic: true,
            every: Duration::from_secs(60 * 60),
            batch: 1_000,
        }
    }

    /// Sets the retention period. The default is 7 days.
    ///
    /// It must exceed the source's longest redelivery time.
    pub const fn period(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// Sets whether the inbox sweeps on a timer. The default is yes.
    ///
    /// If not, call [`Inbox::sweep`](crate::Inbox::sweep).
    pub const fn automatic(mut self, automatic: bool) -> Self {
        self.automatic = automatic;
        self
    }

    /// Sets the time between two sweeps. The default is 1 hour.
    pub const fn every(mut self, time: Duration) -> Self {
        self.every = time;
        self
    }

    /// Sets the maximum number of markers that one statement deletes. The default is 1,000.
    pub const fn batch(mut self, markers: u32) -> Self {
        self.batch = markers;
        self
    }

    /// The longest gap between two heartbeats that still counts as live time.
    ///
    /// It is short compared with the period, and long enough for jobs that start every hour or so.
    pub(crate) fn tolerance(&self) -> Duration {
        (self.period / 10).min(Duration::from_secs(60 * 60))
    }

    /// The time between two heartbeats.
    pub(crate) fn beat_every(&self) -> Duration {
        // Several beats per tolerance: one late beat must not end the interval. The floor prevents a busy loop.
        (self.tolerance() / 3).clamp(Duration::from_millis(10), Duration::from_secs(60))
    }
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepReport {
    /// The number of deleted markers.
    pub deleted: u64,
    /// The number of statements.
    pub batches: u64,
    /// Markers processed before this time had expired, in milliseconds since 1970 by the database's clock.
    ///
    /// `None` if there is less live time than one retention period.
    pub before_ms: Option<i64>,
}

/// The time before which markers have expired: one whole period of live time lies between it and now.
///
/// `None` if there is less live time than that.
pub(crate) fn cutoff(mut live: Vec<LiveTime>, period: Duration) -> Option<i64> {
    // A period beyond the range of the clock is never complete: nothing expires.
    let mut missing = i64::try_from(period.as_millis()).unwrap_or(i64::MAX);
    if mutant!("downtime_counts") {
        return live.iter().map(|time| time.until_ms.saturating_sub(missing)).max();
    }
    // Newest first: the walk goes back in time until one period is complete.
    live.sort_by_key(|time| std::cmp::Reverse(time.until_ms));
    let mut counted_from = i64::MAX;
    for time in live {
        // Processes that start at the same time can leave overlapping stretches; count each moment once.
        let until = time.until_ms.min(counted_from);
        let length = (until - time.from_ms).max(0);
        if length >= missing {
            return Some(until - missing);
        }
        missing -= length;
        counted_from = counted_from.min(time.from_ms);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_with_a_live_process_counts() {
        type Row = (&'static [(i64, i64)], u64, Option<i64>);
        let table: &[Row] = &[
            (&[], 10, None),
            (&[(0, 5)], 10, None),
            (&[(0, 10)], 10, Some(0)),
            (&[(0, 100)], 10, Some(90)),
            // down from 100 to 500: the downtime expires nothing
            (&[(0, 100), (500, 504)], 10, Some(94)),
            (&[(500, 504), (0, 100)], 10, Some(94)),
            (&[(0, 100), (500, 510)], 10, Some(500)),
            // overlapping stretches count once
            (&[(0, 100), (95, 105)], 10, Some(95)),
            (&[(0, 100), (50, 60)], 60, Some(40)),
            (&[(90, 100), (90, 100)], 15, None),
        ];
        for (live, period_ms, expected) in table {
            let live = live.iter().map(|&(from_ms, until_ms)| LiveTime { from_ms, until_ms }).collect();
            assert_eq!(cutoff(live, Duration::from_millis(*period_ms)), *expected);
        }
    }

    #[test]
    fn the_defaults_are_seven_days_automatic_and_hourly() {
        let retention = Retention::default();
        assert_eq!(retention.period.as_secs(), 604_800);
        assert!(retention.automatic);
        assert_eq!(retention.every.as_secs(), 3_600);
        assert_eq!(retention.tolerance().as_secs(), 3_600);
        assert_eq!(retention.beat_every().as_secs(), 60);
    }
}
