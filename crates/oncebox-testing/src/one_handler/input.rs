//! The input of the log and its handlers.

use std::time::Duration;

use oncebox_core::store::{
    Account, NewMessage, Place, Registration, StoredMessage, TakeLimits, TaskLimits, Unfinished,
};
use oncebox_core::{Fingerprint, Headers, Key, Mode, Start};

/// More than a lane of a test holds.
pub const ALL: TakeLimits =
    TakeLimits { messages: 10_000, positions: 10_000, bytes: 1 << 30, open_tasks: None };
/// Longer than any test.
pub const LATER: Duration = Duration::from_secs(3600);
/// The maximum time for a step of a test.
pub const A_WHILE: Duration = Duration::from_secs(600);
/// No delay.
pub const NOW: Duration = Duration::ZERO;

/// A maximum number of tasks, with those behind the first one of each ordering key.
pub fn at_most(tasks: u32) -> TaskLimits {
    TaskLimits { tasks, heads_only: false }
}

/// A position in a lane.
pub fn place(lane: u16, pos: i64) -> Place {
    Place { lane, pos }
}

/// A message with this key, and a body of its own.
pub fn message(kind: &str, key: &str) -> NewMessage {
    let body = format!("{{\"of\":\"{key}\"}}").into_bytes();
    NewMessage {
        kind: kind.to_owned(),
        key: Some(Key::from(key).stored()),
        fingerprint: Fingerprint::of(&body),
        order_by: None,
        headers: Headers::new(),
        body,
        occurred_at: None,
        due_at: None,
        waited: Duration::ZERO,
        message_id: None,
    }
}

/// A message of the kind `a` with this ordering key.
pub fn in_order(key: &str, order_by: Option<&str>) -> NewMessage {
    NewMessage { order_by: order_by.map(Key::from), ..message("a", key) }
}

/// A stored handler that starts at the beginning of the log.
pub fn stored(name: &str, kinds: &[&str]) -> Registration {
    Registration {
        name: name.to_owned(),
        kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
        mode: Mode::Stored,
        ordered: None,
        start: Start::Beginning,
        revive: false,
        keep: None,
    }
}

/// A message that failed, and may run again at once.
pub fn failure(pos: i64, failures: u32, error: &str) -> Unfinished {
    Unfinished { failures, error: Some(error.to_owned()), ..untried(pos) }
}

/// A message that failed once, with its ordering key.
pub fn unfinished(pos: i64, order_by: &str, due_in: Duration) -> Unfinished {
    Unfinished { order_by: Some(Key::from(order_by)), due_in, ..failure(pos, 1, "x") }
}

/// A message that has not run.
pub fn untried(pos: i64) -> Unfinished {
    Unfinished {
        pos,
        order_by: None,
        failures: 0,
        due_in: NOW,
        error: None,
        attempts: None,
        body: None,
        scheduled: false,
        crashes: 0,
    }
}

/// A task as it was taken, to be run once more.
pub fn again(task: &StoredMessage) -> Unfinished {
    Unfinished {
        order_by: task.order_by.clone(),
        failures: task.failures,
        attempts: task.attempts.clone(),
        body: task.edited.then(|| task.body.clone()),
        crashes: task.crashes,
        ..untried(task.place.pos)
    }
}

/// A task as it was taken, which has failed once more.
pub fn failed_again(task: &StoredMessage, error: &str) -> Unfinished {
    Unfinished { failures: task.failures + 1, error: Some(error.to_owned()), ..again(task) }
}

/// Nothing is left to do.
pub fn all_done() -> Account {
    Account::default()
}

/// These are to run later.
pub fn as_tasks(tasks: impl Into<Vec<Unfinished>>) -> Account {
    Account { tasks: tasks.into(), ..Account::default() }
}

/// These are dead letters.
pub fn dead(dead: impl Into<Vec<Unfinished>>) -> Account {
    Account { dead: dead.into(), ..Account::default() }
}

/// The positions of messages in their lane.
pub fn positions(messages: &[StoredMessage]) -> Vec<i64> {
    messages.iter().map(|message| message.place.pos).collect()
}

/// The same in ascending order, where the order of tasks is the store's choice.
pub fn sorted(messages: &[StoredMessage]) -> Vec<i64> {
    let mut positions = positions(messages);
    positions.sort_unstable();
    positions
}
