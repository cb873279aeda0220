//! The information that a service or a command gets with each message.

use oncebox::{Attempt, Delivery, EffectId, Failure, FromDelivery, Headers, Replay};
use oncebox_http::delivery::traceparent;

use crate::source::SOURCE_HEADER;

/// The same for every attempt, except for its number and its span.
#[derive(Debug)]
pub(super) struct DeliveryInfo {
    /// The same for all attempts. A service that stores it with the effect makes the effect once.
    pub(super) effect_id: String,
    pub(super) attempt: u32,
    /// Whether this is a replay by an operator.
    pub(super) is_replay: bool,
    pub(super) handler: String,
    pub(super) kind: String,
    /// The key as the source sent it, if it is UTF-8.
    pub(super) key: Option<String>,
    pub(super) source: Option<String>,
    /// W3C trace context: continues the sender's trace, or starts one.
    pub(super) traceparent: String,
}

impl FromDelivery for DeliveryInfo {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Failure> {
        let id = EffectId::from_delivery(delivery)?;
        let (Attempt(attempt), Replay(is_replay)) =
            (Attempt::from_delivery(delivery)?, Replay::from_delivery(delivery)?);
        let envelope = delivery.envelope();
        let source = envelope.headers().get(SOURCE_HEADER).map(str::to_owned);
        let key = delivery.key().and_then(|key| std::str::from_utf8(key.as_bytes()).ok());
        // The stored key begins with the source. The service gets the key as the sender knows it.
        let prefix = source.as_ref().map(|source| format!("{source}/")).unwrap_or_default();
        Ok(Self {
            effect_id: id.to_string(),
            attempt,
            is_replay,
            handler: delivery.handler().to_owned(),
            kind: envelope.kind().to_owned(),
            key: key.map(|key| key.strip_prefix(&prefix).unwrap_or(key).to_owned()),
            source,
            // All attempts share the effect id, and so the trace.
            traceparent: traceparent(envelope.headers().get(Headers::TRACEPARENT), id.as_uuid().as_bytes()),
        })
    }
}
