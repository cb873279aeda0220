//! What is seen at one moment, and what has changed since the one before.

use std::time::{Instant, SystemTime};

use anyhow::Result;
use oncebox::Operators;
use oncebox::store::HandlerStatus;

use crate::operate::known;
use crate::operate::status::is_alive;

/// One look.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) at: SystemTime,
    taken: Instant,
    pub(super) handlers: Vec<HandlerStatus>,
    /// How many are at work.
    pub(super) processes: usize,
}

impl Sample {
    pub(super) async fn take(operators: &Operators) -> Result<Self> {
        let handlers = known::handlers(operators).await?;
        let (at, taken) = (SystemTime::now(), Instant::now());
        let peers = operators.processes().await?;
        Ok(Self { at, taken, handlers, processes: peers.iter().filter(|peer| is_alive(peer)).count() })
    }

    pub(super) fn dead(&self) -> u64 {
        self.handlers.iter().map(|status| status.dead).sum()
    }

    fn handler(&self, like: &HandlerStatus) -> Option<&HandlerStatus> {
        self.handlers.iter().find(|status| status.handler.id == like.handler.id)
    }
}

/// What happened in a second, on average since the look before. `None` where that cannot be told.
#[derive(Debug, PartialEq)]
pub(super) struct Rates {
    /// Positions that the log has grown by.
    pub(super) accepted: Option<f64>,
    /// Positions that each handler has passed, in the order of the handlers.
    pub(super) passed: Vec<Option<f64>>,
}

impl Rates {
    pub(super) fn between(last: Option<&Sample>, now: &Sample) -> Self {
        let rate = |status: &HandlerStatus, count: fn(&HandlerStatus) -> u64| {
            let last = last?;
            let seconds = now.taken.duration_since(last.taken).as_secs_f64();
            // Less than before: a replay took it back.
            let grown = count(status).checked_sub(count(last.handler(status)?))?;
            (seconds > 0.0).then(|| as_float(grown) / seconds)
        };
        // What lies behind a handler and what lies ahead of it are all positions that there are.
        let readers = now.handlers.iter().filter(|status| status.handler.mode.reads_log());
        let accepted = readers.filter_map(|status| rate(status, |status| status.passed + status.lag)).next();
        let passed = now.handlers.iter().map(|status| rate(status, |status| status.passed)).collect();
        Self { accepted, passed }
    }
}

fn as_float(count: u64) -> f64 {
    // Nothing grows by more than that between two looks.
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oncebox::Mode;
    use oncebox::store::{HandlerId, HandlerState, KnownHandler};

    use super::*;

    fn status(id: i32, mode: Mode, passed: u64, lag: u64) -> HandlerStatus {
        let handler = KnownHandler {
            id: HandlerId(id),
            name: format!("h{id}"),
            origin: format!("h{id}"),
            kinds: vec!["k".into()],
            mode,
            ordered: None,
            state: HandlerState::Active,
        };
        HandlerStatus { handler, passed, lag, oldest_waiting: None, tasks: 0, dead: 0 }
    }

    fn sample(taken: Instant, handlers: Vec<HandlerStatus>) -> Sample {
        Sample { at: SystemTime::now(), taken, handlers, processes: 0 }
    }

    #[test]
    fn rates_are_positions_in_a_second() {
        let start = Instant::now();
        let first = sample(start, vec![status(1, Mode::Stored, 10, 5), status(2, Mode::Stored, 15, 0)]);
        assert_eq!(Rates::between(None, &first), Rates { accepted: None, passed: vec![None, None] });
        let later = start + Duration::from_secs(2);
        let second = sample(
            later,
            vec![
                status(1, Mode::Stored, 30, 5),
                status(2, Mode::Stored, 3, 32),
                status(3, Mode::Stored, 0, 35),
            ],
        );
        // The second is replayed: what it passed is not known, what was accepted is. The third is new.
        let expected = Rates { accepted: Some(10.0), passed: vec![Some(10.0), None, None] };
        assert_eq!(Rates::between(Some(&first), &second), expected);
    }

    #[test]
    fn inline_handlers_do_not_say_what_was_accepted() {
        let start = Instant::now();
        let first = sample(start, vec![status(1, Mode::inline(), 0, 0)]);
        let second = sample(start + Duration::from_secs(1), vec![status(1, Mode::inline(), 0, 0)]);
        assert_eq!(Rates::between(Some(&first), &second).accepted, None);
    }
}
