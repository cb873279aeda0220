//! Warm connections: a store keeps them for a few milliseconds, for the next caller.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

/// The time for which a connection or transaction is kept.
// Long enough for the next transaction of a busy handler; short, because the pool belongs to the application.
const LINGER: Duration = Duration::from_millis(5);

/// Keeps connections, or transactions that were begun ahead, for 5 ms. After that they are dropped: an unused connection belongs
/// in its pool.
///
/// All clones share the same connections.
pub struct Lingering<T>(Arc<Mutex<LingeringState<T>>>);

struct LingeringState<T> {
    waiting: Vec<(T, Instant)>,
    /// Whether a background task runs that drops expired ones.
    is_watched: bool,
}

impl<T: Send + 'static> Lingering<T> {
    /// Creates an empty collection.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(LingeringState { waiting: Vec::new(), is_watched: false })))
    }

    fn state(&self) -> MutexGuard<'_, LingeringState<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the one that was added last, if there is one.
    pub fn take(&self) -> Option<T> {
        // The newest: under less load the older ones are not used, expire, and return to their pool.
        self.state().waiting.pop().map(|(kept, _)| kept)
    }

    /// Adds one. Outside of a runtime it is dropped at once.
    pub fn keep(&self, kept: T) {
        // Without a runtime no task could drop it later.
        let Ok(runtime) = Handle::try_current() else { return };
        let mut state = self.state();
        state.waiting.push((kept, Instant::now()));
        // One task for all of them, not a timer for each.
        if !std::mem::replace(&mut state.is_watched, true) {
            let lingering = self.clone();
            runtime.spawn(async move {
                loop {
                    tokio::time::sleep(LINGER).await;
                    if !lingering.drop_old() {
                        return;
                    }
                }
            });
        }
    }

    /// Drops the expired ones, and returns whether others are left.
    fn drop_old(&self) -> bool {
        let mut state = self.state();
        // Sorted by age: new ones are added at the end, and taken from there.
        let young = state.waiting.partition_point(|(_, since)| since.elapsed() >= LINGER);
        let old: Vec<_> = state.waiting.drain(..young).collect();
        // Under the same lock as the removal: a connection that is added right afterwards starts a new task.
        state.is_watched = !state.waiting.is_empty();
        let is_watched = state.is_watched;
        // The lock is released first: a dropped transaction may have to roll back, which takes time.
        drop(state);
        drop(old);
        is_watched
    }
}

impl<T: Send + 'static> Default for Lingering<T> {
    fn default() -> Self {
        Self::new()
    }
}

// By hand: `derive` would require `T: Clone`, and connections have no copies.
impl<T> Clone for Lingering<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for Lingering<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner).waiting.len();
        f.debug_struct("Lingering").field("waiting", &waiting).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_taken_in_time_is_dropped() {
        let lingering = Lingering::new();
        lingering.keep(1);
        lingering.keep(2);
        assert_eq!(lingering.take(), Some(2));
        std::thread::sleep(LINGER);
        lingering.keep(3);
        // Not expired for as long as the test takes.
        lingering.state().waiting[1].1 += Duration::from_secs(3600);
        assert!(lingering.drop_old(), "the young one stays");
        assert_eq!(lingering.take(), Some(3));
        assert!(!lingering.drop_old());
        assert_eq!(lingering.take(), None);
    }

    #[test]
    fn nothing_lingers_outside_of_a_runtime() {
        let lingering = Lingering::new();
        lingering.keep(1);
        assert_eq!(lingering.take(), None);
    }
}
