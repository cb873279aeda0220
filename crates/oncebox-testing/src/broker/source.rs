//! A queue as a source: its sessions and their settlers.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use oncebox_core::Error;
use oncebox_core::source::{
    Abilities, Decision, OpenedSession, Received, Room, Session, Settled, Settler, Source,
};

use super::MemoryBroker;
use super::kind::{QueueKind, WorkQueue};
use super::queue::{MemoryReceipt, SessionEnd, SessionId};

/// A queue of a [`MemoryBroker`] as a source.
pub type MemoryQueue = MemorySource<WorkQueue>;

/// A queue of a [`MemoryBroker`] as a source, with the abilities of its kind.
pub struct MemorySource<K: QueueKind> {
    broker: MemoryBroker,
    name: String,
    kind: PhantomData<K>,
}

impl<K: QueueKind> MemorySource<K> {
    pub(super) fn new(broker: MemoryBroker, name: &str) -> Self {
        broker.shared.change(|state| state.create_queue(name, K::ABILITIES));
        Self { broker, name: name.to_owned(), kind: PhantomData }
    }

    pub(super) fn set_deadline(&self, deadline: Duration) {
        self.broker.shared.change(|state| {
            if let Some(queue) = state.queue(&self.name) {
                queue.deadline = Some(deadline);
            }
        });
    }
}

impl MemorySource<WorkQueue> {
    /// Gives each later delivery of the queue a deadline. A delivery that is not settled or extended in time returns to the queue.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.set_deadline(deadline);
        self
    }
}

impl<K: QueueKind> Clone for MemorySource<K> {
    fn clone(&self) -> Self {
        Self { broker: self.broker.clone(), name: self.name.clone(), kind: PhantomData }
    }
}

impl<K: QueueKind> fmt::Debug for MemorySource<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySource").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<K: QueueKind> Source for MemorySource<K> {
    type Session = MemorySession;

    const ABILITIES: Abilities = K::ABILITIES;

    fn name(&self) -> &str {
        &self.name
    }

    async fn open(&mut self, prefetch: Room) -> Result<OpenedSession<MemorySession>, Error> {
        let opened = self.broker.shared.change(|state| {
            let id = state.open(&self.name, K::ABILITIES, prefetch)?;
            Ok((id, state.queue(&self.name).and_then(|queue| queue.deadline)))
        });
        let (id, deadline) = opened?;
        let settler = MemorySettler { broker: self.broker.clone(), queue: self.name.clone(), session: id };
        let session = MemorySession { settler, deadline, end: SessionEnd::Lost };
        Ok(OpenedSession { session, warnings: Vec::new() })
    }
}

/// A session of a [`MemorySource`]. When it is dropped, its unsettled messages return to the front of the queue.
#[derive(Debug)]
pub struct MemorySession {
    settler: MemorySettler,
    deadline: Option<Duration>,
    end: SessionEnd,
}

impl Session for MemorySession {
    type Receipt = MemoryReceipt;
    type Settler = MemorySettler;

    fn settler(&self) -> MemorySettler {
        self.settler.clone()
    }

    async fn next(&mut self, room: Room) -> Result<Vec<Received<MemoryReceipt>>, Error> {
        let MemorySettler { broker, queue, session } = &self.settler;
        let received = broker.shared.until(|state| {
            let received = state.receive(queue, *session, room);
            let is_empty = received.as_ref().is_ok_and(Vec::is_empty);
            (!is_empty).then_some(received)
        });
        received.await
    }

    fn extend_every(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline / 3)
    }

    async fn close(mut self) {
        self.end = SessionEnd::Closed;
    }
}

impl Drop for MemorySession {
    fn drop(&mut self) {
        let MemorySettler { broker, queue, session } = &self.settler;
        broker.shared.change(|state| state.leave(queue, *session, self.end));
    }
}

/// The settler of a [`MemorySession`].
#[derive(Clone, Debug)]
pub struct MemorySettler {
    broker: MemoryBroker,
    queue: String,
    session: SessionId,
}

impl Settler for MemorySettler {
    type Receipt = MemoryReceipt;

    async fn settle(&self, decisions: Vec<Decision<MemoryReceipt>>) -> Vec<Settled> {
        self.broker.shared.change(|state| {
            let settle = |Decision { receipt, settlement, reason }| {
                state.settle(&self.queue, receipt, settlement, reason)
            };
            decisions.into_iter().map(settle).collect()
        })
    }

    async fn extend(&self, held: &[&MemoryReceipt]) -> Result<(), Error> {
        self.broker.shared.change(|state| state.extend(&self.queue, self.session, held))
    }
}
