//! Headers of a delivery: which ones are stored and forwarded, and which ones cannot be configured.

use oncebox_core::Headers;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

/// Headers of the connection, which the client sets itself. A wrong length, for example, would cut the body.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers that belong to the connection, or are secret.
const LEFT_OUT: [&str; 17] = [
    "accept",
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

/// Whether a header of a sender belongs to its connection or is secret. Such a header is not stored and not forwarded.
pub fn is_left_out(name: &str) -> bool {
    LEFT_OUT.iter().any(|left_out| left_out.eq_ignore_ascii_case(name))
}

/// Why a header cannot be configured for an endpoint; `None` if it can.
pub fn header_problem(name: &str) -> Option<String> {
    let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
        return Some(format!("invalid header name {name:?}: use letters, digits and '-'"));
    };
    let name = name.as_str();
    if HOP_BY_HOP.contains(&name) {
        return Some(format!("the header {name} belongs to the connection: remove it"));
    }
    let is_reserved = matches!(name, "idempotency-key" | "traceparent") || name.starts_with("oncebox-");
    is_reserved.then(|| reserved(name))
}

/// The error text of a header that the program sets itself.
pub(crate) fn reserved(name: &str) -> String {
    format!("the header {name} is reserved: it is set on each delivery; use another one")
}

/// The stored headers that can be part of another request.
pub(super) fn forwarded(headers: &Headers) -> HeaderMap {
    let mut forwarded = HeaderMap::new();
    // A program may have stored headers that the gateway leaves out.
    for (name, value) in headers.iter().filter(|(name, _)| !is_left_out(name)) {
        let name = HeaderName::from_bytes(name.as_bytes()).ok();
        // Stored headers are any text, so some of them are not valid in HTTP.
        if let (Some(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
            forwarded.append(name, value);
        }
    }
    forwarded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_connection_are_not_forwarded() {
        let stored: Headers =
            [("Content-Length", "1"), ("host", "x"), ("X-Tenant", "a"), ("Transfer-Encoding", "chunked")]
                .into_iter()
                .collect();
        let forwarded = forwarded(&stored);
        assert_eq!(forwarded.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-tenant"]);
    }

    #[test]
    fn only_headers_that_a_delivery_does_not_set_can_be_configured() {
        for (name, problem) in [
            ("a b", "invalid header name \"a b\": use letters"),
            ("Content-Length", "belongs to the connection: remove it"),
            ("Idempotency-Key", "reserved"),
            ("Oncebox-Anything", "reserved"),
            ("traceparent", "reserved"),
        ] {
            let found = header_problem(name).unwrap();
            assert!(found.contains(problem), "{name}: {found}");
        }
        assert_eq!(header_problem("Authorization"), None);
    }
}
