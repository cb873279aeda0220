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

/// The headers that came with a message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Came {
    /// Those that are text.
    pub(crate) headers: Headers,
    /// The names of the others: nothing can be looked up there, and nothing else is taken instead.
    pub(crate) unreadable: Vec<String>,
}

impl From<Headers> for Came {
    fn from(headers: Headers) -> Self {
        Self { headers, unreadable: Vec::new() }
    }
}

/// Why a message is not taken. The sender can do something about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is nothing to recognise it by.
    MissingKey(String),
    /// There is something, and it cannot be the key.
    BadKey(String),
    /// Something in it is not what it should be.
    Malformed(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingKey(message) | Self::BadKey(message) | Self::Malformed(message) => {
                f.write_str(message)
            }
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
    pub(crate) fn envelope(&self, came: impl Into<Came>, body: Vec<u8>) -> Result<Envelope, Refusal> {
        let came = came.into();
        let json = self.reads_body(&came.headers).then(|| parse(&body));
        let parts = Parts { came: &came, body: &body, json };
        let key = self.key(&parts)?;
        let kind = self.kind(&parts)?;
        let order = self.order.as_ref().map(|part| parts.find(part)).transpose()?.flatten();
        // One that cannot be read says nothing, in bytes as in text.
        let occurred_at = parts.cloud_event("time").ok().flatten();
        let occurred_at = occurred_at.and_then(|time| time.parse::<Timestamp>().ok());
        let due_at = parts.header(DUE_HEADER)?.map(due_at).transpose()?;
        let mut headers = came.headers;
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
            Some(Part::Header(name)) => {
                parts.header(name).map_err(OddHeader::into_bad_key)?.map(str::to_owned)
            }
            Some(pointer) => parts.find(pointer)?,
            None => parts.usual_key()?,
        };
        let found = found.filter(|key| !key.is_empty());
        found.ok_or_else(|| {
            Refusal::MissingKey(match &self.key {
                Some(Part::Header(name)) => {
                    format!("there is no header {name}: it is the key of this source's messages")
                }
                Some(Part::Pointer(pointer)) => {
                    format!(
                        "there is nothing at {pointer} in the body: it is the key of this source's messages"
                    )
                }
                None => parts.no_usual_key(),
            })
        })
    }

    fn kind(&self, parts: &Parts<'_>) -> Result<String, Refusal> {
        let found = match &self.kind {
            Some(part) => parts.find(part)?,
            None => parts.cloud_event("type")?,
        };
        Ok(found.filter(|kind| !kind.is_empty()).unwrap_or_else(|| self.default_kind.clone()))
    }
}

/// A message of which parts are looked up.
struct Parts<'a> {
    came: &'a Came,
    body: &'a [u8],
    /// The body, if anything is to be found there.
    json: Option<Result<Value, String>>,
}

impl Parts<'_> {
    fn find(&self, part: &Part) -> Result<Option<String>, Refusal> {
        match part {
            Part::Header(name) => Ok(self.header(name)?.map(str::to_owned)),
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

    /// The one value of a header.
    fn header(&self, name: &str) -> Result<Option<&str>, OddHeader> {
        if self.came.unreadable.iter().any(|unreadable| unreadable.eq_ignore_ascii_case(name)) {
            return Err(OddHeader(format!("the value of the header {name} is no UTF-8")));
        }
        let mut values = self.came.headers.get_all(name);
        let first = values.next();
        match values.any(|value| Some(value) != first) {
            true => Err(OddHeader(format!("the header {name} comes with several values: send one"))),
            false => Ok(first),
        }
    }

    /// Where HTTP clients, webhooks and CloudEvents have it. The id of an event is unique for its producer only.
    fn usual_key(&self) -> Result<Option<String>, Refusal> {
        for name in ["Idempotency-Key", "webhook-id"] {
            if let Some(key) =
                self.header(name).map_err(OddHeader::into_bad_key)?.filter(|key| !key.is_empty())
            {
                return Ok(Some(key.to_owned()));
            }
        }
        if let (true, Some(Err(error))) = (self.is_structured(), &self.json) {
            let bytes = self.body.len();
            return Err(Refusal::Malformed(format!(
                "the body of {bytes} bytes is sent as a CloudEvent, and is no JSON ({error})"
            )));
        }
        let attribute = |name| self.cloud_event(name).map_err(OddHeader::into_bad_key);
        let (id, source) = (attribute("id")?.filter(|id| !id.is_empty()), attribute("source")?);
        // The first space is the one between the two.
        Ok(id
            .zip(source)
            .map(|(id, source)| format!("{} {id}", source.replace('%', "%25").replace(' ', "%20"))))
    }

    /// What is missing, if there is no key in any of the usual places.
    fn no_usual_key(&self) -> String {
        let has = |name| matches!(self.cloud_event(name), Ok(Some(value)) if !value.is_empty());
        let (in_body, at) = (self.is_structured(), if self.is_structured() { "" } else { "ce-" });
        let missing = match (has("id"), has("source")) {
            (true, false) => "source",
            (false, true) => "id",
            (false, false) if in_body => "id and source",
            _ => {
                return "there is nothing to recognise a copy by: send an Idempotency-Key or webhook-id header, a CloudEvent, \
                        or configure key_header or key_pointer for this source"
                    .to_owned();
            }
        };
        format!(
            "the CloudEvent has no {at}{missing}: its id and its source together are what a copy is recognised by"
        )
    }

    fn is_structured(&self) -> bool {
        is_structured(&self.came.headers)
    }

    /// An attribute of a CloudEvent, in either mode.
    fn cloud_event(&self, attribute: &str) -> Result<Option<String>, OddHeader> {
        if self.is_structured() {
            let json = self.json.as_ref().and_then(|json| json.as_ref().ok());
            let found = json.and_then(|json| json.get(attribute)?.as_str());
            return Ok(found.map(str::to_owned));
        }
        Ok(self.header(&format!("ce-{attribute}"))?.map(str::to_owned))
    }
}

/// A header of which the value cannot be told.
#[derive(Debug)]
struct OddHeader(String);

impl OddHeader {
    /// Where it was to be the key: no other place is looked at instead.
    fn into_bad_key(self) -> Refusal {
        Refusal::BadKey(self.0)
    }
}

impl From<OddHeader> for Refusal {
    fn from(OddHeader(message): OddHeader) -> Self {
        Self::Malformed(message)
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
        for (pairs, body, said) in [
            (&[][..], "{}", "send an Idempotency-Key"),
            (&[("ce-id", "1")], "", "has no ce-source"),
            (&[("ce-source", "/shop")], "", "has no ce-id"),
            (&[STRUCTURED], r#"{"id":"e-1"}"#, "has no source"),
            (&[STRUCTURED], "{}", "has no id and source"),
        ] {
            let refused = take(&shop, pairs, body).unwrap_err();
            assert!(matches!(refused, Refusal::MissingKey(_)), "{pairs:?}");
            assert!(refused.to_string().contains(said), "{refused}");
        }
        let cut_off = take(&shop, &[STRUCTURED], &EVENT[..20]).unwrap_err();
        assert!(matches!(cut_off, Refusal::Malformed(_)), "{cut_off}");
        assert!(cut_off.to_string().contains("the body of 20 bytes is sent as a CloudEvent"), "{cut_off}");
    }

    /// Another key in its place would make one message of two, or two of one.
    #[test]
    fn a_header_that_cannot_be_read_is_not_passed_over() {
        let came = |unreadable: &str| Came {
            headers: headers(&[("idempotency-key", "1"), ("webhook-id", "2"), ("x-id", "3")]),
            unreadable: vec![unreadable.to_owned()],
        };
        let shop = Source::named("shop");
        let refused = |source: &Source, unreadable| source.envelope(came(unreadable), Vec::new());
        let error = refused(&shop, "idempotency-key").unwrap_err();
        assert!(matches!(&error, Refusal::BadKey(text) if text.contains("Idempotency-Key")), "{error}");
        refused(&shop, "webhook-id").unwrap();
        refused(&shop, "x-other").unwrap();
        let by_header = |part: &str| Some(Part::Header(part.to_owned()));
        let keyed = Source { key: by_header("X-Id"), ..shop.clone() };
        assert!(matches!(refused(&keyed, "x-id"), Err(Refusal::BadKey(_))));
        refused(&keyed, "idempotency-key").unwrap();
        let of_kind = Source { kind: by_header("x-kind"), ..shop.clone() };
        let ordered = Source { order: by_header("x-customer"), ..shop.clone() };
        for (source, unreadable) in
            [(&shop, "ce-type"), (&of_kind, "x-kind"), (&ordered, "x-customer"), (&shop, "oncebox-due-at")]
        {
            let error = refused(source, unreadable).unwrap_err();
            assert!(matches!(error, Refusal::Malformed(_)), "{error}");
        }
        refused(&of_kind, "ce-type").unwrap();
        let event =
            Came { headers: headers(&[("ce-source", "/shop")]), unreadable: vec!["ce-id".to_owned()] };
        assert!(matches!(shop.envelope(event, Vec::new()), Err(Refusal::BadKey(_))));
    }

    #[test]
    fn several_values_are_no_key() {
        let shop = Source::named("shop");
        let twice = [("idempotency-key", "1"), ("Idempotency-Key", "2"), ("webhook-id", "3")];
        assert!(matches!(take(&shop, &twice, ""), Err(Refusal::BadKey(_))));
        let the_same = [("idempotency-key", "1"), ("idempotency-key", "1")];
        assert_eq!(key_of(&shop, &the_same, ""), "shop/1");
        let kinds = [("idempotency-key", "1"), ("ce-type", "a"), ("ce-type", "b")];
        assert!(matches!(take(&shop, &kinds, ""), Err(Refusal::Malformed(_))));
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
