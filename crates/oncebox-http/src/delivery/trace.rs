//! W3C trace context.

use uuid::Uuid;

/// The header `traceparent` of a delivery: a new span in the sender's trace. Without one the id is the trace id, so that all
/// deliveries with this id share a trace.
pub fn traceparent(received: Option<&str>, id: &[u8; 16]) -> String {
    // The second half of the id is its random part.
    let span = Uuid::now_v7().simple().to_string();
    let span = span.get(16..).unwrap_or_default();
    match received.and_then(trace_and_flags) {
        Some((trace, flags)) => format!("00-{trace}-{span}-{flags}"),
        None => format!("00-{}-{span}-01", Uuid::from_bytes(*id).simple()),
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
    use super::*;

    #[test]
    fn a_trace_continues_or_starts_with_the_id() {
        let id = *Uuid::now_v7().as_bytes();
        let received = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let continued = traceparent(Some(received), &id);
        assert!(
            continued.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && continued.ends_with("-00"),
            "{continued}"
        );
        assert!(!continued.contains("00f067aa0ba902b7"), "the span must be a new one");
        for none in [None, Some("nonsense"), Some("00-00000000000000000000000000000000-00f067aa0ba902b7-01")]
        {
            let started = traceparent(none, &id);
            assert!(started.starts_with(&format!("00-{}-", Uuid::from_bytes(id).simple())), "{started}");
            assert_eq!(started.len(), 55);
        }
    }
}
