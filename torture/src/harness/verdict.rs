//! The counts that a check results in, and their sums.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// Messages that were sent.
    pub(crate) messages: u64,
    /// Copies that workers received.
    pub(crate) deliveries: u64,
    /// Faults that happened.
    pub(crate) faults: u64,
    /// Rows in the table of effects.
    pub(crate) effects: u64,
    /// Effects that are missing though their message was acknowledged.
    pub(crate) lost: u64,
    /// Effects beyond the first.
    pub(crate) duplicated: u64,
    /// Runs of one handler for one message whose transactions were open at the same time.
    pub(crate) overlap: u64,
    /// Effects of an ordered handler that were written after the effect of a later message of their account.
    pub(crate) inversion: u64,
    /// Effects without a message, effects without a marker, and markers without an effect.
    pub(crate) ghost: u64,
    /// Messages that were never acknowledged or never handled though the faults had stopped; processes that did not start, made no
    /// progress, or ended by themselves.
    pub(crate) stuck: u64,
    /// Dead letters of messages that were not planned to fail permanently.
    // Lines of older ledger files do not have this field, and must still be readable.
    #[serde(default)]
    pub(crate) dead: u64,
    /// Commits whose result was lost.
    pub(crate) commits_unknown: u64,
    /// Those of them that had succeeded.
    pub(crate) commits_recovered: u64,
    /// How often each fault happened.
    pub(crate) by_fault: BTreeMap<String, u64>,
}

impl Verdict {
    /// The number of broken promises.
    pub(crate) fn violations(&self) -> u64 {
        self.lost + self.duplicated + self.overlap + self.inversion + self.ghost + self.stuck + self.dead
    }

    /// Adds another verdict to this one.
    pub(crate) fn add(&mut self, other: &Self) {
        let sums = [
            (&mut self.messages, other.messages),
            (&mut self.deliveries, other.deliveries),
            (&mut self.faults, other.faults),
            (&mut self.effects, other.effects),
            (&mut self.lost, other.lost),
            (&mut self.duplicated, other.duplicated),
            (&mut self.overlap, other.overlap),
            (&mut self.inversion, other.inversion),
            (&mut self.ghost, other.ghost),
            (&mut self.stuck, other.stuck),
            (&mut self.dead, other.dead),
            (&mut self.commits_unknown, other.commits_unknown),
            (&mut self.commits_recovered, other.commits_recovered),
        ];
        for (sum, more) in sums {
            *sum += more;
        }
        for (fault, times) in &other.by_fault {
            *self.by_fault.entry(fault.clone()).or_default() += times;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_add_up() {
        let by_fault = BTreeMap::from([("disk_full".to_owned(), 1)]);
        let other = Verdict { faults: 1, stuck: 2, by_fault, ..Verdict::default() };
        let mut sum = Verdict { messages: 1, lost: 1, ..Verdict::default() };
        sum.add(&other);
        sum.add(&other);
        assert_eq!((sum.messages, sum.faults, sum.by_fault["disk_full"]), (1, 2, 2));
        assert_eq!(sum.violations(), 5);
    }
}
