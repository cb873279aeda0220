//! The audit: what was sent against what is in the ledger. Pure.

use std::collections::HashMap;

use crate::demo::history::{Counts, Sent};
use crate::demo::ledger::Row;
use crate::demo::plan::Way;

/// What the ledger says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Audit {
    /// Rows.
    pub(super) effects: u64,
    /// Messages that must have a row, and have none.
    pub(super) lost: u64,
    /// Rows beyond the first of a message.
    pub(super) double: u64,
    /// Rows that nobody sent, or not with this account and amount.
    pub(super) foreign: u64,
    /// Messages that may still get their row: only where the demo was interrupted.
    pub(super) open: u64,
    pub(super) amount_expected: i64,
    pub(super) amount_found: i64,
}

impl Audit {
    /// Compares what was sent with all rows of the ledger.
    pub(super) fn of(counts: &Counts, rows: &[Row]) -> Self {
        let mut audit = Self::default();
        let mut found: HashMap<i64, u64> = HashMap::new();
        for (entry, times) in rows {
            audit.effects += times;
            audit.amount_found += entry.amount * i64::try_from(*times).unwrap_or(i64::MAX);
            match counts.sent.get(&entry.message) {
                Some(sent) if sent.entry == *entry => *found.entry(entry.message).or_default() += times,
                _ => audit.foreign += times,
            }
        }
        for (message, sent) in &counts.sent {
            match found.get(message).copied().unwrap_or(0) {
                0 if must_be_there(counts, sent) => audit.lost += 1,
                0 => {
                    audit.open += 1;
                    continue;
                }
                rows => audit.double += rows - 1,
            }
            audit.amount_expected += sent.entry.amount;
        }
        audit
    }

    /// Whether every message took effect once, as far as the demo got.
    pub(super) fn is_exact(&self) -> bool {
        (self.lost, self.double, self.foreign) == (0, 0, 0) && self.amount_expected == self.amount_found
    }
}

/// At the end, everything. Before that, what was handled when it was acknowledged.
fn must_be_there(counts: &Counts, sent: &Sent) -> bool {
    counts.is_worked_off || (sent.way == Way::Inline && sent.is_acknowledged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::history::Event;
    use crate::demo::history::tests::{answered, counts, sent};
    use crate::demo::plan::Entry;

    fn row(message: i64, times: u64) -> Row {
        (Entry { message, account: 1, amount: message * 10 }, times)
    }

    fn finished() -> Counts {
        counts(&[sent(1, Way::Inline), sent(2, Way::Stored), sent(3, Way::Inline), Event::WorkedOff])
    }

    #[test]
    fn one_row_each_is_exact() {
        let audit = Audit::of(&finished(), &[row(1, 1), row(2, 1), row(3, 1)]);
        assert!(audit.is_exact());
        let expected = Audit { effects: 3, amount_expected: 60, amount_found: 60, ..Audit::default() };
        assert_eq!(audit, expected);
    }

    #[test]
    fn a_missing_row_is_a_loss() {
        let audit = Audit::of(&finished(), &[row(1, 1), row(3, 1)]);
        assert_eq!((audit.lost, audit.double, audit.effects), (1, 0, 2));
        assert_eq!((audit.amount_expected, audit.amount_found), (60, 40));
        assert!(!audit.is_exact());
    }

    #[test]
    fn a_second_row_is_a_double() {
        let audit = Audit::of(&finished(), &[row(1, 1), row(2, 3), row(3, 1)]);
        assert_eq!((audit.lost, audit.double, audit.effects), (0, 2, 5));
        assert!(!audit.is_exact());
    }

    #[test]
    fn one_lost_and_one_double_do_not_cancel_out() {
        let audit = Audit::of(&finished(), &[row(1, 2), row(3, 1)]);
        assert_eq!((audit.lost, audit.double, audit.effects), (1, 1, 3));
        assert!(!audit.is_exact());
    }

    #[test]
    fn a_row_that_nobody_sent_is_foreign() {
        let audit = Audit::of(&finished(), &[row(1, 1), row(2, 1), row(3, 1), row(4, 1)]);
        assert_eq!((audit.lost, audit.double, audit.foreign), (0, 0, 1));
        assert!(!audit.is_exact());
    }

    #[test]
    fn another_amount_is_another_row() {
        let wrong = |message, amount| (Entry { message, account: 1, amount }, 1);
        let audit = Audit::of(&finished(), &[wrong(1, 11), wrong(2, 19), row(3, 1)]);
        assert_eq!((audit.lost, audit.foreign), (2, 2));
        assert_eq!(audit.amount_expected, audit.amount_found, "the sum alone would not tell");
        assert!(!audit.is_exact());
    }

    #[test]
    fn when_interrupted_only_what_was_handled_must_be_there() {
        let sent = [sent(1, Way::Inline), sent(2, Way::Stored), sent(3, Way::Inline)];
        let heard = [answered(1, "done"), answered(2, "accepted")];
        let counts = counts(&[&sent[..], &heard].concat());
        let audit = Audit::of(&counts, &[row(1, 1)]);
        assert!(audit.is_exact());
        assert_eq!((audit.lost, audit.open), (0, 2));
        let audit = Audit::of(&counts, &[row(2, 1)]);
        assert_eq!((audit.lost, audit.open), (1, 1));
        assert!(!audit.is_exact());
    }
}
