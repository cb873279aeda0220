//! What visits to lanes have taught: how much to take next time, and how carefully.

use std::collections::HashMap;

use crate::inbox::batch_size::BatchSize;
use crate::inbox::sessions::Sessions;
use crate::store::Place;

/// Positions that a visit looks at where nothing is for its handler; doubled each time up to the second.
pub(super) const POSITIONS_MIN: u32 = 4_096;
pub(super) const POSITIONS_MAX: u32 = 1 << 20;

/// What a handler's visits have taught.
#[derive(Debug)]
pub(crate) struct Lessons {
    pub(super) size: BatchSize,
    lanes: HashMap<u16, LaneLessons>,
    /// How often bodies met an error that another try may not meet.
    pub(super) transients: HashMap<Place, u32>,
}

/// What is true of one lane only: a culprit in one must not be forgotten for the good of another.
#[derive(Debug)]
pub(super) struct LaneLessons {
    /// Whether a handler failed of late: then there are savepoints from the beginning.
    pub(super) wary: bool,
    /// The largest set; halved by failures to find the culprit.
    pub(super) sets: usize,
    pub(super) positions: u32,
    /// Connections in a row that were out of date.
    pub(super) sessions: Sessions,
}

impl Default for LaneLessons {
    fn default() -> Self {
        Self { wary: false, sets: usize::MAX, positions: POSITIONS_MIN, sessions: Sessions::default() }
    }
}

impl Lessons {
    pub(crate) fn new(size: BatchSize) -> Self {
        Self { size, lanes: HashMap::new(), transients: HashMap::new() }
    }

    /// How often the body of a message, or a batch that begins with it, has met an error that another try may not meet.
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
        lessons.lane(1).wary = true;
        lessons.lane(1).halve_sets(10);
        assert!(!lessons.lane(2).wary);
        assert_eq!(lessons.lane(2).sets, usize::MAX);
        assert_eq!(lessons.lane(2).positions, POSITIONS_MIN);
        assert!(lessons.lane(1).wary);
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
