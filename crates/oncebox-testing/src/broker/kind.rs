//! The kinds of queues of a [`MemoryBroker`](crate::MemoryBroker): which abilities of real brokers they have.

use std::fmt;

use oncebox_core::source::Abilities;

/// A kind of queue. Its abilities are those of a kind of real broker.
pub trait QueueKind: sealed::Sealed + fmt::Debug + Send + Sync + 'static {
    /// What queues of this kind can do.
    const ABILITIES: Abilities;
}

/// A queue with delayed retries, delivery counts and a place for rejected messages, as RabbitMQ's quorum queues with retry queues or
/// NATS JetStream. Its deliveries may have a deadline.
#[derive(Clone, Copy, Debug)]
pub struct WorkQueue;

/// A queue without any of this, as RabbitMQ's classic queues: a retry returns to the front at once, and a rejected message is gone.
#[derive(Clone, Copy, Debug)]
pub struct PlainQueue;

/// A queue without sessions, as Amazon SQS: a delivery belongs to its receiver until its deadline, whatever becomes of the connection.
#[derive(Clone, Copy, Debug)]
pub struct LeaseQueue;

/// A stream of one partition, as in Kafka: it remembers the position up to which everything is settled, and has one session at a time.
#[derive(Clone, Copy, Debug)]
pub struct Stream;

impl QueueKind for WorkQueue {
    const ABILITIES: Abilities =
        Abilities::NONE.delays_retries().counts_deliveries().extends_deadlines().keeps_rejected();
}

impl QueueKind for PlainQueue {
    const ABILITIES: Abilities = Abilities::NONE;
}

impl QueueKind for LeaseQueue {
    const ABILITIES: Abilities = Abilities::NONE
        .delays_retries()
        .counts_deliveries()
        .extends_deadlines()
        .receipts_outlive_sessions()
        .keeps_rejected();
}

impl QueueKind for Stream {
    const ABILITIES: Abilities = Abilities::NONE.settles_positions();
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::WorkQueue {}
    impl Sealed for super::PlainQueue {}
    impl Sealed for super::LeaseQueue {}
    impl Sealed for super::Stream {}
}
