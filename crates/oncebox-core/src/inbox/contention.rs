//! Decides which handlers run one transaction at a time. These rules use no clock and no queue.
//!
//! Two transactions that wait for each other's rows gain nothing from running concurrently, and one transaction never waits
//! for itself. So a handler whose transaction met contention takes turns. All such handlers share one turn and run full
//! batches. After a number of clean commits a handler runs concurrently again.

use std::time::Duration;

/// Clean commits after which a handler stops taking turns. The number is multiplied by four each time that the handler meets
/// contention again soon, and divided by four while it does not.
const COMMITS_MIN: u32 = 16;
const COMMITS_MAX: u32 = 1_024;
const GROWTH: u32 = 4;

/// The minimum time for which a statement waits for a lock, if others may wait for this transaction. The wait is twice the
/// duration of such a transaction, far below the deadlock timeout of the database.
const WAIT_MIN: Duration = Duration::from_millis(20);
/// The factor of that wait for a transaction that has the turn. Transactions without the turn give up first.
const IN_TURN: u32 = 8;
const TRIES_MAX: u32 = 3;

/// The contention that one handler's transactions have met.
#[derive(Debug)]
pub(crate) struct Contention {
    takes_turns: bool,
    /// Clean commits since the last change.
    clean: u32,
    needed: u32,
}

impl Contention {
    pub(crate) fn new() -> Self {
        Self { takes_turns: false, clean: 0, needed: COMMITS_MIN }
    }

    /// Whether the handler shares one turn with all others that take turns.
    pub(crate) fn takes_turns(&self) -> bool {
        self.takes_turns
    }

    /// Records contention: a deadlock, a serialization failure, or a lock timeout.
    pub(crate) fn met(&mut self) {
        self.takes_turns = true;
        self.clean = 0;
    }

    /// Records a clean commit of the handler.
    pub(crate) fn committed(&mut self) {
        if !self.takes_turns && self.needed == COMMITS_MIN {
            return;
        }
        self.clean += 1;
        if self.clean < self.needed {
            return;
        }
        self.clean = 0;
        self.needed = match self.takes_turns {
            // If the handler stops too early, it takes turns for longer next time.
            true => (self.needed * GROWTH).min(COMMITS_MAX),
            false => (self.needed / GROWTH).max(COMMITS_MIN),
        };
        self.takes_turns = false;
    }
}

/// How long the statements of a transaction of this duration may wait for a lock. With the turn it waits longer, and longer
/// again with each attempt. `spread` (0 to 255) shortens the wait by up to half, so that one of two transactions that wait for
/// each other gives up first.
pub(crate) fn lock_wait(transaction: Duration, in_turn: bool, tries: u32, spread: u8) -> Duration {
    let wait = transaction.saturating_mul(2).max(WAIT_MIN);
    let full = match in_turn {
        true => wait.saturating_mul(IN_TURN << tries.min(TRIES_MAX)),
        false => wait,
    };
    full - full / 2 * u32::from(spread) / 255
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commits until the handler stops taking turns. Returns the number of commits.
    fn commits_to_leave(contention: &mut Contention) -> u32 {
        let mut commits = 0;
        while contention.takes_turns() {
            contention.committed();
            commits += 1;
        }
        commits
    }

    #[test]
    fn a_handler_without_contention_never_takes_turns() {
        let mut contention = Contention::new();
        for _ in 0..10_000 {
            contention.committed();
            assert!(!contention.takes_turns());
        }
    }

    #[test]
    fn repeated_contention_lengthens_the_turns() {
        let mut contention = Contention::new();
        for expected in [16, 64, 256, 1_024, 1_024] {
            contention.met();
            assert!(contention.takes_turns());
            assert_eq!(commits_to_leave(&mut contention), expected);
        }
    }

    #[test]
    fn contention_during_the_turn_restarts_the_count() {
        let mut contention = Contention::new();
        contention.met();
        for _ in 0..COMMITS_MIN - 1 {
            contention.committed();
        }
        contention.met();
        assert_eq!(commits_to_leave(&mut contention), COMMITS_MIN);
    }

    #[test]
    fn clean_commits_shorten_the_next_turns() {
        // Clean concurrent commits, and the number of commits for which it takes turns the next time.
        for (clean, expected) in
            [(0, 256), (255, 256), (256, 64), (256 + 63, 64), (256 + 64, 16), (10_000, 16)]
        {
            let mut contention = Contention::new();
            for _ in 0..2 {
                contention.met();
                commits_to_leave(&mut contention);
            }
            for _ in 0..clean {
                contention.committed();
            }
            contention.met();
            assert_eq!(commits_to_leave(&mut contention), expected, "after {clean} clean commits");
        }
    }

    #[test]
    fn a_transaction_in_its_turn_waits_longer_than_any_other() {
        // Duration of the transaction, whether it has the turn, number of attempts; the longest wait for a lock.
        for (transaction, in_turn, tries, expected) in [
            (0, false, 0, 20),
            (10, false, 0, 20),
            (40, false, 0, 80),
            (40, false, 4, 80),
            (0, true, 0, 160),
            (0, true, 1, 320),
            (0, true, 3, 1_280),
            (0, true, 100, 1_280),
            (40, true, 0, 640),
        ] {
            let wait =
                |spread| lock_wait(Duration::from_millis(transaction), in_turn, tries, spread).as_millis();
            assert_eq!((wait(0), wait(255)), (expected, expected / 2), "{transaction}, {in_turn}, {tries}");
        }
    }
}
