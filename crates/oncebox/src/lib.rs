#![doc = include_str!("tour.md")]
#![forbid(unsafe_code)]

// By name, so that nothing becomes public here by being public in the core.
pub use oncebox_core::store::{
    AuditEntry, DeadLetter, FailedAttempt, HandlerState, HandlerStatus, KnownHandler, Marker, MarkerState,
    MessageState, MessageStatus, OutboxSize, OutboxStatus, Peer, Place, ReplayFrom, Replayed, Select,
    StoredMessage, Task, UnhandledKind, WaitingMessage,
};
pub use oncebox_core::{
    Accept, AsyncFunc, Attempt, BoxError, Cancellation, Cause, Codec, ConsumeReport, Consumer, ConsumerState,
    ConsumerStatus, ConsumerWatch, DeadHead, Delivery, Detached, EffectId, Envelope, Error, ErrorKind,
    Failure, Fingerprint, FromBatch, FromDelivery, Guarantee, Handler, HandlerOptions, Headers, InFlight,
    Inbox, InboxBuilder, InboxStore, Input, IntoReturned, Json, Key, KeyPart, KeyReuse, LogStore,
    MemoryStore, Message, MessageId, MissingKey, Mode, Once, One, Operator, Operators, Outbox, OutboxBuilder,
    OutboxStore, Outcome, Outgoing, PruneReport, Publish, Rejection, Relay, Replay, Reply, Report,
    Requirement, Retention, Retry, Returned, Set, Settlement, Sink, Start, State, StoredKey, SweepReport,
    Verdict, WorkReport, content_key, lease, observe, source, store,
};
/// Derives [`Message`](trait@Message); see its attribute `#[message(...)]`.
#[cfg(feature = "derive")]
pub use oncebox_derive::Message;
/// Explains why a function is not accepted as a handler.
#[cfg(feature = "derive")]
pub use oncebox_derive::debug_handler;
#[cfg(feature = "http")]
pub use oncebox_http::HttpSink;
#[cfg(feature = "postgres")]
pub use oncebox_postgres::{PostgresStore, PostgresTx};
/// RabbitMQ as a source and a sink.
#[cfg(feature = "rabbitmq")]
pub use oncebox_rabbitmq as rabbitmq;
#[cfg(feature = "sqlite")]
pub use oncebox_sqlite::{SqliteStore, SqliteTx};

#[doc(hidden)]
pub use oncebox_core::__private;
