//! A consumer of the suite: it opens a session, receives messages by their numbers, and settles them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncebox_core::source::{Decision, Received, Room, Session, Settled, Settler, Source};
use oncebox_core::{Cause, Settlement};

use super::{BrokerFixture, LIMIT, STEP, number};

type SessionOf<F> = <<F as BrokerFixture>::Source as Source>::Session;
type ReceiptOf<F> = <SessionOf<F> as Session>::Receipt;
type SettlerOf<F> = <SessionOf<F> as Session>::Settler;

/// Room for everything that the suite publishes.
pub(super) const PLENTY: Room = Room { messages: 1000, bytes: 1 << 24 };

/// Room for this number of messages.
pub(super) const fn messages(messages: usize) -> Room {
    Room { messages, ..PLENTY }
}

/// A session, and the deliveries that it has received and not settled.
pub(super) struct Consumer<'f, F: BrokerFixture> {
    fixture: &'f F,
    pub(super) session: SessionOf<F>,
    pub(super) held: Vec<Received<ReceiptOf<F>>>,
}

impl<'f, F: BrokerFixture> Consumer<'f, F> {
    pub(super) async fn open(fixture: &'f F) -> Self {
        Self::with_prefetch(fixture, PLENTY).await
    }

    pub(super) async fn with_prefetch(fixture: &'f F, prefetch: Room) -> Self {
        let opened = tokio::time::timeout(LIMIT, fixture.source().open(prefetch)).await;
        let session =
            opened.expect("open returns").unwrap_or_else(|error| panic!("{}", error.report())).session;
        Self { fixture, session, held: Vec::new() }
    }

    pub(super) fn settler(&self) -> SettlerOf<F> {
        self.session.settler()
    }

    /// Receives once, and returns the numbers. Time passes while nothing is there.
    pub(super) async fn receive(&mut self, room: Room) -> Vec<u32> {
        let started = Instant::now();
        loop {
            if let Some(numbers) = self.receive_within(room, STEP).await {
                return numbers;
            }
            let left = self.fixture.backlog().await;
            assert!(
                left > self.held.len(),
                "nothing can arrive: {left} unsettled, held {:?}",
                self.numbers()
            );
            assert!(started.elapsed() < LIMIT, "a message arrives within {LIMIT:?}");
        }
    }

    /// Receives once. `None` if nothing arrives while this much time passes.
    pub(super) async fn receive_within(&mut self, room: Room, time: Duration) -> Option<Vec<u32>> {
        let received = tokio::select! {
            biased;
            received = self.session.next(room) => received,
            () = self.fixture.pass(time) => return None,
        };
        let received = received.unwrap_or_else(|error| panic!("next failed: {}", error.report()));
        assert!(!received.is_empty(), "next returns at least one message");
        let numbers = received.iter().map(|received| number(&received.message)).collect();
        self.held.extend(received);
        Some(numbers)
    }

    /// Receives until this number of messages is held.
    pub(super) async fn hold(&mut self, count: usize) -> Vec<u32> {
        while self.held.len() < count {
            self.receive(PLENTY).await;
        }
        self.numbers()
    }

    /// Receives until it holds every message that is not settled.
    pub(super) async fn hold_all(&mut self) -> Vec<u32> {
        let started = Instant::now();
        while self.fixture.backlog().await > self.held.len() {
            self.receive_within(PLENTY, STEP).await;
            assert!(started.elapsed() < LIMIT, "all messages arrive within {LIMIT:?}: {:?}", self.numbers());
        }
        self.numbers()
    }

    /// Receives and acknowledges until nothing is left, and returns what it received.
    pub(super) async fn drain(&mut self) -> Vec<u32> {
        let mut drained = self.numbers();
        let started = Instant::now();
        loop {
            let held = self.numbers();
            self.ack(&held).await;
            if self.fixture.backlog().await == 0 {
                return drained;
            }
            drained.extend(self.receive_within(PLENTY, STEP).await.unwrap_or_default());
            assert!(started.elapsed() < LIMIT, "the queue is empty within {LIMIT:?}: {drained:?}");
        }
    }

    /// Receives this number of messages, and acknowledges each of them. Of those that come back, a source that counts deliveries sends one
    /// at a time.
    pub(super) async fn receive_and_ack(&mut self, count: usize) -> Vec<u32> {
        let mut acked = Vec::new();
        while acked.len() < count {
            if self.held.is_empty() {
                self.receive(messages(1)).await;
            }
            let next = self.numbers()[0];
            self.ack(&[next]).await;
            acked.push(next);
        }
        acked
    }

    /// The numbers of the messages that it holds.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.held.iter().map(|received| number(&received.message)).collect()
    }

    /// Takes a delivery out of what it holds.
    pub(super) fn take(&mut self, n: u32) -> Received<ReceiptOf<F>> {
        let at = self.held.iter().position(|received| number(&received.message) == n);
        self.held.remove(at.unwrap_or_else(|| panic!("message {n} is not held")))
    }

    /// Acknowledges these messages at once, in this order.
    pub(super) async fn ack(&mut self, numbers: &[u32]) {
        let receipts: Vec<_> = numbers.iter().map(|n| self.take(*n).receipt).collect();
        if !receipts.is_empty() {
            let settled = settle(&self.settler(), receipts, Settlement::Ack).await;
            assert_done(&settled, numbers.len());
        }
    }

    /// Settles one message.
    pub(super) async fn settle(&mut self, n: u32, settlement: Settlement) {
        let receipt = self.take(n).receipt;
        let settled = settle(&self.settler(), vec![receipt], settlement).await;
        assert_done(&settled, 1);
    }
}

/// Settles deliveries in the same way. Retries and rejections have a reason.
pub(super) async fn settle<S: Settler>(
    settler: &S,
    receipts: Vec<S::Receipt>,
    settlement: Settlement,
) -> Vec<Settled> {
    let failed = || -> Cause { Arc::new(std::io::Error::other("no such order")) };
    let reason = (settlement != Settlement::Ack).then(failed);
    let decisions = receipts.into_iter();
    let decisions =
        decisions.map(|receipt| Decision { receipt, settlement, reason: reason.clone() }).collect();
    tokio::time::timeout(LIMIT, settler.settle(decisions)).await.expect("settle returns")
}

pub(super) fn assert_done(settled: &[Settled], count: usize) {
    assert_eq!(settled.len(), count, "one result for each decision");
    assert!(settled.iter().all(|settled| matches!(settled, Settled::Done)), "{settled:?}");
}

pub(super) fn assert_stale(settled: &[Settled], count: usize) {
    assert_eq!(settled.len(), count, "one result for each decision");
    assert!(settled.iter().all(|settled| matches!(settled, Settled::Stale)), "{settled:?}");
}

/// The numbers in ascending order.
pub(super) fn sorted(mut numbers: Vec<u32>) -> Vec<u32> {
    numbers.sort_unstable();
    numbers
}
