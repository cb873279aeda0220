//! The report of one delivery, with one outcome per handler.

use std::sync::Arc;

use crate::outcome::{Cause, Outcome, Settlement, cause};

/// The outcomes of one delivery: one for each handler of its kind.
#[derive(Clone, Debug, Default)]
pub struct Report {
    units: Vec<(Arc<str>, Outcome)>,
}

impl Report {
    pub(crate) fn new(units: Vec<(Arc<str>, Outcome)>) -> Self {
        Self { units }
    }

    /// The outcomes with their handlers' names, in the order of registration.
    pub fn outcomes(&self) -> impl Iterator<Item = (&str, &Outcome)> {
        self.units.iter().map(|(handler, outcome)| (&**handler, outcome))
    }

    /// The outcome of one handler.
    pub fn outcome(&self, handler: &str) -> Option<&Outcome> {
        self.outcomes().find(|(name, _)| *name == handler).map(|(_, outcome)| outcome)
    }

    /// Whether any handler is registered for the message's kind.
    pub fn is_handled(&self) -> bool {
        !self.units.is_empty()
    }

    /// The error behind the settlement: that of a handler that must run again, else that of one that rejected the message.
    pub fn reason(&self) -> Option<Cause> {
        if !self.is_handled() {
            return Some(cause("unhandled kind: no handler of this program takes it"));
        }
        let retry = self.units.iter().find_map(|(_, outcome)| match outcome {
            Outcome::Retry { cause, .. } => Some(cause.clone()),
            _ => None,
        });
        let rejection = || {
            self.units.iter().find_map(|(_, outcome)| match outcome {
                Outcome::Rejected(rejection) => Some(cause(rejection.to_error())),
                _ => None,
            })
        };
        retry.or_else(rejection)
    }

    /// The response to the source.
    ///
    /// It is a retry if any handler must run again, else a rejection if any handler rejected the message, else an
    /// acknowledgement. An unhandled kind is rejected, so that its messages are not lost unnoticed.
    pub fn settlement(&self) -> Settlement {
        // An acknowledgement would lose a message with a misspelt kind, and a retry would return for ever.
        if !self.is_handled() {
            return Settlement::Reject;
        }
        let mut settlement = Settlement::Ack;
        for (_, outcome) in &self.units {
            settlement = match (settlement, outcome) {
                // The longest wait counts: no handler may run before the time that it asked for.
                (Settlement::Retry { after: one }, Outcome::Retry { after: other, .. }) => {
                    Settlement::Retry { after: one.max(*other) }
                }
                (_, Outcome::Retry { after, .. }) => Settlement::Retry { after: *after },
                // A retry outweighs a rejection. A rejected delivery would not return to the handler that must run again.
                (retry @ Settlement::Retry { .. }, _) => retry,
                (_, Outcome::Busy) => Settlement::Retry { after: None },
                (_, Outcome::Rejected(_)) => Settlement::Reject,
                (other, Outcome::Done | Outcome::Duplicate | Outcome::KeyReuse | Outcome::Queued) => other,
            };
        }
        settlement
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::outcome::Rejection;

    fn settlement(outcomes: &[Outcome]) -> Settlement {
        Report::new(outcomes.iter().map(|outcome| ("h".into(), outcome.clone())).collect()).settlement()
    }

    fn retry(after: Option<u64>) -> Outcome {
        Outcome::Retry { after: after.map(Duration::from_secs), cause: cause("failed") }
    }

    #[test]
    fn a_retry_outweighs_a_rejection_and_a_rejection_an_acknowledgement() {
        use Outcome::{Busy, Done, Duplicate, KeyReuse, Queued, Rejected};
        let reject = || Rejected(Rejection::MissingKey);
        let again = |after: Option<u64>| Settlement::Retry { after: after.map(Duration::from_secs) };
        let table: &[(&[Outcome], Settlement)] = &[
            (&[], Settlement::Reject),
            (&[Done], Settlement::Ack),
            (&[Done, Duplicate, KeyReuse, Queued], Settlement::Ack),
            (&[Done, Busy], again(None)),
            (&[reject(), Done], Settlement::Reject),
            (&[reject(), Busy, Done], again(None)),
            (&[Busy, reject()], again(None)),
            (&[retry(Some(3)), retry(Some(9)), retry(None)], again(Some(9))),
            (&[Busy, retry(Some(3))], again(Some(3))),
            (&[retry(None), reject()], again(None)),
        ];
        for (outcomes, expected) in table {
            assert_eq!(settlement(outcomes), *expected, "{outcomes:?}");
        }
    }
}
