//! Transactions begun ahead: a store may begin the next one in the same round trip in which it commits the last.
//!
//! Whoever comes next finds it open. It waits a few milliseconds only: a connection that nobody needs belongs in its pool.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::Error;
use crate::inbox::{Inbox, InboxStore};
use crate::store::Limits;

/// How long a transaction that was begun ahead waits for its unit.
const LINGER: Duration = Duration::from_millis(5);

/// The transactions that wait for their units.
pub(crate) struct Begun<B> {
    state: Mutex<State<B>>,
}

struct State<B> {
    waiting: Vec<(B, Instant)>,
    /// Whether somebody looks after those that nobody takes.
    looked_after: bool,
}

impl<B> Begun<B> {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State { waiting: Vec::new(), looked_after: false }) }
    }

    fn state(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one that has waited least.
    fn take(&self) -> Option<B> {
        self.state().waiting.pop().map(|(begun, _)| begun)
    }

    /// Whether somebody must be found to look after it.
    fn put(&self, begun: B) -> bool {
        let mut state = self.state();
        state.waiting.push((begun, Instant::now()));
        !std::mem::replace(&mut state.looked_after, true)
    }

    /// Gives up those that have waited too long; whether there are others.
    fn give_up_old(&self) -> bool {
        let mut state = self.state();
        let young = state.waiting.partition_point(|(_, since)| since.elapsed() >= LINGER);
        state.waiting.drain(..young);
        state.looked_after = !state.waiting.is_empty();
        state.looked_after
    }

    /// Gives up all of them.
    pub(crate) fn clear(&self) {
        self.state().waiting.clear();
    }
}

impl<B> fmt::Debug for Begun<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Begun").field("waiting", &self.state().waiting.len()).finish()
    }
}

impl<S: InboxStore> Inbox<S> {
    /// Opens a transaction, or takes one that was begun ahead.
    pub(crate) async fn begin(&self, limits: Limits) -> Result<S::Tx, Error> {
        match self.inner.begun.take() {
            Some(begun) => Ok(self.inner.store.go_on(begun, limits)),
            None => self.inner.store.begin(limits).await,
        }
    }

    /// Commits, and keeps the next transaction for whoever comes, if the store has begun one.
    pub(crate) async fn commit(&self, tx: S::Tx) -> Result<(), Error> {
        if mutant!("ack_before_commit") {
            let inbox = self.clone();
            drop(tokio::spawn(async move { inbox.inner.store.commit(tx).await }));
            return Ok(());
        }
        let begun = self.inner.store.commit_and_begin(tx).await?;
        self.keep_begun(begun);
        Ok(())
    }

    /// Keeps a transaction that was begun ahead, for as long as it may wait.
    pub(crate) fn keep_begun(&self, begun: Option<S::Begun>) {
        if let Some(begun) = begun
            && self.inner.begun.put(begun)
            && let Ok(runtime) = Handle::try_current()
        {
            let inbox = self.clone();
            runtime.spawn(async move {
                loop {
                    tokio::time::sleep(LINGER).await;
                    if !inbox.inner.begun.give_up_old() {
                        return;
                    }
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_takes_is_given_up() {
        let begun = Begun::new();
        assert!(begun.put(1), "the first needs somebody to look after it");
        assert!(!begun.put(2));
        assert_eq!(begun.take(), Some(2));
        std::thread::sleep(LINGER);
        assert!(!begun.put(3));
        // Young for as long as the test takes.
        begun.state().waiting[1].1 += Duration::from_secs(3600);
        assert!(begun.give_up_old(), "the young one may stay");
        assert_eq!(begun.take(), Some(3));
        assert!(!begun.give_up_old());
        assert_eq!(begun.take(), None);
        assert!(begun.put(4));
    }
}
