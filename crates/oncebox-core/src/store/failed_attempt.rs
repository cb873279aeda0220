//! The failed attempts of a message, with a limit on their number.

use std::borrow::Cow;
use std::time::SystemTime;

use crate::store::row;

/// One failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// Its number, from 1.
    pub attempt: u32,
    /// The time of the failure.
    pub at: SystemTime,
    /// The error and its causes.
    pub error: String,
    /// The number of omitted attempts right before this one. A long history keeps only the first and the last ones.
    pub omitted: u32,
}

impl FailedAttempt {
    /// The number of attempts that are kept from the beginning.
    pub const FIRST_KEPT: usize = 5;
    /// The number of attempts that are kept from the end.
    pub const LAST_KEPT: usize = 15;

    /// Adds an attempt to a history, which keeps [`FIRST_KEPT`](Self::FIRST_KEPT) and [`LAST_KEPT`](Self::LAST_KEPT) attempts.
    /// Without this limit, a message that fails for weeks would become a row of megabytes.
    pub fn add_to(self, history: &mut Vec<Self>) {
        make_room(history);
        history.push(self);
    }

    /// A stored history with room for one more attempt. The store appends that attempt itself, with the database's time.
    pub fn with_room(json: &str) -> Cow<'_, str> {
        let mut history = Self::read(json);
        // Most histories are not full, and need no second copy.
        if make_room(&mut history) { Cow::Owned(Self::write(&history)) } else { Cow::Borrowed(json) }
    }

    /// Reads a stored history: a JSON list of `{"attempt", "at", "error"}`, with the time in milliseconds since 1970, and
    /// `"omitted"` if attempts before it are omitted.
    pub fn read(json: &str) -> Vec<Self> {
        let read = |entry: serde_json::Value| {
            let number = |name| u32::try_from(entry.get(name)?.as_u64()?).ok();
            Some(Self {
                attempt: number("attempt")?,
                at: row::time_from_ms(entry.get("at")?.as_i64()?),
                error: entry.get("error")?.as_str()?.to_owned(),
                omitted: number("omitted").unwrap_or(0),
            })
        };
        let entries: Vec<serde_json::Value> = serde_json::from_str(json).unwrap_or_default();
        // A history is information only: entries that cannot be read are left out, and the message still runs.
        entries.into_iter().filter_map(read).collect()
    }

    fn write(history: &[Self]) -> String {
        let write = |one: &Self| {
            let mut entry = serde_json::json!({
                "attempt": one.attempt, "at": row::time_to_ms(one.at), "error": one.error,
            });
            if one.omitted > 0 {
                entry["omitted"] = one.omitted.into();
            }
            entry
        };
        serde_json::Value::from_iter(history.iter().map(write)).to_string()
    }
}

/// Removes and counts attempts behind the first ones until there is room for one more. Returns whether it removed any.
fn make_room(history: &mut Vec<FailedAttempt>) -> bool {
    const FIRST: usize = FailedAttempt::FIRST_KEPT;
    let excess = (history.len() + 1).saturating_sub(FIRST + FailedAttempt::LAST_KEPT);
    if excess == 0 {
        return false;
    }
    let removed = history.drain(FIRST..FIRST + excess);
    let omitted = removed.fold(0_u32, |omitted, one| omitted.saturating_add(one.omitted).saturating_add(1));
    // The entry behind the gap counts it, so that the total stays right.
    if let Some(next) = history.get_mut(FIRST) {
        next.omitted = next.omitted.saturating_add(omitted);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(number: u32) -> FailedAttempt {
        FailedAttempt {
            attempt: number,
            at: row::time_from_ms(i64::from(number)),
            error: format!("error {number}"),
            omitted: 0,
        }
    }

    /// The numbers of the kept attempts, and the number of omitted ones.
    fn kept(history: &[FailedAttempt]) -> (Vec<u32>, u32) {
        (history.iter().map(|one| one.attempt).collect(), history.iter().map(|one| one.omitted).sum())
    }

    #[test]
    fn the_first_five_and_the_last_fifteen_are_kept() {
        let mut history = Vec::new();
        for number in 1..=100 {
            attempt(number).add_to(&mut history);
            let expected: Vec<u32> = match number {
                ..=20 => (1..=number).collect(),
                _ => (1..=5).chain(number - 14..=number).collect(),
            };
            assert_eq!(kept(&history), (expected, number.saturating_sub(20)), "{number}");
        }
        assert_eq!(history[5].omitted, 80, "the gap is noted behind the first five");
    }

    #[test]
    fn a_stored_history_gets_room_only_where_it_is_full() {
        let mut history = Vec::new();
        for number in 1..=30 {
            let json = FailedAttempt::write(&history);
            assert_eq!(FailedAttempt::read(&json), history);
            let with_room = FailedAttempt::with_room(&json);
            assert_eq!(matches!(with_room, Cow::Owned(_)), number > 20, "{number}");
            let mut with_room = FailedAttempt::read(&with_room);
            with_room.push(attempt(number));
            attempt(number).add_to(&mut history);
            assert_eq!(with_room, history);
        }
    }

    #[test]
    fn what_cannot_be_read_has_no_attempts() {
        for json in ["", "{}", "[1, {\"attempt\": 1}]"] {
            assert_eq!(FailedAttempt::read(json), []);
            assert_eq!(FailedAttempt::with_room(json), json);
        }
    }
}
