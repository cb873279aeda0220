//! Permits: the maximum number of transactions in flight of an inbox, and whose turn it is among handlers that conflict.

use std::sync::{Mutex as Lock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::inbox::InboxStore;
use crate::inbox::engine::Engine;
use crate::inbox::registered::Registered;
use crate::inbox::units::CopyWait;

/// Past this, others do not wait for the turn any longer: the one that has it is slow, hangs, or is not polled.
const TURN_TIME: Duration = Duration::from_secs(1);
/// In any case they wait this long, in which the one that has just got it says so.
const TURN_WAIT_MIN: Duration = Duration::from_millis(10);

/// A caller waits at least this long for a permit, like for a store with one writer, however short it waits for copies.
const PERMIT_WAIT_MIN: Duration = Duration::from_secs(30);

/// Every inline transaction holds a permit.
#[derive(Debug)]
pub(crate) struct Permits {
    limit: usize,
    all: Semaphore,
    /// Half of them at most are for copies that wait for another process.
    copies: Semaphore,
    turn: Mutex<()>,
    /// When somebody took the turn last.
    turn_since: Lock<Option<Instant>>,
}

/// Permission for one transaction in flight. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    _one: Option<SemaphorePermit<'a>>,
    _copy: Option<SemaphorePermit<'a>>,
    turn: Option<MutexGuard<'a, ()>>,
}

impl Permit<'_> {
    /// Whether no other transaction of a handler that takes turns is in flight.
    pub(crate) fn has_turn(&self) -> bool {
        self.turn.is_some()
    }
}

impl Permits {
    pub(crate) fn new(limit: usize) -> Self {
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

    /// How many permits are held.
    pub(crate) fn in_flight(&self) -> usize {
        self.limit - self.all.available_permits().min(self.limit)
    }

    /// A permit for any transaction.
    pub(crate) async fn one(&self) -> Permit<'_> {
        Permit { _one: one_of(&self.all).await, _copy: None, turn: None }
    }

    /// A permit for a copy that waits for another process.
    pub(crate) async fn for_copy(&self) -> Permit<'_> {
        let copy = one_of(&self.copies).await;
        Permit { _one: one_of(&self.all).await, _copy: copy, turn: None }
    }

    /// A permit for a handler that takes turns. Whoever waits for the turn holds no permit, and whoever holds a permit never
    /// waits for the turn.
    pub(crate) async fn in_turn(&self) -> Permit<'_> {
        let turn = self.turn().await;
        Permit { _one: one_of(&self.all).await, _copy: None, turn }
    }

    /// The turn, or nothing if another transaction keeps it for too long.
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

    /// How long the transaction that has the turn may still keep others waiting.
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

    /// The same for a caller that waits no longer than it would for a copy: `None` means that its time is up. A unit of no
    /// handler takes no turns, and neither does one that another process is known to have in hand: it waits for that one.
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

    /// The turn of a worker whose handler takes turns, and nothing for any other. Workers need no permit: their number is limited
    /// elsewhere.
    pub(crate) async fn worker_turn(&self, handler: &Registered<S>) -> Option<MutexGuard<'_, ()>> {
        let takes_turns = handler.batches.state().contention.takes_turns();
        if takes_turns { self.permits.turn().await } else { None }
    }

    /// Notes that a transaction of a handler met others.
    pub(crate) fn met_contention(&self, handler: &Registered<S>) {
        tracing::debug!(handler = &*handler.name, "contention: this handler takes turns with others");
        handler.batches.state().contention.met();
    }
}

/// Nothing only where the semaphore is closed, and nobody closes it.
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
            // It is this one's now, which goes away.
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
    async fn one_at_a_time_has_the_turn_and_only_for_a_while() {
        let permits = Permits::new(5);
        let first = permits.in_turn().await;
        assert!(first.has_turn());
        assert!(permits.in_turn().now_or_never().is_none());
        assert!(permits.one().now_or_never().is_some(), "others need no turn");
        assert_eq!(permits.in_flight(), 1, "whoever waits for the turn holds no permit");
        drop(first);
        let hangs = permits.in_turn().await;
        assert!(hangs.has_turn());
        assert!(!permits.in_turn().await.has_turn());
        drop(hangs);
        assert!(permits.in_turn().await.has_turn());
    }
}
