//! What is sent, and which acknowledgements are lost: pure, by the seed.

use serde::{Deserialize, Serialize};

use crate::demo::chance::fate;

const ACCOUNTS: u64 = 100;
const AMOUNT_MAX: u64 = 10_000;
/// One acknowledgement in so many is lost.
const LOST_ONE_IN: u64 = 8;

/// What a message adds to the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The message's number, which is its key.
    pub(super) message: i64,
    pub(super) account: i64,
    pub(super) amount: i64,
}

/// How a message reaches its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Way {
    /// `process`: the acknowledgement follows the commit.
    Inline,
    /// `accept`: the acknowledgement follows the append, the handler comes later.
    Stored,
}

/// What follows from the seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) messages: i64,
}

impl Plan {
    /// What the message of that number says.
    pub(super) fn entry(self, message: i64) -> Entry {
        let one_of = |purpose, limit| {
            let drawn = fate(&[self.seed, purpose, message.unsigned_abs()]) % limit;
            1 + i64::try_from(drawn).unwrap_or_default()
        };
        Entry { message, account: one_of(1, ACCOUNTS), amount: one_of(2, AMOUNT_MAX) }
    }

    /// Every other one goes the other way.
    pub(super) fn way(self, message: i64) -> Way {
        if message % 2 == 0 { Way::Stored } else { Way::Inline }
    }

    /// Whether the acknowledgement of this copy never arrives.
    pub(super) fn loses_acknowledgement(self, message: i64, copy: u32) -> bool {
        fate(&[self.seed, 3, message.unsigned_abs(), u64::from(copy)]).is_multiple_of(LOST_ONE_IN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_the_same_each_time() {
        let plan = Plan { seed: 7, messages: 1_000 };
        for message in 1..=plan.messages {
            let entry = plan.entry(message);
            assert_eq!(entry, plan.entry(message));
            assert!((1..=100).contains(&entry.account) && (1..=10_000).contains(&entry.amount), "{entry:?}");
        }
        assert_ne!(plan.entry(1).amount, Plan { seed: 8, ..plan }.entry(1).amount);
    }

    #[test]
    fn half_are_stored_and_some_acknowledgements_are_lost_but_not_all_of_a_message() {
        let plan = Plan { seed: 7, messages: 1_000 };
        let stored = (1..=plan.messages).filter(|message| plan.way(*message) == Way::Stored);
        assert_eq!(stored.count(), 500);
        let lost = (1..=plan.messages).filter(|message| plan.loses_acknowledgement(*message, 1)).count();
        assert!((80..180).contains(&lost), "{lost}");
        for message in 1..=plan.messages {
            assert!((1..50).any(|copy| !plan.loses_acknowledgement(message, copy)), "{message}");
        }
    }
}
