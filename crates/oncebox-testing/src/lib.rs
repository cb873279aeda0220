//! Tests for users and store authors.
//!
//! - [`Harness`]: does a handler take effect once, with copies and crashes?
//! - [`conformance!`]: does a store keep its promises?
//! - [`MemoryBroker`]: a broker in memory, for tests of consumers and relays.
//! - [`source_conformance!`], [`sink_conformance!`]: does a source or a sink keep its promises?
//! - [`consume_conformance!`]: do a source and a store keep them together, in a consumer?
//! - [`Faulty`]: a real store with faults at named points.
//! - [`one_handler`]: a handler on a log, driven through a store's roles without the engine.

#![forbid(unsafe_code)]

mod broker;
pub mod conformance;
pub mod consume_conformance;
mod faulty;
mod harness;
mod model;
pub mod one_handler;
pub mod sink_conformance;
pub mod source_conformance;
mod time;

pub use broker::{
    LeaseQueue, MemoryBroker, MemoryQueue, MemoryReceipt, MemorySession, MemorySettler, MemorySink,
    MemorySource, PlainQueue, QueueKind, QueueStatus, RejectedMessage, Stream, WorkQueue,
};
pub use conformance::{Capabilities, Fixture, MigratingFixture, SqlFixture};
pub use faulty::{Faults, Faulty, Point, crash, is_crash};
pub use harness::{Crashes, Deliver, Delivered, Harness};
pub use oncebox_core::store::TestTime;
pub use sink_conformance::SinkFixture;
pub use source_conformance::BrokerFixture;
pub use time::travel;

/// The operator of this name.
///
/// # Panics
///
/// If the name is empty, longer than 200 bytes or has control characters.
pub fn operator(name: &str) -> oncebox_core::Operator {
    oncebox_core::Operator::new(name).unwrap_or_else(|error| panic!("{error}"))
}

/// Used by the expansion of [`conformance!`]. Not a public API.
#[doc(hidden)]
pub mod __private {
    pub use tokio;
}
