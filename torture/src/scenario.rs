//! The messages of a run, their handlers and planned failures: everything follows from the mode, the seed and the message's number.

use std::time::Duration;

use oncebox_workload::plan::Plan;
use oncebox_workload::random::draw;

/// How messages reach their handlers.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum TortureMode {
    /// Handlers run while the source waits.
    Inline,
    /// Messages are stored in the log; workers run the handlers.
    Stored,
    /// Inline; failed messages are stored in the log and retried.
    Spill,
}

impl TortureMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Inline, Self::Stored, Self::Spill];

    /// Its name in options and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Stored => "stored",
            Self::Spill => "spill",
        }
    }

    /// The mode with that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// A handler of orders in every mode.
pub const BOOKS: &str = "books";
/// A second handler of orders, inline and spill.
pub const LEDGER: &str = "ledger";
/// A second handler of orders, stored: ordered by account.
pub const STATEMENT: &str = "statement";
/// A detached handler of letters, stored.
pub const MAIL: &str = "mail";

/// The number of accounts. Larger than the source's window, so that orders of one account seldom wait for each other.
const ACCOUNTS: u64 = 997;

/// The lease of a worker process.
pub const LEASE: Duration = Duration::from_secs(1);

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Its handlers write effects, in transactions.
    Order,
    /// Its handler acts outside of transactions.
    Letter,
}

/// How an attempt fails by plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedFailure {
    /// A later attempt succeeds.
    Transient,
    /// No attempt succeeds until permanent failures are stopped.
    Permanent,
}

/// The messages of a run and their planned failures.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// How messages reach their handlers.
    pub mode: TortureMode,
    /// Determines everything that looks random.
    pub seed: u64,
}

impl Scenario {
    /// The plan of the source. In stored mode it keeps the order of each account.
    #[must_use]
    pub fn plan(self) -> Plan {
        Plan { seed: self.seed, accounts: ACCOUNTS, is_ordered: self.mode == TortureMode::Stored }
    }

    /// The kind of a message.
    #[must_use]
    pub fn kind(self, message: u64) -> MessageKind {
        match self.mode {
            TortureMode::Stored if self.is_chosen("letter", message, 0, 20) => MessageKind::Letter,
            _ => MessageKind::Order,
        }
    }

    /// The handlers that must write one effect each.
    #[must_use]
    pub fn handlers(self, message: u64) -> &'static [&'static str] {
        match (self.mode, self.kind(message)) {
            (_, MessageKind::Letter) => &[],
            (TortureMode::Stored, MessageKind::Order) => &[BOOKS, STATEMENT],
            (TortureMode::Inline | TortureMode::Spill, MessageKind::Order) => &[BOOKS, LEDGER],
        }
    }

    /// Whether this attempt fails, and how. From the third attempt on no failure is transient.
    #[must_use]
    pub fn failure(
        self,
        handler: &str,
        message: u64,
        attempt: u32,
        is_permanent_stopped: bool,
    ) -> Option<PlannedFailure> {
        // More often in spill mode, because only failed messages reach the log there.
        let one_in = if self.mode == TortureMode::Spill { 20 } else { 200 };
        if self.fails_permanently(handler, message) && !is_permanent_stopped {
            Some(PlannedFailure::Permanent)
        // The attempt is part of the draw, so that a repeated attempt can succeed.
        } else if attempt <= 2 && self.is_chosen(handler, message, attempt, one_in) {
            Some(PlannedFailure::Transient)
        } else {
            None
        }
    }

    /// Whether the message becomes a dead letter of this handler, as long as permanent failures are not stopped.
    #[must_use]
    pub fn fails_permanently(self, handler: &str, message: u64) -> bool {
        handler == BOOKS && self.mode != TortureMode::Inline && self.is_chosen("permanent", message, 0, 3_000)
    }

    /// Whether the handler is slow with this message, with its transaction open.
    #[must_use]
    pub fn is_slow(self, handler: &str, message: u64) -> bool {
        let one_in = if handler == MAIL { 10 } else { 400 };
        // No attempt has this number, so slow runs are drawn independently of planned failures.
        self.is_chosen(handler, message, u32::MAX, one_in)
    }

    fn is_chosen(self, purpose: &str, message: u64, attempt: u32, one_in: u64) -> bool {
        draw(self.seed, purpose, &[message, attempt.into()]).is_multiple_of(one_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permanent_failure_lasts_until_it_is_stopped() {
        let scenario = Scenario { mode: TortureMode::Spill, seed: 1 };
        let permanent = |is_stopped| {
            let failure = |message: &u64| scenario.failure(BOOKS, *message, 3, is_stopped);
            (1..30_000).filter(|message| failure(message) == Some(PlannedFailure::Permanent)).count()
        };
        assert!(permanent(false) > 0);
        assert_eq!(permanent(true), 0);
    }

    #[test]
    fn the_third_attempt_does_not_fail_transiently() {
        let scenario = Scenario { mode: TortureMode::Spill, seed: 1 };
        let failures = |attempt| {
            (1..30_000).filter_map(|message| scenario.failure(LEDGER, message, attempt, false)).count()
        };
        assert!(failures(1) > 1_000 && failures(2) > 1_000);
        assert_eq!(failures(3), 0);
    }

    #[test]
    fn letters_are_stored_only_and_have_no_effect_in_the_database() {
        let letters = |mode| {
            let scenario = Scenario { mode, seed: 1 };
            (1..1_000).filter(|message| scenario.handlers(*message).is_empty()).count()
        };
        assert!(letters(TortureMode::Stored) > 10);
        assert_eq!((letters(TortureMode::Inline), letters(TortureMode::Spill)), (0, 0));
    }

    #[test]
    fn a_mode_is_found_by_its_name() {
        assert!(TortureMode::ALL.into_iter().all(|mode| TortureMode::named(mode.name()) == Some(mode)));
    }
}
