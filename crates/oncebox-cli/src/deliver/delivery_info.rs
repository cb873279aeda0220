//! The information that a service or a command gets with each message.

use oncebox::{Attempt, Delivery, EffectId, Failure, FromDelivery, Replay};
use uuid::Uuid;

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
            traceparent: traceparent(envelope.headers().get("traceparent"), id),
        })
    }
}

/// A new span in the sender's trace. Without one the effect id is the trace id, so that all attempts share a trace.
fn traceparent(received: Option<&str>, id: EffectId) -> String {
    // The second half of the id is its random part.
    let span = Uuid::now_v7().simple().to_string();
    let span = span.get(16..).unwrap_or_default();
    match received.and_then(trace_and_flags) {
        Some((trace, flags)) => format!("00-{trace}-{span}-{flags}"),
        None => format!("00-{}-{span}-01", id.as_uuid().simple()),
    }
}

fn trace_and_flags(traceparent: &str) -> Option<(&str, &str)> {
    let mut parts = traceparent.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex =
        |text: &str, length: usize| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_valid = is_hex(version, 2) && is_hex(trace, 32) && is_hex(parent, 16) && is_hex(flags, 2);
    // W3C trace context defines an all-zero trace id as invalid.
    (is_valid && trace.bytes().any(|byte| byte != b'0')).then_some((trace, flags))
}

#[cfg(test)]
mod tests {
    use oncebox::Key;

    use super::*;

    #[test]
    fn a_trace_continues_or_starts_with_the_effect_id() {
        let id = EffectId::of("h", "k", &Key::from("1"));
        let received = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let continued = traceparent(Some(received), id);
        assert!(
            continued.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && continued.ends_with("-00"),
            "{continued}"
        );
        assert!(!continued.contains("00f067aa0ba902b7"), "the span must be a new one");
        for none in [None, Some("nonsense"), Some("00-00000000000000000000000000000000-00f067aa0ba902b7-01")]
        {
            let started = traceparent(none, id);
            assert!(started.starts_with(&format!("00-{}-", id.as_uuid().simple())), "{started}");
            assert_eq!(started.len(), 55);
        }
    }
}
