//! Replays: the position to which a handler returns in each lane. The rules are pure.

use std::fmt;
use std::time::SystemTime;

use crate::store::Place;
use crate::utc::{rfc3339, to_ms};

/// The start of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayFrom {
    /// From the oldest message that is still in the log.
    Beginning,
    /// From the first message of each lane that was received at this time or later.
    Time(SystemTime),
    /// From this message on, in its lane only.
    Place(Place),
}

impl ReplayFrom {
    /// The time in milliseconds since 1970, if it is one; for stores.
    pub fn time_ms(self) -> Option<i64> {
        match self {
            Self::Time(time) => Some(to_ms(time)),
            Self::Beginning | Self::Place(_) => None,
        }
    }

    /// The place, if it is one; for stores.
    pub fn place(self) -> Option<Place> {
        match self {
            Self::Place(place) => Some(place),
            Self::Beginning | Self::Time(_) => None,
        }
    }
}

/// The text in the audit.
impl fmt::Display for ReplayFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beginning => f.write_str("the beginning"),
            Self::Time(time) => f.write_str(&rfc3339(*time)),
            Self::Place(place) => write!(f, "position {} of lane {}", place.pos, place.lane),
        }
    }
}

/// The result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The number of positions that the handler passes again, including those of other kinds.
    pub positions: u64,
    /// The number of tasks that became waiting messages again.
    pub tasks: u64,
    /// The number of dead letters that became waiting messages again.
    pub dead: u64,
}

/// The progress of a handler in a lane before a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayLane {
    /// The lane.
    pub lane: u16,
    /// The handler's newest epoch there.
    pub epoch: i32,
    /// Its position in that epoch.
    pub pos: i64,
    /// The replay with which the epoch began, if any: the positions behind which it begins and up to which it lasts.
    pub replay: Option<(i64, i64)>,
}

/// The epoch that a replay begins in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayEpoch {
    /// The lane.
    pub lane: u16,
    /// The new epoch.
    pub epoch: i32,
    /// The handler's position in the new epoch: right before the first message to run again.
    pub pos: i64,
    /// The position behind which a run counts as a replay.
    pub after: i64,
    /// The position up to which a run counts as a replay.
    pub until: i64,
    /// The number of positions that the handler passes again.
    pub positions: u64,
}

impl ReplayLane {
    /// The epoch that begins with the message at position `first`; `None` if the handler has not passed that position.
    ///
    /// A replay that has not ended continues in the new epoch: its remaining messages still count as replays.
    pub fn back_to(&self, first: i64) -> Option<ReplayEpoch> {
        // Positions begin at 1; a handler at 0 has passed none.
        let pos = (first - 1).max(0);
        if self.pos <= pos {
            return None;
        }
        let unended = self.replay.filter(|&(_, until)| self.pos < until);
        let (after, until) = unended.unwrap_or((pos, self.pos));
        Some(ReplayEpoch {
            lane: self.lane,
            // Progress is appended, and the highest counts. A lower position counts only in a newer epoch.
            epoch: self.epoch + 1,
            pos,
            after: after.min(pos),
            until: until.max(self.pos),
            positions: self.pos.abs_diff(pos),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_start_is_written_as_the_audit_has_it() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_021_200_000);
        for (from, text) in [
            (ReplayFrom::Beginning, "the beginning"),
            (ReplayFrom::Time(time), "2026-11-18T17:00:00.000Z"),
            (ReplayFrom::Place(Place { lane: 3, pos: 14 }), "position 14 of lane 3"),
        ] {
            assert_eq!(from.to_string(), text);
        }
    }

    /// Epoch 4, at position 10: from which message, with which replay before; then position, after, until and count.
    #[test]
    fn a_handler_goes_back_in_a_new_epoch() {
        let table = [
            // Only if the handler has passed the first message.
            (1, None, Some((0, 0, 10, 10))),
            (10, None, Some((9, 9, 10, 1))),
            (11, None, None),
            (12, Some((2, 20)), None),
            (0, None, Some((0, 0, 10, 10))),
            // A finished replay does not count; an unfinished one continues, and may begin earlier.
            (5, Some((2, 10)), Some((4, 4, 10, 6))),
            (5, Some((2, 20)), Some((4, 2, 20, 6))),
            (2, Some((5, 20)), Some((1, 1, 20, 9))),
        ];
        for (first, replay, expected) in table {
            let epoch = ReplayLane { lane: 3, epoch: 4, pos: 10, replay }.back_to(first);
            let expected = expected.map(|(pos, after, until, positions)| ReplayEpoch {
                lane: 3,
                epoch: 5,
                pos,
                after,
                until,
                positions,
            });
            assert_eq!(epoch, expected, "{first} {replay:?}");
        }
    }
}
