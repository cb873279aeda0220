//! The form of values in rows, equal for every store.
//!
//! Times are milliseconds since 1970, negative before. Durations are milliseconds and never negative.

use std::time::{Duration, SystemTime};

use crate::store::{LiveTime, MessageState, Waits};
use crate::{Key, StoredKey, utc};

/// A time as milliseconds since 1970; negative before.
pub fn time_to_ms(time: SystemTime) -> i64 {
    utc::to_ms(time)
}

/// The time from milliseconds since 1970. A time that the system cannot represent is 1970.
pub fn time_from_ms(ms: i64) -> SystemTime {
    let distance = Duration::from_millis(ms.unsigned_abs());
    // Checked: the row may come from another program, and plain arithmetic on times panics on overflow.
    let time = if ms < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A duration as milliseconds; [`i64::MAX`] if it is longer than that.
pub fn duration_to_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The duration from milliseconds; zero if they are negative.
pub fn duration_from_ms(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// The key of a row from its columns `key` and `long_key`. A row that Oncebox did not write has its bytes as key.
pub fn key(key: &[u8], long_key: Option<&[u8]>) -> Key {
    StoredKey::read(key, long_key).unwrap_or_else(|| Key::new(key))
}

/// The reason why a task waits, from its name in the statements.
pub fn waits(name: &str) -> Waits {
    match name {
        "running" => Waits::Running,
        "scheduled" => Waits::Scheduled,
        "parked" => Waits::Parked,
        _ => Waits::Turn,
    }
}

/// The columns of a row that decide the state of a message for one handler.
#[derive(Clone, Debug, Default)]
pub struct MessageStateRow {
    /// The error of the dead letter, if there is one.
    pub dead_error: Option<String>,
    /// The task, if there is one.
    pub task: Option<TaskRow>,
    /// Whether the handler's progress has passed the message, or the message has a target.
    pub is_passed: bool,
}

/// The part of a row that describes a task.
#[derive(Clone, Debug)]
pub struct TaskRow {
    /// The number of failed attempts.
    pub failures: u32,
    /// Its due time, in milliseconds since 1970.
    pub due_ms: i64,
    /// The last error.
    pub error: Option<String>,
    /// The name of the reason why it waits.
    pub waits: String,
}

impl From<MessageStateRow> for MessageState {
    /// A dead letter counts before a task, and a task before the progress.
    fn from(row: MessageStateRow) -> Self {
        // The lane continues without them, so the progress has passed tasks and dead letters too.
        match row {
            MessageStateRow { dead_error: Some(error), .. } => Self::Dead { error },
            MessageStateRow { task: Some(task), .. } => Self::Task {
                failures: task.failures,
                due_at: time_from_ms(task.due_ms),
                error: task.error,
                waits: waits(&task.waits),
            },
            MessageStateRow { is_passed: true, .. } => Self::Done,
            MessageStateRow { .. } => Self::Waiting,
        }
    }
}

/// A row of the statement `live_time`: from, until, now. A table without rows gives one row with the time only.
pub type LiveTimeRow = (Option<i64>, Option<i64>, i64);

/// All periods of live time, and the database's time in milliseconds since 1970.
pub fn live_time(rows: impl IntoIterator<Item = LiveTimeRow>) -> (Vec<LiveTime>, i64) {
    let mut now_ms = 0;
    let mut periods = Vec::new();
    for (from, until, now) in rows {
        // Every row carries the time: one statement reads both.
        now_ms = now;
        periods.extend(from.zip(until).map(|(from_ms, until_ms)| LiveTime { from_ms, until_ms }));
    }
    (periods, now_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_1970_come_back() {
        for ms in [0, 1, -1, 1_700_000_000_123, -1_700_000_000_123] {
            assert_eq!(time_to_ms(time_from_ms(ms)), ms);
        }
    }

    #[test]
    fn a_negative_duration_is_zero_and_a_long_one_is_the_longest() {
        for (ms, duration) in [(-1, Duration::ZERO), (0, Duration::ZERO), (7, Duration::from_millis(7))] {
            assert_eq!(duration_from_ms(ms), duration);
        }
        assert_eq!(duration_to_ms(Duration::from_millis(7)), 7);
        assert_eq!(duration_to_ms(Duration::MAX), i64::MAX);
    }

    #[test]
    fn a_key_is_read_from_both_columns() {
        let long = [b'x'; 600];
        let stored = Key::new(&long[..]).stored();
        assert_eq!(key(stored.as_bytes(), Some(&long)), Key::new(&long[..]));
        assert_eq!(key(b"\0short", None), Key::new(b"short"));
        assert_eq!(key(b"not written by Oncebox", None), Key::new(b"not written by Oncebox"));
    }

    #[test]
    fn a_dead_letter_counts_before_a_task_and_a_task_before_the_progress() {
        let task = TaskRow { failures: 2, due_ms: 5, error: Some("e".into()), waits: "parked".into() };
        let as_task = MessageState::Task {
            failures: 2,
            due_at: time_from_ms(5),
            error: Some("e".into()),
            waits: Waits::Parked,
        };
        let dead = Some("d".to_owned());
        for (dead_error, task, is_passed, expected) in [
            (dead, Some(task.clone()), true, MessageState::Dead { error: "d".into() }),
            (None, Some(task.clone()), true, as_task.clone()),
            (None, Some(task), false, as_task),
            (None, None, true, MessageState::Done),
            (None, None, false, MessageState::Waiting),
        ] {
            assert_eq!(MessageState::from(MessageStateRow { dead_error, task, is_passed }), expected);
        }
    }

    #[test]
    fn a_task_waits_for_what_its_row_names() {
        for (name, expected) in [
            ("running", Waits::Running),
            ("scheduled", Waits::Scheduled),
            ("parked", Waits::Parked),
            ("turn", Waits::Turn),
        ] {
            assert_eq!(waits(name), expected);
        }
    }

    #[test]
    fn a_table_without_live_time_still_gives_the_time() {
        assert_eq!(live_time([(None, None, 9)]), (vec![], 9));
        let both = [(Some(1), Some(2), 9), (Some(4), Some(5), 9)];
        let periods = vec![LiveTime { from_ms: 1, until_ms: 2 }, LiveTime { from_ms: 4, until_ms: 5 }];
        assert_eq!(live_time(both), (periods, 9));
    }
}
