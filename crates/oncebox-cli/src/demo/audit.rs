//! The audit: the messages that were sent, compared with the ledger. Pure.

use oncebox_workload::history::SentMessage;
use oncebox_workload::ledger::LedgerDiff;
use oncebox_workload::plan::Entry;

use crate::demo::history::DemoCounts;
use crate::demo::ledger::LedgerRow;
use crate::demo::plan::MessageMode;

/// The result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Audit {
    /// The number of rows.
    pub(super) effects: u64,
    /// Messages that must have a row, and have none.
    pub(super) lost: u64,
    /// Rows beyond the first of a message.
    pub(super) double: u64,
    /// Rows of messages that were not sent, or with another account or amount.
    pub(super) foreign: u64,
    /// Messages whose handler may still run: only after an interrupted demo.
    pub(super) open: u64,
    pub(super) amount_expected: i64,
    pub(super) amount_found: i64,
}

impl Audit {
    /// Compares the messages that were sent with all rows of the ledger.
    pub(super) fn new(counts: &DemoCounts, rows: &[LedgerRow]) -> Self {
        let sent = &counts.deliveries.sent;
        let entries = || sent.values().map(|sent| sent.entry);
        let diff = LedgerDiff::new(entries(), rows.iter().copied());
        let is_open = |entry: &Entry| !must_be_handled(counts, &sent[&entry.message]);
        let (open, lost): (Vec<Entry>, Vec<Entry>) = diff.missing.iter().copied().partition(is_open);
        let amount = |entry: Entry| entry.amount.cast_signed();
        Self {
            effects: diff.rows,
            lost: lost.len() as u64,
            double: diff.duplicate_rows(),
            foreign: diff.unexpected_rows(),
            open: open.len() as u64,
            amount_expected: entries().map(amount).sum::<i64>() - open.into_iter().map(amount).sum::<i64>(),
            amount_found: rows.iter().map(|(entry, times)| amount(*entry) * times.cast_signed()).sum(),
        }
    }

    /// Whether every message took effect once, as far as the demo got.
    pub(super) fn is_exact(&self) -> bool {
        (self.lost, self.double, self.foreign) == (0, 0, 0) && self.amount_expected == self.amount_found
    }
}

/// At the end every message; before that, inline messages that are acknowledged.
fn must_be_handled(counts: &DemoCounts, sent: &SentMessage) -> bool {
    counts.is_worked_off
        || (sent.is_acknowledged && MessageMode::of(sent.entry.message) == MessageMode::Inline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::history::DemoEvent;
    use crate::demo::history::tests::{acknowledged, counts, sent};

    fn row(message: u64, times: u64) -> LedgerRow {
        (Entry { message, account: 1, amount: message * 10 }, times)
    }

    fn finished() -> DemoCounts {
        counts(&[sent(1), sent(2), sent(3), DemoEvent::WorkedOff.into()])
    }

    #[test]
    fn one_row_each_is_exact() {
        let audit = Audit::new(&finished(), &[row(1, 1), row(2, 1), row(3, 1)]);
        assert!(audit.is_exact());
        let expected = Audit { effects: 3, amount_expected: 60, amount_found: 60, ..Audit::default() };
        assert_eq!(audit, expected);
    }

    #[test]
    fn missing_second_and_foreign_rows_are_counted() {
        let table: [(&[LedgerRow], [u64; 4]); 4] = [
            (&[row(1, 1), row(3, 1)], [2, 1, 0, 0]),
            (&[row(1, 1), row(2, 3), row(3, 1)], [5, 0, 2, 0]),
            (&[row(1, 2), row(3, 1)], [3, 1, 1, 0]),
            (&[row(1, 1), row(2, 1), row(3, 1), row(4, 1)], [4, 0, 0, 1]),
        ];
        for (rows, expected) in table {
            let audit = Audit::new(&finished(), rows);
            assert_eq!([audit.effects, audit.lost, audit.double, audit.foreign], expected, "{rows:?}");
            assert!(!audit.is_exact(), "{rows:?}");
        }
    }

    #[test]
    fn a_row_with_another_amount_is_foreign() {
        let wrong = |message, amount: i64| (Entry { message, account: 1, amount: amount.cast_unsigned() }, 1);
        let audit = Audit::new(&finished(), &[wrong(1, 40), wrong(2, -10), row(3, 1)]);
        assert_eq!((audit.lost, audit.foreign), (2, 2));
        assert_eq!(audit.amount_expected, audit.amount_found, "the sum alone would not show it");
        assert!(!audit.is_exact());
    }

    #[test]
    fn after_an_interruption_only_acknowledged_inline_messages_must_have_a_row() {
        let counts =
            counts(&[sent(1), sent(2), sent(3), acknowledged(1, "done"), acknowledged(2, "accepted")]);
        let audit = Audit::new(&counts, &[row(1, 1)]);
        assert!(audit.is_exact());
        assert_eq!((audit.lost, audit.open), (0, 2));
        let audit = Audit::new(&counts, &[row(2, 1)]);
        assert_eq!((audit.lost, audit.open), (1, 1));
        assert!(!audit.is_exact());
    }
}
