//! Out-of-date sessions: replaced by other connections, until that cannot be the reason any more.

use std::fmt::Display;

/// After a schema change every connection of the pool can be out of date. A few more may have been opened before it ended; beyond
/// that the error is the work's own.
const SPARE: usize = 5;

/// The connections in a row on which one piece of work met a session that is out of date.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sessions {
    met: usize,
}

impl Sessions {
    /// Work met one more, on a store with so many connections. Whether another connection may do: the store has closed this one.
    pub(crate) fn replace(&mut self, capacity: usize, error: &impl Display) -> bool {
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
        let mut sessions = Sessions::default();
        let replaced = (0..100).filter(|_| sessions.replace(8, &"out of date")).count();
        assert_eq!(replaced, 8 + SPARE);
        assert!(Sessions::default().replace(1, &"out of date"), "the next piece of work begins anew");
        assert!(Sessions::default().replace(usize::MAX, &"out of date"), "a store without a pool");
    }
}
