//! The content of each message, by its number and the seed.

use serde::{Deserialize, Serialize};

use crate::random::draw;

const AMOUNT_MAX: u64 = 10_000;
/// One acknowledgement in this many is lost.
const LOST_ACK_ONE_IN: u64 = 8;

/// The entry that a message adds to the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Entry {
    /// The message's number, which is its idempotency key.
    pub message: u64,
    /// The account that it belongs to.
    pub account: u64,
    /// The amount that it adds.
    pub amount: u64,
}

/// The content of all messages, determined by a seed. Messages are numbered 1, 2, 3, ….
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Determines everything that looks random.
    pub seed: u64,
    /// The number of accounts; messages belong to them in turn.
    pub accounts: u64,
    /// Whether a message is sent only when the one before it in its account is acknowledged.
    pub is_ordered: bool,
}

impl Plan {
    /// The entry of a message.
    #[must_use]
    pub fn entry(self, message: u64) -> Entry {
        let amount = 1 + draw(self.seed, "amount", &[message]) % AMOUNT_MAX;
        Entry { message, account: self.account(message), amount }
    }

    /// The account of a message.
    #[must_use]
    pub fn account(self, message: u64) -> u64 {
        message % self.accounts
    }

    /// The message that must be acknowledged before this one is sent.
    #[must_use]
    pub fn predecessor(self, message: u64) -> Option<u64> {
        (self.is_ordered && message > self.accounts).then(|| message - self.accounts)
    }

    /// Whether the acknowledgement of this copy is lost on its way to the source.
    #[must_use]
    pub fn loses_ack(self, message: u64, copy: u32) -> bool {
        // The copy is part of the draw. Otherwise every acknowledgement of this message would be lost.
        draw(self.seed, "lost ack", &[message, copy.into()]).is_multiple_of(LOST_ACK_ONE_IN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan { seed: 7, accounts: 100, is_ordered: true };

    #[test]
    fn a_message_has_the_same_entry_each_time_and_another_one_with_another_seed() {
        for message in 1..=1_000 {
            let entry = PLAN.entry(message);
            assert_eq!(entry, PLAN.entry(message));
            assert!(entry.account < 100 && (1..=10_000).contains(&entry.amount), "{entry:?}");
        }
        assert_ne!(PLAN.entry(1).amount, Plan { seed: 8, ..PLAN }.entry(1).amount);
    }

    #[test]
    fn a_predecessor_is_the_message_before_in_the_same_account() {
        for (message, predecessor) in [(1, None), (100, None), (101, Some(1)), (250, Some(150))] {
            assert_eq!(PLAN.predecessor(message), predecessor, "{message}");
            assert!(predecessor.is_none_or(|before| PLAN.account(before) == PLAN.account(message)));
        }
        assert_eq!(Plan { is_ordered: false, ..PLAN }.predecessor(250), None);
    }

    #[test]
    fn some_acknowledgements_are_lost_but_never_all_of_a_message() {
        let lost = (1..=1_000).filter(|message| PLAN.loses_ack(*message, 1)).count();
        assert!((80..180).contains(&lost), "{lost}");
        for message in 1..=1_000 {
            assert!((1..50).any(|copy| !PLAN.loses_ack(message, copy)), "{message}");
        }
    }
}
