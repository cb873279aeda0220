//! The demo's messages: half of them are handled inline, half of them are stored.

use oncebox_workload::plan::Plan;
use serde::{Deserialize, Serialize};

const ACCOUNTS: u64 = 100;

/// How a message reaches its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum MessageMode {
    /// `process`: the acknowledgement follows the commit.
    Inline,
    /// `accept`: the acknowledgement follows the append, and the handler runs later.
    Stored,
}

impl MessageMode {
    /// The mode of the message with that number.
    pub(super) fn of(message: u64) -> Self {
        if message.is_multiple_of(2) { Self::Stored } else { Self::Inline }
    }
}

/// The plan of a demo. No handler is ordered.
pub(super) fn plan(seed: u64) -> Plan {
    Plan { seed, accounts: ACCOUNTS, is_ordered: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_messages_are_stored() {
        let stored = (1..=1_000).filter(|message| MessageMode::of(*message) == MessageMode::Stored);
        assert_eq!(stored.count(), 500);
    }
}
