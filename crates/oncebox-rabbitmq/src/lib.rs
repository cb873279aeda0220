//! RabbitMQ as a source and a sink of [Oncebox](https://docs.rs/oncebox).
//!
//! ```no_run
//! use oncebox_core::Relay;
//! use oncebox_rabbitmq::{Declare, RabbitMq};
//!
//! # fn main() -> Result<(), oncebox_core::Error> {
//! let rabbit = RabbitMq::new("amqps://svc:secret@mq.example.com/%2f")?;
//! // A queue whose messages an inbox consumes.
//! let orders = rabbit.queue("orders").declare(Declare::Create);
//! // An exchange to which a relay publishes the messages of an outbox.
//! let events = rabbit.exchange("events").routing_key("{kind}")?;
//! let relay = Relay::new("events", events).kinds(["order.*"]);
//! # Ok(())
//! # }
//! ```
//!
//! Start to read at [`RabbitMq`], then [`RabbitSource`] and [`RabbitSink`]. Applications use it through the feature `rabbitmq` of the
//! crate `oncebox`.
//!
//! The client is [lapin](https://docs.rs/lapin). It logs each returned message with its body at the level WARN: set the level of the
//! target `lapin::returned_messages` to ERROR if bodies must not be in logs.

#![forbid(unsafe_code)]

mod acks;
mod address;
mod broker;
mod copies;
mod errors;
mod link;
mod message;
mod publisher;
mod redrive;
mod requeues;
mod session;
mod settler;
mod sink;
mod source;
mod topology;

pub use broker::RabbitMq;
pub use session::RabbitSession;
pub use settler::{RabbitReceipt, RabbitSettler};
pub use sink::RabbitSink;
pub use source::{Declare, QueueType, RabbitSource};
