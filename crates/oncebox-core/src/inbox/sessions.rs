//! Out-of-date sessions: how often work moves to another connection before its error counts.

use std::fmt::Display;

/// Extra replacements beyond the pool size. A schema change can outdate every connection of the pool, and some that were
/// opened before the change ended. After that the error belongs to the work itself.
const SPARE: usize = 5;

/// Counts the consecutive connections with an out-of-date session that one piece of work met.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StaleSessions {
    met: usize,
}

impl StaleSessions {
    /// Counts one more out-of-date session. Returns whether another connection may help; the store has closed this one.
    pub(crate) fn replace(&mut self, capacity: usize, error: &impl Display) -> bool {
        // Saturating, because a store without a limit has the capacity `usize::MAX`.
        self.met = self.met.saturating_add(1);
        let may_help = self.met <= capacity.saturating_add(SPARE);
        if may_help {
            tracing::debug!(%error, "another attempt on another connection: this session is out of date");
        }
        may_help
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_pool_and_a_few_more_are_replaced() {
        let mut sessions = StaleSessions::default();
        let replaced = (0..100).filter(|_| sessions.replace(8, &"out of date")).count();
        assert_eq!(replaced, 8 + SPARE);
        assert!(StaleSessions::default().replace(1, &"out of date"), "the next piece of work begins anew");
        assert!(StaleSessions::default().replace(usize::MAX, &"out of date"), "a store without a pool");
    }
}
