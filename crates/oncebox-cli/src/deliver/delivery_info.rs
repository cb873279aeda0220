//! What a service or a command is told beside the message.

use oncebox::{Attempt, Delivery, EffectId, Failure, FromDelivery, Replay};
use uuid::Uuid;

use crate::source::SOURCE_HEADER;

/// The same for every try, but for the attempt and the span.
#[derive(Debug)]
pub(super) struct Told {
    /// What makes the effect once, if whoever gets it keeps it.
    pub(super) effect_id: String,
    pub(super) attempt: u32,
    /// Whether an operator has it run again on purpose.
    pub(super) is_replay: bool,
    pub(super) handler: String,
    pub(super) kind: String,
    /// The key as the source sent it, where it is text.
    pub(super) key: Option<String>,
    pub(super) source: Option<String>,
    /// W3C trace context: the sender's trace goes on, else one begins.
    pub(super) traceparent: String,
}

impl FromDelivery for Told {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Failure> {
        let id = EffectId::from_delivery(delivery)?;
        let (Attempt(attempt), Replay(is_replay)) =
            (Attempt::from_delivery(delivery)?, Replay::from_delivery(delivery)?);
        let envelope = delivery.envelope();
        let source = envelope.headers().get(SOURCE_HEADER).map(str::to_owned);
        let key = delivery.key().and_then(|key| std::str::from_utf8(key.as_bytes()).ok());
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

/// A span of its own in the trace that came with the message. Without one the effect's id is the trace: all tries are in it.
fn traceparent(came: Option<&str>, id: EffectId) -> String {
    let span = Uuid::now_v7().simple().to_string();
    let span = span.get(16..).unwrap_or_default();
    match came.and_then(trace_and_flags) {
        Some((trace, flags)) => format!("00-{trace}-{span}-{flags}"),
        None => format!("00-{}-{span}-01", id.as_uuid().simple()),
    }
}

fn trace_and_flags(traceparent: &str) -> Option<(&str, &str)> {
    let mut parts = traceparent.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex =
        |text: &str, length: usize| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_one = is_hex(version, 2) && is_hex(trace, 32) && is_hex(parent, 16) && is_hex(flags, 2);
    (is_one && trace.bytes().any(|byte| byte != b'0')).then_some((trace, flags))
}

#[cfg(test)]
mod tests {
    use oncebox::Key;

    use super::*;

    #[test]
    fn a_trace_goes_on_or_begins_with_the_effect() {
        let id = EffectId::of("h", "k", &Key::from("1"));
        let came = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let on = traceparent(Some(came), id);
        assert!(on.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && on.ends_with("-00"), "{on}");
        assert!(!on.contains("00f067aa0ba902b7"), "a span of its own");
        for none in [None, Some("nonsense"), Some("00-00000000000000000000000000000000-00f067aa0ba902b7-01")]
        {
            let begun = traceparent(none, id);
            assert!(begun.starts_with(&format!("00-{}-", id.as_uuid().simple())), "{begun}");
            assert_eq!(begun.len(), 55);
        }
    }
}
