//! The broker in memory as a fixture.

use std::time::{Duration, Instant};

use oncebox_core::source::ReceivedMessage;
use oncebox_testing::{
    BrokerFixture, LeaseQueue, MemoryBroker, MemorySource, PlainQueue, QueueKind, Stream, WorkQueue,
};

/// A queue of a kind.
#[derive(Clone)]
pub(crate) struct Memory<K: QueueKind> {
    pub(crate) broker: MemoryBroker,
    source: MemorySource<K>,
    create: fn(&MemoryBroker) -> MemorySource<K>,
    started: Instant,
    clock: Clock,
}

/// How time passes.
#[derive(Clone, Copy)]
pub(crate) enum Clock {
    /// The suite moves the broker's clock.
    Moved,
    /// It runs with tokio's clock, as the timers of a consumer do.
    Tokio,
}

pub(crate) const QUEUE: &str = "orders";

impl<K: QueueKind> Memory<K> {
    fn new(create: fn(&MemoryBroker) -> MemorySource<K>) -> Self {
        let broker = MemoryBroker::new();
        Self { source: create(&broker), broker, create, started: Instant::now(), clock: Clock::Moved }
    }
}

pub(crate) async fn work_queue(_test: &str) -> Option<Memory<WorkQueue>> {
    Some(Memory::new(|broker| broker.queue(QUEUE)))
}

pub(crate) async fn work_queue_with_a_deadline(_test: &str) -> Option<Memory<WorkQueue>> {
    Some(Memory::new(|broker| broker.queue(QUEUE).deadline(Duration::from_secs(90))))
}

pub(crate) async fn plain_queue(_test: &str) -> Option<Memory<PlainQueue>> {
    Some(Memory::new(|broker| broker.plain_queue(QUEUE)))
}

pub(crate) async fn lease_queue(_test: &str) -> Option<Memory<LeaseQueue>> {
    Some(Memory::new(|broker| broker.lease_queue(QUEUE)))
}

pub(crate) async fn stream(_test: &str) -> Option<Memory<Stream>> {
    Some(Memory::new(|broker| broker.stream(QUEUE)))
}

/// The same, with tokio's clock.
pub(crate) mod on_tokio_clock {
    use super::*;

    macro_rules! on_tokio_clock {
        ($($shape:ident: $kind:ident)*) => {
            $(
                pub(crate) async fn $shape(test: &str) -> Option<Memory<$kind>> {
                    let fixture = super::$shape(test).await?;
                    Some(Memory { clock: Clock::Tokio, ..fixture })
                }
            )*
        };
    }

    on_tokio_clock! {
        work_queue: WorkQueue
        work_queue_with_a_deadline: WorkQueue
        plain_queue: PlainQueue
        lease_queue: LeaseQueue
        stream: Stream
    }
}

impl<K: QueueKind> BrokerFixture for Memory<K> {
    type Source = MemorySource<K>;

    fn source(&self) -> MemorySource<K> {
        // Not `create`, which would bring a deleted queue back.
        self.source.clone()
    }

    async fn publish(&self, messages: Vec<ReceivedMessage>) {
        for message in messages {
            self.broker.publish_raw(QUEUE, message).unwrap();
        }
    }

    async fn backlog(&self) -> usize {
        self.broker.status(QUEUE).backlog()
    }

    async fn rejected(&self) -> Vec<ReceivedMessage> {
        self.broker.rejected(QUEUE).into_iter().map(|rejected| rejected.message).collect()
    }

    async fn end_sessions(&self) {
        self.broker.end_sessions(QUEUE);
    }

    async fn delete_queue(&self) -> bool {
        self.broker.delete_queue(QUEUE);
        true
    }

    async fn create_queue(&self) {
        (self.create)(&self.broker);
    }

    async fn stop(&self) -> bool {
        self.broker.stop();
        true
    }

    async fn start(&self) {
        self.broker.start();
    }

    fn now(&self) -> Instant {
        self.started + self.broker.now()
    }

    async fn pass(&self, time: Duration) {
        match self.clock {
            Clock::Moved => {
                self.broker.advance(time);
                tokio::task::yield_now().await;
            }
            Clock::Tokio => tokio::time::sleep(time).await,
        }
    }
}
