//! The life of a message for one handler: its states, and the events that change them.
//!
//! `docs/states.md` shows this table, and a test compares the two. The model test of the conformance suite applies random events,
//! and checks that every store reports the states of this table.

use std::fmt;

use crate::store::{MessageState, Waits};

/// The state of a message for one handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Not in the log: not accepted yet, or pruned; or the handler does not exist.
    Absent,
    /// Ahead of the handler's progress.
    Waiting,
    /// A task whose due time, set by its sender, is in the future.
    Scheduled,
    /// A task that waits behind an earlier message of its ordering key.
    Parked,
    /// A task that waits for its next attempt, or its first.
    Turn,
    /// A task that a process runs outside any transaction.
    Running,
    /// A dead letter.
    Dead,
    /// The handler's effect is committed, or an operator has discarded or resolved the message.
    Done,
}

/// An event that changes the stage of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// The message enters the log.
    Accept,
    /// An inline message moves to the log.
    Spill,
    /// An inline message fails permanently and moves to the log as a dead letter.
    SpillDead,
    /// The handler's transaction commits, or its detached run succeeds.
    Succeed,
    /// The handler fails and has attempts left.
    Fail,
    /// The handler fails in its last attempt or permanently, or processes crashed on the message.
    DeadLetter,
    /// A worker reaches the message before its due time.
    Schedule,
    /// The due time arrives.
    FallDue,
    /// An earlier message of the ordering key becomes a task, or is one when a worker reaches this message.
    Park,
    /// No earlier message of the ordering key is left.
    Unpark,
    /// A process leases the message, to run it outside any transaction.
    Lease,
    /// The process that runs the message crashes or stops.
    LoseLease,
    /// An operator retries the dead letter.
    Retry,
    /// An operator discards or resolves the dead letter.
    Resolve,
    /// An operator replays the handler.
    Replay,
    /// The message leaves the log after its retention.
    Prune,
    /// The handler is removed.
    Remove,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The state before the event.
    pub from: Stage,
    /// The event.
    pub event: Event,
    /// The state after the event.
    pub to: Stage,
}

const fn line(from: Stage, event: Event, to: Stage) -> Transition {
    Transition { from, event, to }
}

/// All transitions.
pub const LIFE: &[Transition] = {
    use Event::*;
    use Stage::*;
    &[
        line(Absent, Accept, Waiting),
        line(Absent, Spill, Turn),
        line(Absent, SpillDead, Dead),
        line(Waiting, Succeed, Done),
        line(Waiting, Fail, Turn),
        line(Waiting, DeadLetter, Dead),
        line(Waiting, Schedule, Scheduled),
        line(Waiting, Park, Parked),
        line(Waiting, Lease, Running),
        line(Scheduled, FallDue, Turn),
        line(Scheduled, Replay, Waiting),
        line(Parked, Unpark, Turn),
        line(Parked, Replay, Waiting),
        line(Turn, Succeed, Done),
        line(Turn, Fail, Turn),
        line(Turn, DeadLetter, Dead),
        line(Turn, Lease, Running),
        line(Turn, Park, Parked),
        line(Turn, Replay, Waiting),
        line(Running, Succeed, Done),
        line(Running, Fail, Turn),
        line(Running, DeadLetter, Dead),
        line(Running, LoseLease, Turn),
        line(Running, Replay, Waiting),
        line(Dead, Retry, Turn),
        line(Dead, Resolve, Done),
        line(Dead, Replay, Waiting),
        line(Done, Replay, Waiting),
        line(Done, Prune, Absent),
        line(Waiting, Remove, Absent),
        line(Scheduled, Remove, Absent),
        line(Parked, Remove, Absent),
        line(Turn, Remove, Absent),
        line(Running, Remove, Absent),
        line(Dead, Remove, Absent),
        line(Done, Remove, Absent),
    ]
};

impl Stage {
    /// The stage that corresponds to the state that a store reports.
    pub fn of(state: &MessageState) -> Self {
        match state {
            MessageState::Waiting => Self::Waiting,
            MessageState::Task { waits: Waits::Scheduled, .. } => Self::Scheduled,
            MessageState::Task { waits: Waits::Parked, .. } => Self::Parked,
            MessageState::Task { waits: Waits::Turn, .. } => Self::Turn,
            MessageState::Task { waits: Waits::Running, .. } => Self::Running,
            MessageState::Dead { .. } => Self::Dead,
            MessageState::Done => Self::Done,
        }
    }

    /// The stage after an event; `None` if the event cannot happen in this stage.
    pub fn after(self, event: Event) -> Option<Self> {
        LIFE.iter().find(|line| line.from == self && line.event == event).map(|line| line.to)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "absent",
            Self::Waiting => "waiting",
            Self::Scheduled => "scheduled",
            Self::Parked => "parked",
            Self::Turn => "turn",
            Self::Running => "running",
            Self::Dead => "dead",
            Self::Done => "done",
        })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accept => "accept",
            Self::Spill => "spill",
            Self::SpillDead => "spill dead",
            Self::Succeed => "succeed",
            Self::Fail => "fail",
            Self::DeadLetter => "dead-letter",
            Self::Schedule => "schedule",
            Self::FallDue => "fall due",
            Self::Park => "park",
            Self::Unpark => "unpark",
            Self::Lease => "lease",
            Self::LoseLease => "lose lease",
            Self::Retry => "retry",
            Self::Resolve => "resolve",
            Self::Replay => "replay",
            Self::Prune => "prune",
            Self::Remove => "remove",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In each stage, an event has one result only.
    #[test]
    fn there_is_one_way_for_each_event() {
        for (n, line) in LIFE.iter().enumerate() {
            let twins = LIFE[..n].iter().filter(|other| (other.from, other.event) == (line.from, line.event));
            assert_eq!(twins.count(), 0, "{} {}", line.from, line.event);
            assert_eq!(line.from.after(line.event), Some(line.to));
        }
    }

    fn is_task(stage: Stage) -> bool {
        matches!(stage, Stage::Scheduled | Stage::Parked | Stage::Turn | Stage::Running)
    }

    /// The page that shows the table: its rows, and the lines of its two diagrams.
    #[test]
    fn the_page_is_the_table() {
        let page = include_str!("../../../../docs/states.md");
        let rows: Vec<String> =
            LIFE.iter().map(|line| format!("| {} | {} | {} |", line.from, line.event, line.to)).collect();
        let table = page.split("| from | event | to |\n|---|---|---|\n").nth(1).expect("a table");
        let table: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
        assert_eq!(table, rows);

        let mut diagrams = page.split("stateDiagram-v2\n").skip(1);
        let mut diagram = || -> Vec<String> {
            let lines = diagrams.next().expect("a diagram").lines();
            lines.take_while(|line| *line != "```").map(|line| line.trim().to_owned()).collect()
        };
        let group = |stage| if is_task(stage) { "task".to_owned() } else { stage.to_string() };
        let mut messages: Vec<(String, Vec<String>)> = Vec::new();
        for line in LIFE.iter().filter(|line| group(line.from) != group(line.to)) {
            let arrow = format!("{} --> {}", group(line.from), group(line.to));
            let event = line.event.to_string();
            match messages.iter_mut().find(|(known, _)| *known == arrow) {
                Some((_, events)) if events.contains(&event) => {}
                Some((_, events)) => events.push(event),
                None => messages.push((arrow, vec![event])),
            }
        }
        let messages: Vec<String> =
            messages.into_iter().map(|(arrow, events)| format!("{arrow}: {}", events.join(", "))).collect();
        assert_eq!(diagram(), messages);
        let is_shown = |line: &&Transition| {
            (is_task(line.from) || is_task(line.to)) && !matches!(line.event, Event::Replay | Event::Remove)
        };
        let tasks: Vec<String> = LIFE
            .iter()
            .filter(is_shown)
            .map(|line| format!("{} --> {}: {}", line.from, line.to, line.event))
            .collect();
        assert_eq!(diagram(), tasks);

        // Every event is explained once.
        for line in LIFE {
            assert_eq!(page.matches(&format!("\n| {} | ", line.event)).count(), 1, "{}", line.event);
        }
    }

    /// Every stage leads to done, and only an operator brings back a message that is done.
    #[test]
    fn done_is_final_and_can_be_reached() {
        let mut reach = vec![Stage::Done];
        while let Some(line) =
            LIFE.iter().find(|line| reach.contains(&line.to) && !reach.contains(&line.from))
        {
            reach.push(line.from);
        }
        for line in LIFE {
            assert!(reach.contains(&line.from), "from {} there is no way to done", line.from);
        }
        let from_done = LIFE.iter().filter(|line| line.from == Stage::Done).map(|line| line.event);
        assert!(from_done.eq([Event::Replay, Event::Prune, Event::Remove]));
        let from_dead = LIFE.iter().filter(|line| line.from == Stage::Dead).map(|line| line.event);
        assert!(from_dead.eq([Event::Retry, Event::Resolve, Event::Replay, Event::Remove]));
    }
}
