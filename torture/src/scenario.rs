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
    /// Messages are published through an outbox, and a relay carries them to an inbox in a second database.
    Outbox,
}

impl TortureMode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Inline, Self::Stored, Self::Spill, Self::Outbox];

    /// Its name in options and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Stored => "stored",
            Self::Spill => "spill",
            Self::Outbox => "outbox",
        }
    }

    /// The mode with that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// A handler of orders in every mode. With an outbox it publishes what it has booked.
pub const BOOKS: &str = "books";
/// A second handler of orders, inline and spill. With an outbox a handler of sales, at the receiver.
pub const LEDGER: &str = "ledger";
/// A second handler of orders, stored: ordered by account. With an outbox it is at the receiver.
pub const STATEMENT: &str = "statement";
/// A detached handler of letters, stored.
pub const MAIL: &str = "mail";
/// Transactions of the application, which publish without a handler.
pub const TILL: &str = "till";
/// A handler of sales in the database of the sender, ordered by account.
pub const AUDIT: &str = "audit";
/// An inline handler of notes, at the receiver.
pub const NOTES: &str = "notes";
/// The relay to the receiver.
pub const EVENTS: &str = "events";

/// The number of accounts. Larger than the source's window, so that orders of one account seldom wait for each other.
const ACCOUNTS: u64 = 997;
/// The number of accounts with an outbox. Transactions of one account must meet, because their order is what is checked.
const OUTBOX_ACCOUNTS: u64 = 97;

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

/// What an own transaction of the application does, by plan, when a copy of its message arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnTransaction {
    /// It commits, unless an earlier copy has committed.
    Commits,
    /// It does everything, and rolls back.
    RollsBack,
    /// It publishes once more under the same key if an earlier copy has committed.
    Repeats,
}

/// How a sink fails by plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkFailure {
    /// It refuses the message.
    Refuse(PlannedFailure),
    /// The receiver stores the message, and the relay does not get the confirm.
    LoseConfirm,
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
        let accounts = if self.mode == TortureMode::Outbox { OUTBOX_ACCOUNTS } else { ACCOUNTS };
        Plan { seed: self.seed, accounts, is_ordered: self.mode == TortureMode::Stored }
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
            (TortureMode::Outbox, MessageKind::Order) => {
                match (self.sender(message), self.is_note(message)) {
                    (TILL, true) => &[TILL, NOTES],
                    (TILL, false) => &[TILL, AUDIT, LEDGER, STATEMENT],
                    (_, true) => &[BOOKS, NOTES],
                    (_, false) => &[BOOKS, AUDIT, LEDGER, STATEMENT],
                }
            }
        }
    }

    /// The handlers that messages reach through the relay.
    #[must_use]
    pub fn receiver_handlers(self) -> &'static [&'static str] {
        if self.mode == TortureMode::Outbox { &[LEDGER, STATEMENT, NOTES] } else { &[] }
    }

    /// Whether the handler's markers are kept in the database, one for each effect. Others have their progress instead.
    #[must_use]
    pub fn has_markers(self, handler: &str) -> bool {
        match self.mode {
            TortureMode::Inline | TortureMode::Spill => true,
            TortureMode::Stored => false,
            TortureMode::Outbox => handler == BOOKS || handler == NOTES,
        }
    }

    /// With an outbox: whose transaction publishes the message.
    #[must_use]
    pub fn sender(self, message: u64) -> &'static str {
        if self.is_chosen("till", message, 0, 2) { TILL } else { BOOKS }
    }

    /// With an outbox: whether the message is a note, which has no ordering key, and not a sale.
    #[must_use]
    pub fn is_note(self, message: u64) -> bool {
        self.is_chosen("note", message, 0, 4)
    }

    /// What an own transaction of the application does with this copy.
    #[must_use]
    pub fn own_transaction(self, message: u64, copy: u32) -> OwnTransaction {
        // No later copy rolls back, so that every message commits in the end.
        if copy <= 2 && self.is_chosen("rollback", message, copy, 20) {
            OwnTransaction::RollsBack
        } else if self.is_chosen("repeat", message, copy, 4) {
            OwnTransaction::Repeats
        } else {
            OwnTransaction::Commits
        }
    }

    /// Whether and how the sink fails, when a process sends the message for the `sending`th time. From the third time on it fails
    /// permanently or not at all.
    #[must_use]
    pub fn sink_failure(self, message: u64, sending: u32, is_permanent_stopped: bool) -> Option<SinkFailure> {
        if self.fails_permanently(EVENTS, message) && !is_permanent_stopped {
            Some(SinkFailure::Refuse(PlannedFailure::Permanent))
        } else if sending > 2 {
            None
        } else if self.is_chosen("refuse", message, sending, 300) {
            Some(SinkFailure::Refuse(PlannedFailure::Transient))
        } else if self.is_chosen("confirm", message, sending, 150) {
            Some(SinkFailure::LoseConfirm)
        } else {
            None
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
        let is_meant = match self.mode {
            TortureMode::Inline => false,
            TortureMode::Stored | TortureMode::Spill => handler == BOOKS,
            // A dead letter of the relay holds back its account.
            TortureMode::Outbox => handler == LEDGER || handler == EVENTS,
        };
        // Behind the relay's dead letters another draw, so that some messages fail there only.
        let purpose = if handler == EVENTS { "permanently refused" } else { "permanent" };
        is_meant && self.is_chosen(purpose, message, 0, 3_000)
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
        for mode in [TortureMode::Inline, TortureMode::Spill, TortureMode::Outbox] {
            assert_eq!(letters(mode), 0);
        }
    }

    #[test]
    fn with_an_outbox_each_message_has_one_sender_and_the_handlers_of_its_kind() {
        let scenario = Scenario { mode: TortureMode::Outbox, seed: 1 };
        for message in 1..1_000 {
            let handlers = scenario.handlers(message);
            assert_eq!(handlers[0], scenario.sender(message));
            assert_eq!(handlers[1..] == [NOTES], scenario.is_note(message));
            assert_eq!(handlers[1..] == [AUDIT, LEDGER, STATEMENT], !scenario.is_note(message));
        }
    }

    #[test]
    fn every_message_commits_and_is_confirmed_in_the_end() {
        let scenario = Scenario { mode: TortureMode::Outbox, seed: 1 };
        let rolled_back = |copy| {
            let rolls_back =
                |message: &u64| scenario.own_transaction(*message, copy) == OwnTransaction::RollsBack;
            (1..10_000).filter(rolls_back).count()
        };
        assert!(rolled_back(1) > 100 && rolled_back(2) > 100);
        assert_eq!(rolled_back(3), 0);
        let failed = |sending, is_stopped| {
            let failure = |message: &u64| scenario.sink_failure(*message, sending, is_stopped);
            (1..10_000).filter_map(|message| failure(&message)).count()
        };
        assert!(failed(1, true) > 50 && failed(2, true) > 50);
        assert!(failed(3, false) > 0, "permanent failures");
        assert_eq!(failed(3, true), 0);
    }

    #[test]
    fn a_mode_is_found_by_its_name() {
        assert!(TortureMode::ALL.into_iter().all(|mode| TortureMode::named(mode.name()) == Some(mode)));
    }
}
