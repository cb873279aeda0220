//! Which handlers run one transaction at a time: rules without clocks or queues.
//!
//! Two transactions that wait for each other's rows gain nothing from running beside each other, and one transaction never
//! waits for itself. So a handler whose transaction met contention takes turns: all handlers that do so share one turn, with
//! full batches. After a number of clean commits it runs beside the others again.

use std::time::Duration;

/// Clean commits after which a handler stops to take turns; four times as many each time that it meets contention again soon,
/// and a quarter while it does not.
const COMMITS_MIN: u32 = 16;
const COMMITS_MAX: u32 = 1_024;
const GROWTH: u32 = 4;

/// How long a statement waits for a lock where others may wait for this transaction: twice as long as such a transaction
/// takes, and no less than this. Long before the database looks for deadlocks.
const WAIT_MIN: Duration = Duration::from_millis(20);
/// How many times as long it waits when it is the handler's turn. The others give up first; only other processes make it wait.
const IN_TURN: u32 = 8;
const TRIES_MAX: u32 = 3;

/// What one handler's transactions have met.
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

    /// Whether the handler has one transaction in flight together with all others of which this is true.
    pub(crate) fn takes_turns(&self) -> bool {
        self.takes_turns
    }

    /// A transaction of the handler met others: a deadlock, a serialization failure, a lock that was not free in time.
    pub(crate) fn met(&mut self) {
        self.takes_turns = true;
        self.clean = 0;
    }

    /// A transaction of the handler was committed.
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
            // If that was too early, it takes turns for longer next time.
            true => (self.needed * GROWTH).min(COMMITS_MAX),
            false => (self.needed / GROWTH).max(COMMITS_MIN),
        };
        self.takes_turns = false;
    }
}

/// How long the statements of a transaction that takes about this time may wait for a lock. In its turn it waits longer, the
/// more so the more often its units were tried. `spread` from 0 to 255 takes up to half of it away: of two that wait for each
/// other one gives up first.
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

    /// Commits until the handler does not take turns any more; how many there were.
    fn commits_to_leave(contention: &mut Contention) -> u32 {
        let mut commits = 0;
        while contention.takes_turns() {
            contention.committed();
            commits += 1;
        }
        commits
    }

    #[test]
    fn a_handler_that_meets_nobody_never_takes_turns() {
        let mut contention = Contention::new();
        for _ in 0..10_000 {
            contention.committed();
            assert!(!contention.takes_turns());
        }
    }

    #[test]
    fn one_that_meets_others_again_and_again_takes_turns_for_longer() {
        let mut contention = Contention::new();
        for expected in [16, 64, 256, 1_024, 1_024] {
            contention.met();
            assert!(contention.takes_turns());
            assert_eq!(commits_to_leave(&mut contention), expected);
        }
    }

    #[test]
    fn trouble_during_the_turn_begins_the_count_anew() {
        let mut contention = Contention::new();
        contention.met();
        for _ in 0..COMMITS_MIN - 1 {
            contention.committed();
        }
        contention.met();
        assert_eq!(commits_to_leave(&mut contention), COMMITS_MIN);
    }

    #[test]
    fn what_stays_clean_is_forgotten() {
        // Clean commits beside the others, and for how many it takes turns the next time.
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
        // What a transaction takes, whether it has the turn, how often its units were tried; the longest wait for a lock.
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
