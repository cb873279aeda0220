//! What is sent and what is to become of it: everything follows from the mode, the seed and the message's number.

use std::time::Duration;

use crate::chance::fate;

/// How messages come in.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Handlers run while the source waits.
    Inline,
    /// Messages go into the log; workers run the handlers.
    Stored,
    /// Inline, and what fails goes into the log.
    Spill,
}

impl Mode {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Inline, Self::Stored, Self::Spill];

    /// How it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Stored => "stored",
            Self::Spill => "spill",
        }
    }

    /// The mode of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// A handler that writes an effect in every mode.
pub const BOOKS: &str = "books";
/// A second one on the same messages, inline.
pub const LEDGER: &str = "ledger";
/// A second one on the same messages, stored: in the order of each account.
pub const STATEMENT: &str = "statement";
/// Works outside of any transaction, stored.
pub const MAIL: &str = "mail";

/// Messages with the same account keep their order in the handler [`STATEMENT`].
pub const ACCOUNTS: u64 = 997;

/// A process that was silent for so long is taken for dead.
pub const LEASE: Duration = Duration::from_secs(1);

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes effects, in transactions.
    Order,
    /// Has an effect that no transaction covers.
    Letter,
}

/// How a try ends that is not to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The next one may work.
    Passing,
    /// None will work, until somebody heals what is wrong.
    Lasting,
}

/// What is sent, and what becomes of it.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How messages come in.
    pub mode: Mode,
    /// Decides everything that is left to chance.
    pub seed: u64,
}

impl Plan {
    /// What kind of message this is.
    #[must_use]
    pub fn kind(self, id: u64) -> Kind {
        match self.mode {
            Mode::Stored if self.is_chosen("kind", id, 0, 20) => Kind::Letter,
            _ => Kind::Order,
        }
    }

    /// The handlers that are to write one effect each.
    #[must_use]
    pub fn handlers(self, id: u64) -> &'static [&'static str] {
        match (self.mode, self.kind(id)) {
            (_, Kind::Letter) => &[],
            (Mode::Stored, Kind::Order) => &[BOOKS, STATEMENT],
            (Mode::Inline | Mode::Spill, Kind::Order) => &[BOOKS, LEDGER],
        }
    }

    /// Whether this try fails, and how.
    #[must_use]
    pub fn trouble(self, handler: &str, id: u64, attempt: u32, is_healed: bool) -> Option<Trouble> {
        let often = if self.mode == Mode::Spill { 20 } else { 200 };
        match () {
            () if self.fails_for_good(handler, id) && !is_healed => Some(Trouble::Lasting),
            () if attempt <= 2 && self.is_chosen(handler, id, attempt, often) => Some(Trouble::Passing),
            () => None,
        }
    }

    /// Whether a handler gives up on a message until somebody heals what is wrong: it becomes a dead letter.
    #[must_use]
    pub fn fails_for_good(self, handler: &str, id: u64) -> bool {
        handler == BOOKS && self.mode != Mode::Inline && self.is_chosen("lasting", id, 0, 3_000)
    }

    /// Whether the body takes its time, with its transaction open.
    #[must_use]
    pub fn is_slow(self, handler: &str, id: u64) -> bool {
        let seldom = if handler == MAIL { 10 } else { 400 };
        self.is_chosen(handler, id, u32::MAX, seldom)
    }

    /// The message of the same account that comes before this one, if its order matters.
    #[must_use]
    pub fn predecessor(self, id: u64) -> Option<u64> {
        if self.mode == Mode::Stored { id.checked_sub(ACCOUNTS) } else { None }
    }

    fn is_chosen(self, what: &str, id: u64, attempt: u32, one_in: u64) -> bool {
        let what = what.bytes().fold(0, |sum: u64, byte| sum.wrapping_mul(257).wrapping_add(u64::from(byte)));
        fate(&[self.seed, what, id, u64::from(attempt)]).is_multiple_of(one_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_for_good_works_once_healed() {
        let plan = Plan { mode: Mode::Spill, seed: 1 };
        let lasting = |healed| {
            (0..30_000).filter(|&id| plan.trouble(BOOKS, id, 3, healed) == Some(Trouble::Lasting)).count()
        };
        assert!(lasting(false) > 0);
        assert_eq!(lasting(true), 0);
        assert!((0..30_000).all(|id| plan.trouble(LEDGER, id, 3, false).is_none()), "the third try works");
    }

    #[test]
    fn letters_are_stored_only_and_have_no_effect_in_the_database() {
        let letters = |mode| (0..1_000).filter(|&id| Plan { mode, seed: 1 }.handlers(id).is_empty()).count();
        assert!(letters(Mode::Stored) > 10);
        assert_eq!((letters(Mode::Inline), letters(Mode::Spill)), (0, 0));
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        assert!(Mode::ALL.into_iter().all(|mode| Mode::named(mode.name()) == Some(mode)));
    }
}
