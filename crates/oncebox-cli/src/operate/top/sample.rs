//! The status at one moment, and the rates since the sample before.

use std::time::{Instant, SystemTime};

use anyhow::Result;
use oncebox::Operators;
use oncebox::store::HandlerStatus;

use crate::operate::known;
use crate::operate::status::is_alive;

/// The status at one moment.
#[derive(Debug)]
pub(super) struct StatusSample {
    pub(super) at: SystemTime,
    taken: Instant,
    pub(super) handlers: Vec<HandlerStatus>,
    /// The number of processes whose lease has not expired.
    pub(super) processes: usize,
}

impl StatusSample {
    pub(super) async fn take(operators: &Operators) -> Result<Self> {
        let handlers = known::handlers(operators).await?;
        // Right after the counts, because rates divide their growth by the time between two samples.
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

/// Rates per second, on average since the sample before. `None` if unknown.
#[derive(Debug, PartialEq)]
pub(super) struct Rates {
    /// The growth of the log, in positions.
    pub(super) accepted: Option<f64>,
    /// The positions that each handler has passed, in the order of the handlers.
    pub(super) passed: Vec<Option<f64>>,
}

impl Rates {
    pub(super) fn between(last: Option<&StatusSample>, now: &StatusSample) -> Self {
        let rate = |status: &HandlerStatus, count: fn(&HandlerStatus) -> u64| {
            let last = last?;
            let seconds = now.taken.duration_since(last.taken).as_secs_f64();
            // `None` if the count is lower than before: a replay has moved the handler back.
            let grown = count(status).checked_sub(count(last.handler(status)?))?;
            (seconds > 0.0).then(|| as_float(grown) / seconds)
        };
        // The positions behind a handler and ahead of it together are the whole log.
        let readers = now.handlers.iter().filter(|status| status.handler.mode.reads_log());
        let accepted = readers.filter_map(|status| rate(status, |status| status.passed + status.lag)).next();
        let passed = now.handlers.iter().map(|status| rate(status, |status| status.passed)).collect();
        Self { accepted, passed }
    }
}

fn as_float(count: u64) -> f64 {
    // Saturates: nothing grows by more between two samples.
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
            keep: None,
        };
        HandlerStatus { handler, passed, lag, oldest_waiting: None, tasks: 0, dead: 0 }
    }

    fn sample(taken: Instant, handlers: Vec<HandlerStatus>) -> StatusSample {
        StatusSample { at: SystemTime::now(), taken, handlers, processes: 0 }
    }

    #[test]
    fn rates_are_positions_per_second() {
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
        // The second handler is replayed, so its rate is unknown. The third one is new.
        let expected = Rates { accepted: Some(10.0), passed: vec![Some(10.0), None, None] };
        assert_eq!(Rates::between(Some(&first), &second), expected);
    }

    #[test]
    fn inline_handlers_do_not_show_the_growth_of_the_log() {
        let start = Instant::now();
        let first = sample(start, vec![status(1, Mode::inline(), 0, 0)]);
        let second = sample(start + Duration::from_secs(1), vec![status(1, Mode::inline(), 0, 0)]);
        assert_eq!(Rates::between(Some(&first), &second).accepted, None);
    }
}
