//! Permits: the maximum number of transactions in flight, and the turn of handlers whose transactions conflict.

use std::sync::{Mutex as Lock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::inbox::InboxStore;
use crate::inbox::engine::Engine;
use crate::inbox::registered::Registered;
use crate::inbox::units::CopyWait;

/// The maximum time for which one transaction keeps the turn. After it, others start without the turn: its holder is slow,
/// hangs, or is not polled.
const TURN_TIME: Duration = Duration::from_secs(1);
/// The minimum wait for the turn. In this time a new holder records when it took the turn.
const TURN_WAIT_MIN: Duration = Duration::from_millis(10);

/// The minimum wait for a permit, even if the caller waits less for copies. It equals the wait for a store's one writer.
const PERMIT_WAIT_MIN: Duration = Duration::from_secs(30);

/// The permits of one inbox. Every inline transaction holds one.
#[derive(Debug)]
pub(crate) struct Permits {
    limit: usize,
    all: Semaphore,
    /// Limits copies that wait for another process to half of the permits, so that they cannot block new messages.
    copies: Semaphore,
    turn: Mutex<()>,
    /// When the turn was taken last.
    turn_since: Lock<Option<Instant>>,
}

/// Permission for one transaction in flight. Dropping it returns the permit.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    _one: Option<SemaphorePermit<'a>>,
    _copy: Option<SemaphorePermit<'a>>,
    turn: Option<MutexGuard<'a, ()>>,
}

impl Permit<'_> {
    /// Whether this transaction has the turn: no other handler that takes turns has one in flight.
    pub(crate) fn has_turn(&self) -> bool {
        self.turn.is_some()
    }
}

impl Permits {
    pub(crate) fn new(limit: usize) -> Self {
        // A store without a limit reports `usize::MAX`, and a semaphore panics above its maximum.
        let limit = limit.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            limit,
            all: Semaphore::new(limit),
            copies: Semaphore::new((limit / 2).max(1)),
            turn: Mutex::new(()),
            turn_since: Lock::new(None),
        }
    }

    /// The maximum number of transactions in flight.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// The number of transactions in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.limit - self.all.available_permits().min(self.limit)
    }

    /// Waits for a permit for any transaction.
    pub(crate) async fn one(&self) -> Permit<'_> {
        Permit { _one: one_of(&self.all).await, _copy: None, turn: None }
    }

    /// Waits for a permit for a copy that waits for another process.
    pub(crate) async fn for_copy(&self) -> Permit<'_> {
        // The narrower limit first: a copy that waits here holds no permit that a new message could use.
        let copy = one_of(&self.copies).await;
        Permit { _one: one_of(&self.all).await, _copy: copy, turn: None }
    }

    /// Waits for a permit for a handler that takes turns. The turn comes before the permit, so that no waiter blocks the
    /// others.
    pub(crate) async fn in_turn(&self) -> Permit<'_> {
        let turn = self.turn().await;
        Permit { _one: one_of(&self.all).await, _copy: None, turn }
    }

    /// Waits for the turn; `None` if another transaction keeps it for too long.
    async fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        let mut turn = std::pin::pin!(self.turn.lock());
        loop {
            if let Ok(turn) = timeout(self.turn_left().max(TURN_WAIT_MIN), &mut turn).await {
                *self.turn_since.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                return Some(turn);
            }
            if self.turn_left().is_zero() {
                return None;
            }
        }
    }

    /// The remaining time for which the current transaction may keep the turn.
    fn turn_left(&self) -> Duration {
        let since = *self.turn_since.lock().unwrap_or_else(PoisonError::into_inner);
        since.map_or(TURN_TIME, |since| TURN_TIME.saturating_sub(since.elapsed()))
    }
}

impl<S: InboxStore> Engine<S> {
    /// Waits until a transaction of a handler may begin.
    pub(crate) async fn permit(&self, handler: &Registered<S>) -> Permit<'_> {
        let takes_turns = handler.batches.state().contention.takes_turns();
        match takes_turns {
            true => self.permits.in_turn().await,
            false => self.permits.one().await,
        }
    }

    /// Waits for a permit as long as the caller waits for copies; `None` if that time is over. The turn is not needed for
    /// [`once`](crate::Inbox::once), and not for a copy of a message that another process handles.
    pub(crate) async fn permit_within(
        &self,
        wait: &CopyWait,
        handler: Option<&Registered<S>>,
        is_copy: bool,
    ) -> Option<Permit<'_>> {
        let permit = async {
            match handler {
                _ if is_copy => self.permits.for_copy().await,
                Some(handler) => self.permit(handler).await,
                None => self.permits.one().await,
            }
        };
        timeout(wait.left().max(PERMIT_WAIT_MIN), permit).await.ok()
    }

    /// Waits for the turn, if the handler takes turns. Workers need no permit, because `workers(…)` limits their number.
    pub(crate) async fn worker_turn(&self, handler: &Registered<S>) -> Option<MutexGuard<'_, ()>> {
        let takes_turns = handler.batches.state().contention.takes_turns();
        if takes_turns { self.permits.turn().await } else { None }
    }

    /// Records that a transaction of a handler conflicted with others.
    pub(crate) fn met_contention(&self, handler: &Registered<S>) {
        tracing::debug!(handler = &*handler.name, "contention: this handler takes turns with others");
        handler.batches.state().contention.met();
    }
}

/// Takes one permit; `None` only if the semaphore is closed, which never happens.
async fn one_of(semaphore: &Semaphore) -> Option<SemaphorePermit<'_>> {
    semaphore.acquire().await.ok()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn every_limit_makes_sense() {
        for (limit, expected) in [(0, 1), (1, 1), (13, 13), (usize::MAX, Semaphore::MAX_PERMITS)] {
            assert_eq!(Permits::new(limit).limit(), expected);
        }
    }

    #[tokio::test]
    async fn a_permit_is_given_back_however_its_holder_ends() {
        let permits = Permits::new(2);
        let first = permits.one().await;
        let second = permits.in_turn().await;
        assert_eq!(permits.in_flight(), 2);
        {
            let mut waiting = std::pin::pin!(permits.one());
            assert!(waiting.as_mut().now_or_never().is_none());
            drop(first);
            // The permit was assigned to this waiter, which is dropped here.
        }
        assert!(permits.one().now_or_never().is_some());
        drop(second);
        assert_eq!(permits.in_flight(), 0);
    }

    #[tokio::test]
    async fn copies_leave_half_of_the_permits_to_others() {
        let permits = Permits::new(5);
        let copies = [permits.for_copy().await, permits.for_copy().await];
        assert!(permits.for_copy().now_or_never().is_none());
        assert!(permits.one().now_or_never().is_some());
        drop(copies);
        assert_eq!(permits.in_flight(), 0);
    }

    #[tokio::test]
    async fn one_transaction_has_the_turn_for_a_limited_time() {
        let permits = Permits::new(5);
        let first = permits.in_turn().await;
        assert!(first.has_turn());
        assert!(permits.in_turn().now_or_never().is_none());
        assert!(permits.one().now_or_never().is_some(), "others need no turn");
        assert_eq!(permits.in_flight(), 1, "a waiter for the turn holds no permit");
        drop(first);
        let hangs = permits.in_turn().await;
        assert!(hangs.has_turn());
        assert!(!permits.in_turn().await.has_turn());
        drop(hangs);
        assert!(permits.in_turn().await.has_turn());
    }
}
