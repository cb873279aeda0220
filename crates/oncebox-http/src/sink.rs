//! HTTP as a sink: each message is a request.

use std::borrow::Cow;
use std::fmt::Write;

use futures_util::future::join_all;
use jiff::Timestamp;
use oncebox_core::{Error, Failure, Headers, Key, Outgoing, Sink, Verdict};

use crate::delivery::{Endpoint, PostError, header_problem, traceparent};

/// The attributes of a CloudEvent in binary mode that each request has.
const CLOUD_EVENT: [&str; 5] = ["ce-specversion", "ce-id", "ce-type", "ce-source", "ce-time"];

/// Posts each message of a relay to an endpoint. The body is the published one.
///
/// The receiver finds in the headers what it needs to handle a message once:
///
/// | header | value |
/// |---|---|
/// | `Idempotency-Key`, `Oncebox-Id` | the id of the message, the same for every copy |
/// | `Oncebox-Kind`, `Oncebox-Key`, `Oncebox-Order-By` | as published; bytes that a header cannot have are percent-encoded |
/// | `Oncebox-Relay`, `Oncebox-Replay` | the name of the relay; `true` for a replay, otherwise absent |
/// | `ce-id`, `ce-type`, `ce-source`, `ce-time`, `ce-specversion` | the same as a CloudEvent in binary mode |
/// | `traceparent` | a new span in the trace of the publisher, or in a trace with the message's id |
///
/// The stored headers of the message come with them, except for those of a connection and for `Authorization` and `Cookie`. No
/// publisher can set the headers above.
///
/// The response decides what becomes of the message:
///
/// | response | verdict |
/// |---|---|
/// | 2xx | confirmed |
/// | none, 408, 425, 429, 502, 503, 504 | unknown: the relay waits, and sends it again; no attempt is counted |
/// | other 4xx, except 409 | refused for good |
/// | anything else: 409, 500, a redirect, … | refused: tried again, after `Retry-After` if there is one |
///
/// Each request has the time that the relay has for a wave: a third of the outbox's lease, 5 s by default.
///
/// ```no_run
/// # use oncebox_http::HttpSink;
/// # fn sink(token: &str) -> Result<HttpSink, oncebox_core::Error> {
/// let sink = HttpSink::new("https://billing.example.com/messages")?
///     .header("content-type", "application/json")?
///     .header("authorization", format!("Bearer {token}"))?;
/// # Ok(sink)
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct HttpSink {
    endpoint: Endpoint,
    source: Option<String>,
}

impl HttpSink {
    /// A sink at an `http` or `https` URL.
    pub fn new(url: impl AsRef<str>) -> Result<Self, Error> {
        Endpoint::new(url.as_ref()).map(Self::from)
    }

    /// Adds a header to each request, for example `authorization`. It replaces a stored header of this name.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Result<Self, Error> {
        if let Some(problem) = Self::header_problem(name) {
            return Err(Error::configuration(problem));
        }
        self.endpoint = self.endpoint.header(name, value)?;
        Ok(self)
    }

    /// Allows an address on this machine or in a private network. Otherwise the relay waits, and its health says why.
    pub fn allow_private(mut self) -> Self {
        self.endpoint = self.endpoint.allow_private();
        self
    }

    /// The `ce-source` of each message, a URI or a path. Default: `/relays/` and the name of the relay.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Why a header cannot be added to a sink; `None` if it can.
    pub fn header_problem(name: &str) -> Option<String> {
        let reserved = CLOUD_EVENT.iter().find(|reserved| reserved.eq_ignore_ascii_case(name));
        header_problem(name).or_else(|| reserved.map(|name| crate::delivery::reserved(name)))
    }

    async fn send(&self, message: &Outgoing) -> Verdict {
        let id = message.id.to_string();
        let key = header_text(message.key.as_bytes());
        let order_by = message.order_by.as_ref().map(Key::as_bytes).map(header_text);
        let source = match &self.source {
            Some(source) => header_text(source.as_bytes()),
            None => Cow::Owned(format!("/relays/{}", uri_text(&message.relay))),
        };
        let time = message.occurred_at.and_then(|time| Timestamp::try_from(time).ok());
        let time = time.map(|time| time.to_string());
        let trace = traceparent(message.headers.get(Headers::TRACEPARENT), message.id.as_bytes());
        let own = [
            ("idempotency-key", Some(&*id)),
            ("oncebox-id", Some(&*id)),
            ("oncebox-kind", Some(&*message.kind)),
            ("oncebox-key", Some(&*key)),
            ("oncebox-order-by", order_by.as_deref()),
            ("oncebox-relay", Some(&*message.relay)),
            ("oncebox-replay", message.is_replay.then_some("true")),
            ("traceparent", Some(&*trace)),
            ("ce-specversion", Some("1.0")),
            ("ce-id", Some(&*id)),
            ("ce-type", Some(&*message.kind)),
            ("ce-source", Some(&*source)),
            ("ce-time", time.as_deref()),
        ];
        match self.endpoint.post(&message.headers, &own, &message.body).await {
            Ok(()) => Verdict::Confirmed,
            Err(error) => verdict(error),
        }
    }
}

impl From<Endpoint> for HttpSink {
    fn from(endpoint: Endpoint) -> Self {
        Self { endpoint, source: None }
    }
}

impl Sink for HttpSink {
    // Each message is a request of its own; the relay sends them at the same time.
    const WAVE: usize = 1;

    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        join_all(wave.iter().map(|message| self.send(message))).await
    }
}

/// The verdict of a request that was not a success.
fn verdict(error: PostError) -> Verdict {
    match error.status {
        // An outage of the endpoint, or of what is in front of it: the message itself was not looked at.
        None | Some(408 | 425 | 429 | 502 | 503 | 504) => Verdict::Unknown(error.into()),
        // Another attempt would get the same response. Only a conflict may be over later.
        Some(status @ 400..=499) if status != 409 => Verdict::Refused(Failure::permanent(error)),
        Some(_) => Verdict::Refused(match error.retry_after {
            Some(wait) => Failure::after(wait, error),
            None => error.into(),
        }),
    }
}

/// A value as the text of a header. What a header cannot have is percent-encoded, so that different values stay different: a
/// lost ordering key would let messages overtake each other.
fn header_text(value: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(value) {
        Ok(text) if !text.contains(char::is_control) => Cow::Borrowed(text),
        _ => Cow::Owned(percent_encoded(value, |byte| (b' '..=b'~').contains(&byte))),
    }
}

/// A name as part of a URI.
fn uri_text(name: &str) -> String {
    percent_encoded(name.as_bytes(), |byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
}

fn percent_encoded(bytes: &[u8], is_kept: impl Fn(u8) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = match is_kept(*byte) {
            true => text.write_char(char::from(*byte)),
            false => write!(text, "%{byte:02X}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn verdict_of(status: Option<u16>, retry_after: Option<Duration>) -> Verdict {
        verdict(PostError { status, retry_after, text: "a response".to_owned() })
    }

    #[test]
    fn a_response_means_unknown_refused_or_tried_again() {
        for status in [None, Some(408), Some(425), Some(429), Some(502), Some(503), Some(504)] {
            let verdict = verdict_of(status, Some(Duration::from_secs(1)));
            assert!(matches!(verdict, Verdict::Unknown(_)), "{status:?}: {verdict:?}");
        }
        for status in [400, 401, 402, 403, 404, 405, 406, 407, 410, 411, 413, 415, 422, 426, 451, 499] {
            let verdict = verdict_of(Some(status), Some(Duration::from_secs(1)));
            assert!(matches!(verdict, Verdict::Refused(Failure::Permanent(_))), "{status}: {verdict:?}");
        }
        for status in [300, 301, 302, 304, 307, 308, 409, 500, 501, 505, 507, 599] {
            let verdict = verdict_of(Some(status), None);
            assert!(matches!(verdict, Verdict::Refused(Failure::Retry(_))), "{status}: {verdict:?}");
            let later = Duration::from_secs(9);
            let verdict = verdict_of(Some(status), Some(later));
            assert!(
                matches!(verdict, Verdict::Refused(Failure::After(wait, _)) if wait == later),
                "{status}: {verdict:?}"
            );
        }
    }

    #[test]
    fn what_a_header_cannot_have_is_percent_encoded() {
        for (value, text) in [
            (&b"customer-1"[..], "customer-1"),
            (b"50 %", "50 %"),
            ("größe".as_bytes(), "größe"),
            (b"a\0b", "a%00b"),
            (b"\xff\n", "%FF%0A"),
        ] {
            assert_eq!(header_text(value), text);
        }
        assert_eq!(uri_text("to billing/1"), "to%20billing%2F1");
    }

    #[test]
    fn attributes_of_the_event_cannot_be_configured() {
        for name in ["CE-Id", "ce-time", "oncebox-id", "host name"] {
            assert!(HttpSink::header_problem(name).is_some(), "{name}");
        }
        for name in ["authorization", "ce-subject", "content-type"] {
            assert_eq!(HttpSink::header_problem(name), None);
        }
    }
}
