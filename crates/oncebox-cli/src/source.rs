//! Where messages come from: which key and which kind a message has, by the rules of its source. Pure.

use std::fmt;
use std::time::SystemTime;

use jiff::Timestamp;
use oncebox::{Envelope, Headers};
use serde_json::Value;

/// The header that names the source of a stored message.
pub(crate) const SOURCE_HEADER: &str = "Oncebox-Source";
/// The header by which a sender has a message handled later.
const DUE_HEADER: &str = "Oncebox-Due-At";

/// Headers that are about the connection, or nobody else's business.
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

/// Whether a header is not kept.
pub(crate) fn is_left_out(name: &str) -> bool {
    LEFT_OUT.iter().any(|left_out| left_out.eq_ignore_ascii_case(name))
}

/// The rules of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) name: String,
    /// Where the key stands; else where webhooks, HTTP clients and CloudEvents have it.
    pub(crate) key: Option<Part>,
    /// Where the kind stands; else a CloudEvent's type.
    pub(crate) kind: Option<Part>,
    /// The kind where nothing else says it.
    pub(crate) default_kind: String,
    /// Where the ordering key stands.
    pub(crate) order: Option<Part>,
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The value of a header.
    Header(String),
    /// A string or an integer in a JSON body.
    Pointer(String),
}

/// Why a message is not taken. The sender can do something about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is nothing to recognise it by.
    MissingKey(String),
    /// Something in it is not what it should be.
    Malformed(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingKey(message) | Self::Malformed(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Refusal {}

impl Source {
    /// A source of which nothing is said but its name.
    pub(crate) fn named(name: &str) -> Self {
        Self { name: name.to_owned(), key: None, kind: None, default_kind: name.to_owned(), order: None }
    }

    /// The message that came with these headers.
    pub(crate) fn envelope(&self, mut headers: Headers, body: Vec<u8>) -> Result<Envelope, Refusal> {
        let parts =
            Parts { headers: &headers, body: &body, json: self.reads_body(&headers).then(|| parse(&body)) };
        let key = self.key(&parts)?;
        let kind = self.kind(&parts)?;
        let order = self.order.as_ref().map(|part| parts.find(part)).transpose()?.flatten();
        let occurred_at = parts.cloud_event("time").and_then(|time| time.parse::<Timestamp>().ok());
        let due_at = headers.get(DUE_HEADER).map(due_at).transpose()?;
        headers.set(SOURCE_HEADER, self.name.as_str());
        // The key space is the source's: no source has a slash in its name.
        let mut envelope = Envelope::new(kind, body).with_key(self.stored_key(&key)).with_headers(headers);
        if let Some(order) = order {
            envelope = envelope.with_order_by(format!("{}/{order}", self.name));
        }
        if let Some(at) = occurred_at {
            envelope = envelope.with_occurred_at(SystemTime::from(at));
        }
        if let Some(at) = due_at {
            envelope = envelope.with_due_at(at);
        }
        Ok(envelope)
    }

    /// A key of this source as it stands in the database.
    pub(crate) fn stored_key(&self, key: &str) -> String {
        format!("{}/{key}", self.name)
    }

    /// Whether anything is looked up in the body.
    fn reads_body(&self, headers: &Headers) -> bool {
        let parts = [&self.key, &self.kind, &self.order];
        parts.into_iter().flatten().any(|part| matches!(part, Part::Pointer(_))) || is_structured(headers)
    }

    fn key(&self, parts: &Parts<'_>) -> Result<String, Refusal> {
        let found = match &self.key {
            Some(part) => parts.find(part)?,
            None => parts.usual_key(),
        };
        let found = found.filter(|key| !key.is_empty());
        found.ok_or_else(|| {
            Refusal::MissingKey(match &self.key {
                Some(Part::Header(name)) => format!("there is no header {name}: it is the key of this source's messages"),
                Some(Part::Pointer(pointer)) => {
                    format!("there is nothing at {pointer} in the body: it is the key of this source's messages")
                }
                None => "there is nothing to recognise a copy by: send an Idempotency-Key or webhook-id header, a CloudEvent, or \
                         configure key_header or key_pointer for this source"
                    .to_owned(),
            })
        })
    }

    fn kind(&self, parts: &Parts<'_>) -> Result<String, Refusal> {
        let found = match &self.kind {
            Some(part) => parts.find(part)?,
            None => parts.cloud_event("type"),
        };
        Ok(found.filter(|kind| !kind.is_empty()).unwrap_or_else(|| self.default_kind.clone()))
    }
}

/// A message of which parts are looked up.
struct Parts<'a> {
    headers: &'a Headers,
    body: &'a [u8],
    /// The body, if anything is to be found there.
    json: Option<Result<Value, String>>,
}

impl Parts<'_> {
    fn find(&self, part: &Part) -> Result<Option<String>, Refusal> {
        match part {
            Part::Header(name) => Ok(self.headers.get(name).map(str::to_owned)),
            Part::Pointer(pointer) => match &self.json {
                Some(Ok(json)) => text_at(json, pointer),
                Some(Err(error)) => Err(Refusal::Malformed(format!(
                    "the body of {} bytes is no JSON ({error}), and something is to be found at {pointer}",
                    self.body.len()
                ))),
                None => Ok(None),
            },
        }
    }

    /// Where HTTP clients, webhooks and CloudEvents have it. The id of an event is unique for its producer only.
    fn usual_key(&self) -> Option<String> {
        let header = |name: &str| self.headers.get(name).filter(|key| !key.is_empty()).map(str::to_owned);
        let event = || {
            let id = self.cloud_event("id").filter(|id| !id.is_empty())?;
            // The first space is the one between the two.
            Some(format!("{} {id}", self.cloud_event("source")?.replace('%', "%25").replace(' ', "%20")))
        };
        header("Idempotency-Key").or_else(|| header("webhook-id")).or_else(event)
    }

    /// An attribute of a CloudEvent, in either mode.
    fn cloud_event(&self, attribute: &str) -> Option<String> {
        if is_structured(self.headers) {
            let json = self.json.as_ref()?.as_ref().ok()?;
            return json.get(attribute)?.as_str().map(str::to_owned);
        }
        self.headers.get(&format!("ce-{attribute}")).map(str::to_owned)
    }
}

/// Whether the body is a CloudEvent with all its attributes.
fn is_structured(headers: &Headers) -> bool {
    headers
        .get("content-type")
        .is_some_and(|media| media.trim_start().starts_with("application/cloudevents+json"))
}

fn parse(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

/// A string, or an integer that is exact. Two numbers that are rounded to the same one would be one key.
fn text_at(json: &Value, pointer: &str) -> Result<Option<String>, Refusal> {
    match json.pointer(pointer) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Number(number)) if !number.is_f64() => Ok(Some(number.to_string())),
        Some(_) => Err(Refusal::Malformed(format!(
            "what stands at {pointer} is no string and no integer of 64 bits"
        ))),
    }
}

fn due_at(text: &str) -> Result<SystemTime, Refusal> {
    let time: Result<Timestamp, _> = text.parse();
    time.map(SystemTime::from).map_err(|_| {
        Refusal::Malformed(format!("{DUE_HEADER}: {text:?} is no time: write it as in 2026-01-31T12:00:00Z"))
    })
}

#[cfg(test)]
mod tests {
    use oncebox::Key;

    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in pairs {
            headers.append(*name, *value);
        }
        headers
    }

    fn take(source: &Source, pairs: &[(&str, &str)], body: &str) -> Result<Envelope, Refusal> {
        source.envelope(headers(pairs), body.into())
    }

    fn key_of(source: &Source, pairs: &[(&str, &str)], body: &str) -> String {
        let envelope = take(source, pairs, body).unwrap();
        String::from_utf8(envelope.key().unwrap().as_bytes().to_vec()).unwrap()
    }

    const STRUCTURED: (&str, &str) = ("Content-Type", "application/cloudevents+json; charset=utf-8");
    const EVENT: &str =
        r#"{"specversion":"1.0","id":"e-1","source":"/shop","type":"paid","time":"2026-01-31T12:00:00Z"}"#;

    #[test]
    fn the_key_is_where_clients_webhooks_and_events_have_it() {
        let shop = Source::named("shop");
        assert_eq!(key_of(&shop, &[("idempotency-key", " a "), ("webhook-id", "b")], ""), "shop/ a ");
        assert_eq!(key_of(&shop, &[("idempotency-key", ""), ("webhook-id", "b")], ""), "shop/b");
        assert_eq!(key_of(&shop, &[("ce-id", "e-1"), ("ce-source", "/shop")], ""), "shop//shop e-1");
        assert_eq!(key_of(&shop, &[STRUCTURED], EVENT), "shop//shop e-1");
        let spaced = |source: &str, id: &str| key_of(&shop, &[("ce-id", id), ("ce-source", source)], "");
        assert_ne!(spaced("a", "b 1"), spaced("a b", "1"));
        assert_ne!(spaced("a%20b", "1"), spaced("a b", "1"));
        for (pairs, body) in
            [(&[][..], "{}"), (&[("ce-id", "no source")], ""), (&[STRUCTURED], "{}"), (&[STRUCTURED], "{")]
        {
            assert!(matches!(take(&shop, pairs, body), Err(Refusal::MissingKey(_))), "{pairs:?}");
        }
    }

    #[test]
    fn a_configured_key_is_the_only_one() {
        let by = |part| Source { key: Some(part), ..Source::named("s") };
        let header = by(Part::Header("X-Id".into()));
        assert_eq!(key_of(&header, &[("x-id", "7"), ("idempotency-key", "other")], ""), "s/7");
        assert!(matches!(take(&header, &[("idempotency-key", "other")], ""), Err(Refusal::MissingKey(_))));
        let pointer = by(Part::Pointer("/data/id".into()));
        assert_eq!(key_of(&pointer, &[], r#"{"data":{"id":"x"}}"#), "s/x");
        assert_eq!(
            key_of(&pointer, &[], r#"{"data":{"id":18446744073709551615}}"#),
            "s/18446744073709551615"
        );
        for body in [r#"{"data":{}}"#, r#"{"data":{"id":null}}"#, r#"{"data":{"id":""}}"#] {
            assert!(matches!(take(&pointer, &[], body), Err(Refusal::MissingKey(_))), "{body}");
        }
        for body in ["{", "", r#"{"data":{"id":18446744073709551616}}"#, r#"{"data":{"id":{}}}"#] {
            assert!(matches!(take(&pointer, &[], body), Err(Refusal::Malformed(_))), "{body}");
        }
    }

    #[test]
    fn the_kind_is_said_by_the_message_or_its_source() {
        let key = ("idempotency-key", "1");
        let shop = Source { default_kind: "paid".into(), ..Source::named("shop") };
        assert_eq!(take(&shop, &[key], "").unwrap().kind(), "paid");
        assert_eq!(take(&shop, &[key, ("ce-type", "refunded")], "").unwrap().kind(), "refunded");
        assert_eq!(take(&shop, &[STRUCTURED], EVENT).unwrap().kind(), "paid");
        let by_body = Source { kind: Some(Part::Pointer("/type".into())), ..shop };
        assert_eq!(take(&by_body, &[key], r#"{"type":"x"}"#).unwrap().kind(), "x");
        assert_eq!(take(&by_body, &[key], "{}").unwrap().kind(), "paid");
    }

    #[test]
    fn order_and_times_come_along() {
        let by_customer = Source { order: Some(Part::Pointer("/customer".into())), ..Source::named("shop") };
        let envelope = take(&by_customer, &[("webhook-id", "1")], r#"{"customer":7}"#).unwrap();
        assert_eq!(envelope.order_by(), Some(&Key::from("shop/7")));
        assert_eq!(envelope.headers().get(SOURCE_HEADER), Some("shop"));
        let event = take(&Source::named("shop"), &[STRUCTURED], EVENT).unwrap();
        assert_eq!(
            event.occurred_at().map(crate::times::rfc3339).as_deref(),
            Some("2026-01-31T12:00:00.000Z")
        );
        let later = take(
            &Source::named("shop"),
            &[("webhook-id", "1"), ("oncebox-due-at", "2026-02-01T00:00:00Z")],
            "",
        );
        assert_eq!(
            later.unwrap().due_at().map(crate::times::rfc3339).as_deref(),
            Some("2026-02-01T00:00:00.000Z")
        );
        let soon = take(&Source::named("shop"), &[("webhook-id", "1"), ("oncebox-due-at", "soon")], "");
        assert!(matches!(soon, Err(Refusal::Malformed(_))));
    }

    #[test]
    fn sources_have_key_spaces_of_their_own() {
        let key = [("idempotency-key", "b/1")];
        assert_ne!(key_of(&Source::named("a"), &key, ""), key_of(&Source::named("a.b"), &key, ""));
    }
}
