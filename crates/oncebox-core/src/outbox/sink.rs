//! Sinks: where a relay sends published messages.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::inbox::panic_text;
use crate::{BoxError, Failure, Headers, Key, MessageId};

/// A place to which a [`Relay`](crate::Relay) sends messages: a broker, or another service.
///
/// The contract:
///
/// - A message is confirmed when the other side has stored it, not when it was sent.
/// - `publish` returns when every verdict is final, with one verdict for each message of the wave, in their order.
/// - The relay calls it from several tasks. A wave has no two messages of one ordering key, unless the sink keeps order.
/// - It can be dropped at any await, and its time is limited. Then the verdicts are unknown, and the messages are sent again.
pub trait Sink: Send + Sync + 'static {
    /// Whether the sink keeps the order of a wave when some of its messages fail: it sends nothing behind a failed message of the
    /// same ordering key. The relay then sends messages of one ordering key together.
    const KEEPS_ORDER: bool = false;

    /// The maximum number of messages in one wave. The relay sends several waves at the same time. Use 1 where each message is a
    /// request of its own.
    const WAVE: usize = 250;

    /// Sends a wave of messages.
    fn publish(&self, wave: &[Outgoing]) -> impl Future<Output = Vec<Verdict>> + Send;
}

/// A message on its way to a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outgoing {
    /// Its id, which is the same for every copy of it. A receiver can deduplicate by it.
    pub id: MessageId,
    /// Its kind.
    pub kind: String,
    /// Its key; the text of the id for a message that was published without one.
    pub key: Key,
    /// Its ordering key.
    pub order_by: Option<Key>,
    /// Its headers.
    pub headers: Headers,
    /// The encoded message.
    pub body: Vec<u8>,
    /// The time of the event that it reports.
    pub occurred_at: Option<SystemTime>,
    /// The name of the relay.
    pub relay: Arc<str>,
    /// Whether an operator has requested a replay. The id is the same as before.
    pub is_replay: bool,
}

impl Outgoing {
    /// A message with a new id, which is its key too, and nothing else. For tests of sinks: a relay makes its own.
    pub fn new(kind: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        let id = MessageId::new();
        Self {
            id,
            kind: kind.into(),
            key: Key::from(id.to_string()),
            order_by: None,
            headers: Headers::new(),
            body: body.into(),
            occurred_at: None,
            relay: Arc::from(""),
            is_replay: false,
        }
    }
}

/// What became of a message that was sent.
#[derive(Debug)]
pub enum Verdict {
    /// The other side has stored it.
    Confirmed,
    /// The other side refuses it. This counts as a failed attempt: the message is retried as the failure says, and becomes a dead
    /// letter when no attempt is left.
    Refused(Failure),
    /// It is not known whether the other side has stored it, for example because the connection was lost. It is sent again, and no
    /// attempt is counted.
    Unknown(BoxError),
}

/// A sink without its type.
pub(crate) trait ErasedSink: Send + Sync {
    fn keeps_order(&self) -> bool;

    fn wave(&self) -> usize;

    /// Sends a wave. Returns as many verdicts as there are messages, also if the sink panics.
    fn publish<'a>(&'a self, wave: &'a [Outgoing]) -> BoxFuture<'a, Vec<Verdict>>;
}

impl<K: Sink> ErasedSink for K {
    fn keeps_order(&self) -> bool {
        K::KEEPS_ORDER
    }

    fn wave(&self) -> usize {
        K::WAVE.max(1)
    }

    fn publish<'a>(&'a self, wave: &'a [Outgoing]) -> BoxFuture<'a, Vec<Verdict>> {
        Box::pin(async move {
            let published = AssertUnwindSafe(async { Sink::publish(self, wave).await }).catch_unwind().await;
            let mut verdicts = published
                .unwrap_or_else(|panic| unknown(1, &format!("the sink panicked: {}", panic_text(&*panic))));
            let missing = wave.len().saturating_sub(verdicts.len());
            verdicts.extend(unknown(missing, "the sink returned no verdict for this message"));
            verdicts.truncate(wave.len());
            verdicts
        })
    }
}

/// This number of unknown verdicts, for this reason.
pub(crate) fn unknown(count: usize, why: &str) -> Vec<Verdict> {
    (0..count).map(|_| Verdict::Unknown(why.into())).collect()
}
