//! Lessons of visits to lanes: the size of the next batch, and whether it starts with savepoints.

use std::collections::HashMap;

use crate::inbox::batch_size::BatchSize;
use crate::inbox::sessions::StaleSessions;
use crate::store::Place;

/// The number of positions that a visit searches. It doubles, up to the second number, while none has a message for the
/// handler.
pub(super) const POSITIONS_MIN: u32 = 4_096;
pub(super) const POSITIONS_MAX: u32 = 1 << 20;

/// The lessons of a handler's visits.
#[derive(Debug)]
pub(crate) struct Lessons {
    pub(super) size: BatchSize,
    lanes: HashMap<u16, LaneLessons>,
    /// The number of transient errors of each message's body.
    pub(super) transients: HashMap<Place, u32>,
}

/// The lessons of one lane. They are separate, because a success in one lane says nothing about a failed message in another.
#[derive(Debug)]
pub(super) struct LaneLessons {
    /// Whether the handler failed recently. Then a batch starts with savepoints.
    pub(super) recently_failed: bool,
    /// The maximum size of a set. Failures halve it, to find the failed message.
    pub(super) sets: usize,
    pub(super) positions: u32,
    /// Consecutive connections with an out-of-date session.
    pub(super) sessions: StaleSessions,
}

impl Default for LaneLessons {
    fn default() -> Self {
        Self {
            recently_failed: false,
            sets: usize::MAX,
            positions: POSITIONS_MIN,
            sessions: StaleSessions::default(),
        }
    }
}

impl Lessons {
    pub(crate) fn new(size: BatchSize) -> Self {
        Self { size, lanes: HashMap::new(), transients: HashMap::new() }
    }

    /// Counts a transient error of a message, or of a batch that starts with it. Returns the number so far.
    pub(super) fn met_transient(&mut self, place: Place) -> u32 {
        let times = self.transients.entry(place).or_default();
        *times += 1;
        *times
    }

    pub(super) fn lane(&mut self, lane: u16) -> &mut LaneLessons {
        self.lanes.entry(lane).or_default()
    }
}

impl LaneLessons {
    pub(super) fn halve_sets(&mut self, failed: usize) {
        // Half of the failed set, not of the limit: the set may have been much smaller than the limit.
        self.sets = (failed / 2).max(1);
    }

    pub(super) fn grow_sets(&mut self) {
        self.sets = self.sets.saturating_mul(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lessons() -> Lessons {
        Lessons::new(BatchSize::new(64, 1))
    }

    #[test]
    fn a_lane_learns_for_itself() {
        let mut lessons = lessons();
        lessons.lane(1).recently_failed = true;
        lessons.lane(1).halve_sets(10);
        assert!(!lessons.lane(2).recently_failed);
        assert_eq!(lessons.lane(2).sets, usize::MAX);
        assert_eq!(lessons.lane(2).positions, POSITIONS_MIN);
        assert!(lessons.lane(1).recently_failed);
    }

    #[test]
    fn failed_sets_are_halved_down_to_one_message_and_grow_back() {
        let mut lessons = lessons();
        let lane = lessons.lane(0);
        for (failed, expected) in [(9, 4), (4, 2), (2, 1), (1, 1)] {
            lane.halve_sets(failed);
            assert_eq!(lane.sets, expected);
        }
        lane.grow_sets();
        assert_eq!(lane.sets, 2);
        for _ in 0..100 {
            lane.grow_sets();
        }
        assert_eq!(lane.sets, usize::MAX);
    }

    #[test]
    fn transient_errors_are_counted_for_each_message() {
        let mut lessons = lessons();
        let place = |pos| Place { lane: 0, pos };
        assert_eq!(lessons.met_transient(place(1)), 1);
        assert_eq!(lessons.met_transient(place(1)), 2);
        assert_eq!(lessons.met_transient(place(2)), 1);
        lessons.transients.remove(&place(1));
        assert_eq!(lessons.met_transient(place(1)), 1);
    }
}
