//! The engine of Oncebox: messages, keys, handlers, the inbox, and the traits that stores implement.
//!
//! It depends on no database, broker or web framework. Applications use it through the crate `oncebox`. Depend on this
//! crate to write a store of your own: see [`store`] and [`lease`].

#![forbid(unsafe_code)]

// First: a `macro_rules!` macro is visible only in the modules declared after it.
#[doc(hidden)]
#[macro_use]
pub mod mutant;

mod backoff;
mod consume;
mod content;
mod envelope;
mod error;
mod failure;
mod fingerprint;
mod handler;
mod headers;
mod inbox;
mod key;
mod key_part;
pub mod lease;
mod limits;
mod message;
mod message_id;
mod mode;
mod name;
pub mod observe;
mod operator;
mod outbox;
mod outcome;
mod policy;
mod report;
mod retention;
mod retry;
pub mod source;
pub mod store;
mod utc;

pub use consume::{ConsumeReport, Consumer, ConsumerState, ConsumerStatus, ConsumerWatch};
pub use content::content_key;
pub use envelope::Envelope;
pub use error::{BoxError, Error, ErrorKind};
pub use failure::Failure;
pub use fingerprint::Fingerprint;
pub use handler::{
    AsyncFunc, Attempt, Cancellation, Delivery, Detached, EffectId, FromBatch, FromDelivery, Handler,
    HandlerOptions, Input, IntoReturned, One, Publish, Replay, Reply, Requirement, Returned, Set, State,
};
pub use headers::Headers;
pub use inbox::{
    Accept, Inbox, InboxBuilder, InboxStore, LogStore, Once, Operators, PruneReport, WorkReport,
};
pub use key::{Key, StoredKey};
pub use key_part::KeyPart;
pub use lease::MemoryStore;
pub use message::{Codec, Json, Message};
pub use message_id::MessageId;
pub use mode::{DeadHead, Mode, Start};
pub use operator::Operator;
pub use outbox::{Outbox, OutboxBuilder, OutboxStore, Outgoing, Relay, Sink, Verdict};
pub use outcome::{Cause, Outcome, Rejection, Settlement};
pub use policy::{InFlight, KeyReuse, MissingKey};
pub use report::Report;
pub use retention::{Retention, SweepReport};
pub use retry::Retry;
pub use store::Guarantee;

/// Functions for the code that `#[derive(Message)]` generates; not for direct use.
#[doc(hidden)]
pub mod __private {
    pub use crate::content::content_key;
    pub use crate::key_part::{Piece, compose};
}
