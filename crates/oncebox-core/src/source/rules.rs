//! Sources of messages: the key, the kind and the ordering key of a message, by the rules of its source. Pure.

use std::fmt;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::source::{ReceivedHeaders, ReceivedMessage};
use crate::{Envelope, Headers, Key, utc};

/// The header that names the source of a stored message.
const SOURCE_HEADER: &str = "Oncebox-Source";
/// The header with the id of a message that an outbox has published.
const ID_HEADER: &str = "oncebox-id";
/// The header with the time from which on handlers run the message.
const DUE_HEADER: &str = "Oncebox-Due-At";

/// The rules of one source: where its messages have their key, kind and ordering key.
///
/// Each source has a key space of its own: its name is part of the keys that it makes.
///
/// ```
/// use oncebox_core::source::{FieldLocation, SourceRules};
///
/// let rules = SourceRules::new("orders").key(FieldLocation::header("x-event-id"));
/// assert_eq!(rules.name, "orders");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct SourceRules {
    /// The name of the source.
    pub name: String,
    /// The location of the key; by default the usual ones of clients, webhooks, brokers and CloudEvents.
    pub key: Option<FieldLocation>,
    /// The location of the kind; by default a CloudEvent's type, then the field that the protocol has for it.
    pub kind: Option<FieldLocation>,
    /// The kind of messages without one. Default: the name of the source.
    pub default_kind: String,
    /// The location of the ordering key; by default the field that the protocol has for it.
    pub order: Option<FieldLocation>,
}

/// The location of a value in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldLocation {
    /// The value of a header.
    Header(String),
    /// A string or an integer in a JSON body, by its JSON pointer.
    Pointer(String),
}

impl FieldLocation {
    /// The value of a header.
    pub fn header(name: impl Into<String>) -> Self {
        Self::Header(name.into())
    }

    /// A string or an integer in a JSON body, by its JSON pointer: `/data/id`.
    pub fn pointer(pointer: impl Into<String>) -> Self {
        Self::Pointer(pointer.into())
    }
}

/// Why a message is refused. Its sender can correct it; another delivery of it cannot succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidMessage {
    /// No idempotency key.
    MissingKey(String),
    /// An unreadable or ambiguous idempotency key.
    BadKey(String),
    /// An unreadable value at another location.
    Malformed(String),
}

impl fmt::Display for InvalidMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingKey(message) | Self::BadKey(message) | Self::Malformed(message) => {
                f.write_str(message)
            }
        }
    }
}

impl std::error::Error for InvalidMessage {}

impl SourceRules {
    /// The rules of a source without any of its own.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self { default_kind: name.clone(), name, key: None, kind: None, order: None }
    }

    /// Sets the location of the key. It is the only one then: a message without a value there is refused.
    pub fn key(mut self, location: FieldLocation) -> Self {
        self.key = Some(location);
        self
    }

    /// Sets the location of the kind.
    pub fn kind(mut self, location: FieldLocation) -> Self {
        self.kind = Some(location);
        self
    }

    /// Sets the kind of messages without one.
    pub fn default_kind(mut self, kind: impl Into<String>) -> Self {
        self.default_kind = kind.into();
        self
    }

    /// Sets the location of the ordering key.
    pub fn order_by(mut self, location: FieldLocation) -> Self {
        self.order = Some(location);
        self
    }

    /// The message of a request with these headers and this body. Its key must be in the headers or in the body.
    pub fn request(
        &self,
        headers: impl Into<ReceivedHeaders>,
        body: Vec<u8>,
    ) -> Result<Envelope, InvalidMessage> {
        let received = ReceivedMessage { headers: headers.into(), body, ..ReceivedMessage::default() };
        // Parsed only if a rule needs it: most bodies are stored unread.
        let json = self.reads_body(&received.headers.headers).then(|| parse(&received.body));
        let parts = IncomingMessage { received: &received, json };
        let key = match &self.key {
            Some(location) => parts.key_at(location)?,
            None => {
                let usual = parts.usual_key()?.filter(|key| !key.is_empty());
                usual.ok_or_else(|| InvalidMessage::MissingKey(parts.no_usual_key()))?
            }
        };
        let read = self.read(&parts)?;
        Ok(read.envelope(self, received).with_key(self.stored_key(&key)))
    }

    /// The message of a delivery by a broker. With a configured location, its key must be there. Otherwise the message's own key comes
    /// first, then the id of its publication, the usual header of HTTP clients, the id in the protocol, and that of a CloudEvent. A
    /// message without any of them is up to the inbox: see [`MissingKey`](crate::MissingKey).
    ///
    /// A CloudEvent in structured mode is unpacked: handlers receive its data, and find its attributes in the headers, as if it had
    /// arrived in binary mode.
    pub fn delivery(&self, received: ReceivedMessage) -> Result<Envelope, InvalidMessage> {
        let received = unpacked(received)?;
        let json = self.reads_body(&received.headers.headers).then(|| parse(&received.body));
        let parts = IncomingMessage { received: &received, json };
        let (own, fallback) = match &self.key {
            Some(location) => (Some(Key::from(self.stored_key(&parts.key_at(location)?))), None),
            None => (None, self.fallback_key(&parts)?),
        };
        let read = self.read(&parts)?;
        let attempt = received.attempt.unwrap_or(1);
        let mut envelope = read.envelope(self, received).with_attempt(attempt);
        envelope.key = own;
        envelope.fallback_key = fallback;
        Ok(envelope)
    }

    /// The key of a message whose type and publisher have set none.
    fn fallback_key(&self, parts: &IncomingMessage<'_>) -> Result<Option<Key>, InvalidMessage> {
        // Unique for all sources: copies that arrive by different ones are copies all the same.
        let published = parts.header(ID_HEADER).map_err(InvalidHeader::into_bad_key)?;
        if let Some(id) = published.filter(|id| !id.is_empty()) {
            return Ok(Some(Key::from(id)));
        }
        let sent = parts.sent_key()?;
        let protocol = || parts.received.message_id.clone().filter(|id| !id.is_empty());
        let found = match sent.or_else(protocol) {
            Some(key) => Some(key),
            None => parts.event_key()?,
        };
        Ok(found.map(|key| Key::from(self.stored_key(&key))))
    }

    /// Reads everything but the key.
    fn read(&self, parts: &IncomingMessage<'_>) -> Result<ReadFields, InvalidMessage> {
        let order = self.order.as_ref().map(|part| parts.find(part)).transpose()?.flatten();
        // For information only, so an unreadable time is ignored.
        let occurred_at = parts.cloud_event("time").ok().flatten();
        Ok(ReadFields {
            kind: self.kind_of(parts)?,
            // With the source: equal numbers of two sources are different customers.
            order: order.map(|order| Key::from(self.stored_key(&order))).or_else(|| {
                let order = parts.received.order_by.as_ref()?;
                Some(Key::from([self.name.as_bytes(), b"/", order.as_bytes()].concat()))
            }),
            occurred_at: occurred_at
                .and_then(|time| utc::parse_rfc3339(&time))
                .or(parts.received.occurred_at),
            // An unreadable due time is an error: without it the message would run too early.
            due_at: parts.header(DUE_HEADER)?.map(due_at).transpose()?,
        })
    }

    /// A key of this source, as it is stored. No source has a slash in its name.
    pub fn stored_key(&self, key: &str) -> String {
        format!("{}/{key}", self.name)
    }

    /// Whether a rule reads the body.
    fn reads_body(&self, headers: &Headers) -> bool {
        let parts = [&self.key, &self.kind, &self.order];
        parts.into_iter().flatten().any(|part| matches!(part, FieldLocation::Pointer(_)))
            || is_structured(headers)
    }

    fn kind_of(&self, parts: &IncomingMessage<'_>) -> Result<String, InvalidMessage> {
        let found = match &self.kind {
            Some(part) => parts.find(part)?,
            None => parts.cloud_event("type")?.or_else(|| parts.received.kind.clone()),
        };
        Ok(found.filter(|kind| !kind.is_empty()).unwrap_or_else(|| self.default_kind.clone()))
    }
}

/// The values of a message besides its key.
struct ReadFields {
    kind: String,
    order: Option<Key>,
    occurred_at: Option<SystemTime>,
    due_at: Option<SystemTime>,
}

impl ReadFields {
    fn envelope(self, rules: &SourceRules, received: ReceivedMessage) -> Envelope {
        let mut headers = received.headers.headers;
        // Replaces a header of the same name from the sender, who must not choose the source that handlers see.
        headers.set(SOURCE_HEADER, rules.name.as_str());
        let mut envelope = Envelope::new(self.kind, received.body).with_headers(headers);
        envelope.order_by = self.order;
        envelope.occurred_at = self.occurred_at;
        envelope.due_at = self.due_at;
        envelope
    }
}

/// A message whose values are looked up.
struct IncomingMessage<'a> {
    received: &'a ReceivedMessage,
    /// The parsed body, if a rule reads it.
    json: Option<Result<Value, String>>,
}

impl IncomingMessage<'_> {
    /// The key at its configured location.
    fn key_at(&self, location: &FieldLocation) -> Result<String, InvalidMessage> {
        let found = match location {
            FieldLocation::Header(name) => {
                self.header(name).map_err(InvalidHeader::into_bad_key)?.map(str::to_owned)
            }
            FieldLocation::Pointer(_) => self.find(location)?,
        };
        // An empty key would make all messages duplicates of the first.
        found.filter(|key| !key.is_empty()).ok_or_else(|| {
            let place = match location {
                FieldLocation::Header(name) => format!("missing header {name}"),
                FieldLocation::Pointer(pointer) => format!("no value at {pointer} in the body"),
            };
            InvalidMessage::MissingKey(format!("{place}: this source takes the idempotency key from it"))
        })
    }

    fn find(&self, part: &FieldLocation) -> Result<Option<String>, InvalidMessage> {
        match part {
            FieldLocation::Header(name) => Ok(self.header(name)?.map(str::to_owned)),
            FieldLocation::Pointer(pointer) => match &self.json {
                Some(Ok(json)) => text_at(json, pointer),
                Some(Err(error)) => Err(InvalidMessage::Malformed(format!(
                    "the body of {} bytes is not JSON ({error}): this source reads {pointer} from it",
                    self.received.body.len()
                ))),
                None => Ok(None),
            },
        }
    }

    /// The value of a header. Repeated equal values count as one.
    fn header(&self, name: &str) -> Result<Option<&str>, InvalidHeader> {
        if self.received.headers.unreadable.iter().any(|unreadable| unreadable.eq_ignore_ascii_case(name)) {
            return Err(InvalidHeader(format!("the header {name} is not UTF-8: send UTF-8")));
        }
        let mut values = self.received.headers.headers.get_all(name);
        let first = values.next();
        // Proxies may repeat a header. Different values would make the key depend on their order.
        match values.any(|value| Some(value) != first) {
            true => Err(InvalidHeader(format!("the header {name} has several different values: send one"))),
            false => Ok(first),
        }
    }

    /// The key that the sender has chosen for a request.
    fn sent_key(&self) -> Result<Option<String>, InvalidMessage> {
        for name in ["Idempotency-Key", "webhook-id"] {
            if let Some(key) =
                self.header(name).map_err(InvalidHeader::into_bad_key)?.filter(|key| !key.is_empty())
            {
                return Ok(Some(key.to_owned()));
            }
        }
        Ok(None)
    }

    /// The key of a CloudEvent. Its id is unique for its source only.
    fn event_key(&self) -> Result<Option<String>, InvalidMessage> {
        let attribute = |name| self.cloud_event(name).map_err(InvalidHeader::into_bad_key);
        let (id, source) = (attribute("id")?.filter(|id| !id.is_empty()), attribute("source")?);
        // Escaped, so that the first space is the one between source and id.
        Ok(id
            .zip(source)
            .map(|(id, source)| format!("{} {id}", source.replace('%', "%25").replace(' ', "%20"))))
    }

    /// The key at the usual location of HTTP clients, webhooks and CloudEvents.
    fn usual_key(&self) -> Result<Option<String>, InvalidMessage> {
        // A header is an explicit choice of the sender, so it wins over the id of an event.
        if let Some(key) = self.sent_key()? {
            return Ok(Some(key));
        }
        match &self.json {
            Some(Err(error)) if self.is_structured() => Err(not_an_event(&self.received.body, error)),
            _ => self.event_key(),
        }
    }

    /// The error text for a message without a key at any usual location.
    fn no_usual_key(&self) -> String {
        let has = |name| matches!(self.cloud_event(name), Ok(Some(value)) if !value.is_empty());
        let (in_body, at) = (self.is_structured(), if self.is_structured() { "" } else { "ce-" });
        let missing = match (has("id"), has("source")) {
            (true, false) => "source",
            (false, true) => "id",
            (false, false) if in_body => "id and source",
            _ => {
                return "no idempotency key: send the header Idempotency-Key or webhook-id, or a CloudEvent, or configure \
                        key_header or key_pointer for this source"
                    .to_owned();
            }
        };
        format!("the CloudEvent has no {at}{missing}: its id and source together are the idempotency key")
    }

    fn is_structured(&self) -> bool {
        is_structured(&self.received.headers.headers)
    }

    /// An attribute of a CloudEvent, in structured or binary mode.
    fn cloud_event(&self, attribute: &str) -> Result<Option<String>, InvalidHeader> {
        if self.is_structured() {
            let json = self.json.as_ref().and_then(|json| json.as_ref().ok());
            let found = json.and_then(|json| json.get(attribute)?.as_str());
            return Ok(found.map(str::to_owned));
        }
        Ok(self.header(&format!("ce-{attribute}"))?.map(str::to_owned))
    }
}

/// The error of a header that is not UTF-8 or has several values.
#[derive(Debug)]
struct InvalidHeader(String);

impl InvalidHeader {
    /// The error of a header that should be the key. No other location is tried instead.
    fn into_bad_key(self) -> InvalidMessage {
        InvalidMessage::BadKey(self.0)
    }
}

impl From<InvalidHeader> for InvalidMessage {
    fn from(InvalidHeader(message): InvalidHeader) -> Self {
        Self::Malformed(message)
    }
}

/// Whether the body is a CloudEvent in structured mode.
fn is_structured(headers: &Headers) -> bool {
    headers
        .get("content-type")
        // A prefix, because a parameter such as the charset may follow.
        .is_some_and(|media| media.trim_start().starts_with("application/cloudevents+json"))
}

fn parse(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

/// A string or a 64-bit integer. Other numbers are rounded, so two messages could get the same key.
pub fn text_at(json: &Value, pointer: &str) -> Result<Option<String>, InvalidMessage> {
    match json.pointer(pointer) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Number(number)) if !number.is_f64() => Ok(Some(number.to_string())),
        Some(value) => Err(InvalidMessage::Malformed(format!(
            "the value at {pointer} is {}: send a string or a 64-bit integer",
            type_name(value)
        ))),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number without an exact 64-bit form",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn due_at(text: &str) -> Result<SystemTime, InvalidMessage> {
    utc::parse_rfc3339(text).ok_or_else(|| {
        InvalidMessage::Malformed(format!(
            "invalid {DUE_HEADER} {text:?}: write RFC 3339, for example 2026-01-31T12:00:00Z"
        ))
    })
}

fn not_an_event(body: &[u8], error: &str) -> InvalidMessage {
    let bytes = body.len();
    InvalidMessage::Malformed(format!(
        "the body of {bytes} bytes is declared as a CloudEvent, but is not JSON ({error})"
    ))
}

/// A CloudEvent in structured mode.
#[derive(Deserialize)]
struct StructuredEvent<'a> {
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    data_base64: Option<String>,
    datacontenttype: Option<String>,
    #[serde(flatten)]
    attributes: serde_json::Map<String, Value>,
}

/// The message with the data of its event as its body, and the attributes in its headers. Other messages stay as they are.
fn unpacked(mut received: ReceivedMessage) -> Result<ReceivedMessage, InvalidMessage> {
    if !is_structured(&received.headers.headers) {
        return Ok(received);
    }
    let event: StructuredEvent<'_> = serde_json::from_slice(&received.body)
        .map_err(|error| not_an_event(&received.body, &error.to_string()))?;
    let headers = &mut received.headers.headers;
    for (name, value) in &event.attributes {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Null => continue,
            other => other.to_string(),
        };
        headers.set(format!("ce-{name}"), text);
    }
    headers.set("content-type", event.datacontenttype.unwrap_or_else(|| "application/json".to_owned()));
    let body = match (event.data, event.data_base64) {
        // Its own bytes: a number keeps all its digits.
        (Some(data), _) => data.get().as_bytes().to_vec(),
        (None, Some(text)) => BASE64.decode(text).map_err(|error| {
            InvalidMessage::Malformed(format!("data_base64 of the CloudEvent is not base64 ({error})"))
        })?,
        (None, None) => Vec::new(),
    };
    Ok(ReceivedMessage { body, ..received })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in pairs {
            headers.append(*name, *value);
        }
        headers
    }

    fn take(source: &SourceRules, pairs: &[(&str, &str)], body: &str) -> Result<Envelope, InvalidMessage> {
        source.request(headers(pairs), body.into())
    }

    fn key_of(source: &SourceRules, pairs: &[(&str, &str)], body: &str) -> String {
        let envelope = take(source, pairs, body).unwrap();
        String::from_utf8(envelope.key().unwrap().as_bytes().to_vec()).unwrap()
    }

    const STRUCTURED: (&str, &str) = ("Content-Type", "application/cloudevents+json; charset=utf-8");
    const EVENT: &str =
        r#"{"specversion":"1.0","id":"e-1","source":"/shop","type":"paid","time":"2026-01-31T12:00:00Z"}"#;

    #[test]
    fn the_key_is_at_the_usual_location_of_clients_webhooks_and_events() {
        let shop = SourceRules::new("shop");
        assert_eq!(key_of(&shop, &[("idempotency-key", " a "), ("webhook-id", "b")], ""), "shop/ a ");
        assert_eq!(key_of(&shop, &[("idempotency-key", ""), ("webhook-id", "b")], ""), "shop/b");
        assert_eq!(key_of(&shop, &[("ce-id", "e-1"), ("ce-source", "/shop")], ""), "shop//shop e-1");
        assert_eq!(key_of(&shop, &[STRUCTURED], EVENT), "shop//shop e-1");
        let spaced = |source: &str, id: &str| key_of(&shop, &[("ce-id", id), ("ce-source", source)], "");
        assert_ne!(spaced("a", "b 1"), spaced("a b", "1"));
        assert_ne!(spaced("a%20b", "1"), spaced("a b", "1"));
        for (pairs, body, problem) in [
            (&[][..], "{}", "send the header Idempotency-Key"),
            (&[("ce-id", "1")], "", "has no ce-source"),
            (&[("ce-source", "/shop")], "", "has no ce-id"),
            (&[STRUCTURED], r#"{"id":"e-1"}"#, "has no source"),
            (&[STRUCTURED], "{}", "has no id and source"),
        ] {
            let refused = take(&shop, pairs, body).unwrap_err();
            assert!(matches!(refused, InvalidMessage::MissingKey(_)), "{pairs:?}");
            assert!(refused.to_string().contains(problem), "{refused}");
        }
        let cut_off = take(&shop, &[STRUCTURED], &EVENT[..20]).unwrap_err();
        assert!(matches!(cut_off, InvalidMessage::Malformed(_)), "{cut_off}");
        assert!(
            cut_off.to_string().contains("the body of 20 bytes is declared as a CloudEvent"),
            "{cut_off}"
        );
    }

    /// A fallback to another key would merge two messages, or split one.
    #[test]
    fn an_unreadable_header_has_no_fallback() {
        let request = |unreadable: &str| ReceivedHeaders {
            headers: headers(&[("idempotency-key", "1"), ("webhook-id", "2"), ("x-id", "3")]),
            unreadable: vec![unreadable.to_owned()],
        };
        let shop = SourceRules::new("shop");
        let refused = |source: &SourceRules, unreadable| source.request(request(unreadable), Vec::new());
        let error = refused(&shop, "idempotency-key").unwrap_err();
        assert!(
            matches!(&error, InvalidMessage::BadKey(text) if text.contains("Idempotency-Key")),
            "{error}"
        );
        refused(&shop, "webhook-id").unwrap();
        refused(&shop, "x-other").unwrap();
        let by_header = |part: &str| Some(FieldLocation::Header(part.to_owned()));
        let keyed = SourceRules { key: by_header("X-Id"), ..shop.clone() };
        assert!(matches!(refused(&keyed, "x-id"), Err(InvalidMessage::BadKey(_))));
        refused(&keyed, "idempotency-key").unwrap();
        let of_kind = SourceRules { kind: by_header("x-kind"), ..shop.clone() };
        let ordered = SourceRules { order: by_header("x-customer"), ..shop.clone() };
        for (source, unreadable) in
            [(&shop, "ce-type"), (&of_kind, "x-kind"), (&ordered, "x-customer"), (&shop, "oncebox-due-at")]
        {
            let error = refused(source, unreadable).unwrap_err();
            assert!(matches!(error, InvalidMessage::Malformed(_)), "{error}");
        }
        refused(&of_kind, "ce-type").unwrap();
        let event = ReceivedHeaders {
            headers: headers(&[("ce-source", "/shop")]),
            unreadable: vec!["ce-id".to_owned()],
        };
        assert!(matches!(shop.request(event, Vec::new()), Err(InvalidMessage::BadKey(_))));
    }

    #[test]
    fn several_values_are_refused() {
        let shop = SourceRules::new("shop");
        let twice = [("idempotency-key", "1"), ("Idempotency-Key", "2"), ("webhook-id", "3")];
        assert!(matches!(take(&shop, &twice, ""), Err(InvalidMessage::BadKey(_))));
        let the_same = [("idempotency-key", "1"), ("idempotency-key", "1")];
        assert_eq!(key_of(&shop, &the_same, ""), "shop/1");
        let kinds = [("idempotency-key", "1"), ("ce-type", "a"), ("ce-type", "b")];
        assert!(matches!(take(&shop, &kinds, ""), Err(InvalidMessage::Malformed(_))));
    }

    #[test]
    fn a_configured_location_of_the_key_is_the_only_one() {
        let by = |part| SourceRules { key: Some(part), ..SourceRules::new("s") };
        let header = by(FieldLocation::Header("X-Id".into()));
        assert_eq!(key_of(&header, &[("x-id", "7"), ("idempotency-key", "other")], ""), "s/7");
        assert!(matches!(
            take(&header, &[("idempotency-key", "other")], ""),
            Err(InvalidMessage::MissingKey(_))
        ));
        let pointer = by(FieldLocation::Pointer("/data/id".into()));
        assert_eq!(key_of(&pointer, &[], r#"{"data":{"id":"x"}}"#), "s/x");
        assert_eq!(
            key_of(&pointer, &[], r#"{"data":{"id":18446744073709551615}}"#),
            "s/18446744073709551615"
        );
        for body in [r#"{"data":{}}"#, r#"{"data":{"id":null}}"#, r#"{"data":{"id":""}}"#] {
            assert!(matches!(take(&pointer, &[], body), Err(InvalidMessage::MissingKey(_))), "{body}");
        }
        for body in ["{", "", r#"{"data":{"id":18446744073709551616}}"#, r#"{"data":{"id":{}}}"#] {
            assert!(matches!(take(&pointer, &[], body), Err(InvalidMessage::Malformed(_))), "{body}");
        }
    }

    #[test]
    fn the_kind_is_from_the_message_or_its_source() {
        let key = ("idempotency-key", "1");
        let shop = SourceRules { default_kind: "paid".into(), ..SourceRules::new("shop") };
        assert_eq!(take(&shop, &[key], "").unwrap().kind(), "paid");
        assert_eq!(take(&shop, &[key, ("ce-type", "refunded")], "").unwrap().kind(), "refunded");
        assert_eq!(take(&shop, &[STRUCTURED], EVENT).unwrap().kind(), "paid");
        let by_body = SourceRules { kind: Some(FieldLocation::Pointer("/type".into())), ..shop };
        assert_eq!(take(&by_body, &[key], r#"{"type":"x"}"#).unwrap().kind(), "x");
        assert_eq!(take(&by_body, &[key], "{}").unwrap().kind(), "paid");
    }

    #[test]
    fn order_and_times_are_read() {
        let by_customer = SourceRules {
            order: Some(FieldLocation::Pointer("/customer".into())),
            ..SourceRules::new("shop")
        };
        let envelope = take(&by_customer, &[("webhook-id", "1")], r#"{"customer":7}"#).unwrap();
        assert_eq!(envelope.order_by(), Some(&Key::from("shop/7")));
        assert_eq!(envelope.headers().get(SOURCE_HEADER), Some("shop"));
        let event = take(&SourceRules::new("shop"), &[STRUCTURED], EVENT).unwrap();
        assert_eq!(event.occurred_at().map(utc::rfc3339).as_deref(), Some("2026-01-31T12:00:00.000Z"));
        let later = take(
            &SourceRules::new("shop"),
            &[("webhook-id", "1"), ("oncebox-due-at", "2026-02-01T00:00:00Z")],
            "",
        );
        assert_eq!(later.unwrap().due_at().map(utc::rfc3339).as_deref(), Some("2026-02-01T00:00:00.000Z"));
        let soon = take(&SourceRules::new("shop"), &[("webhook-id", "1"), ("oncebox-due-at", "soon")], "");
        assert!(matches!(soon, Err(InvalidMessage::Malformed(_))));
    }

    #[test]
    fn sources_have_key_spaces_of_their_own() {
        let key = [("idempotency-key", "b/1")];
        assert_ne!(key_of(&SourceRules::new("a"), &key, ""), key_of(&SourceRules::new("a.b"), &key, ""));
    }

    fn received(pairs: &[(&str, &str)], body: &str) -> ReceivedMessage {
        ReceivedMessage { headers: headers(pairs).into(), ..ReceivedMessage::new(body) }
    }

    #[test]
    fn a_delivery_leaves_the_key_to_the_message_unless_its_location_is_configured() {
        let shop = SourceRules::new("shop");
        let by_id = || ReceivedMessage { message_id: Some("m-1".into()), ..received(&[], "") };
        let fallback = |message: ReceivedMessage| {
            let envelope = shop.delivery(message).unwrap();
            assert_eq!(envelope.key, None);
            envelope.fallback_key.map(|key| key.to_string())
        };
        assert_eq!(fallback(by_id()).as_deref(), Some("shop/m-1"));
        assert_eq!(fallback(received(&[], "")), None);
        let with = |pairs: &[(&str, &str)]| ReceivedMessage { headers: headers(pairs).into(), ..by_id() };
        let event = [("ce-id", "e-1"), ("ce-source", "/a")];
        assert_eq!(fallback(with(&event)).as_deref(), Some("shop/m-1"));
        assert_eq!(fallback(received(&event, "")).as_deref(), Some("shop//a e-1"));
        assert_eq!(fallback(with(&[("Idempotency-Key", "i-1")])).as_deref(), Some("shop/i-1"));
        // The same in each source.
        assert_eq!(
            fallback(with(&[("oncebox-id", "o-1"), ("Idempotency-Key", "i-1")])).as_deref(),
            Some("o-1")
        );

        let keyed = shop.clone().key(FieldLocation::header("x-id"));
        let envelope = keyed.delivery(with(&[("X-Id", "7")])).unwrap();
        assert_eq!((envelope.key, envelope.fallback_key), (Some(Key::from("shop/7")), None));
        assert!(matches!(keyed.delivery(by_id()), Err(InvalidMessage::MissingKey(_))));
    }

    #[test]
    fn a_delivery_has_the_fields_of_its_protocol() {
        let message = || ReceivedMessage {
            kind: Some("paid".into()),
            order_by: Some("c-1".into()),
            attempt: Some(3),
            occurred_at: Some(SystemTime::UNIX_EPOCH),
            ..received(&[], r#"{"type":"x","customer":7}"#)
        };
        let shop = SourceRules::new("shop").default_kind("other");
        let envelope = shop.delivery(message()).unwrap();
        assert_eq!((envelope.kind(), envelope.attempt()), ("paid", 3));
        assert_eq!(envelope.order_by(), Some(&Key::from("shop/c-1")));
        assert_eq!(envelope.occurred_at(), Some(SystemTime::UNIX_EPOCH));
        assert_eq!(envelope.headers().get(SOURCE_HEADER), Some("shop"));
        assert_eq!(shop.delivery(ReceivedMessage::new("")).unwrap().kind(), "other");
        let own = shop.kind(FieldLocation::pointer("/type")).order_by(FieldLocation::pointer("/customer"));
        let envelope = own.delivery(message()).unwrap();
        assert_eq!((envelope.kind(), envelope.order_by()), ("x", Some(&Key::from("shop/7"))));
    }

    #[test]
    fn a_structured_event_is_delivered_like_a_binary_one() {
        let shop = SourceRules::new("shop");
        let event = |data: &str| {
            let body = format!(
                r#"{{"specversion":"1.0","id":"e-1","source":"/a","type":"paid","time":"2026-01-31T12:00:00Z","num":7,{data}}}"#
            );
            shop.delivery(received(&[STRUCTURED], &body))
        };
        let json = event(r#""data":{"n":18446744073709551616}"#).unwrap();
        assert_eq!(json.body(), br#"{"n":18446744073709551616}"#);
        assert_eq!((json.kind(), json.fallback_key.as_ref()), ("paid", Some(&Key::from("shop//a e-1"))));
        assert_eq!(json.occurred_at().map(utc::rfc3339).as_deref(), Some("2026-01-31T12:00:00.000Z"));
        let read = |name| json.headers().get(name);
        assert_eq!(
            (read("ce-id"), read("ce-num"), read("content-type")),
            (Some("e-1"), Some("7"), Some("application/json"))
        );
        let bytes = event(r#""datacontenttype":"image/png","data_base64":"AAH/""#).unwrap();
        assert_eq!(
            (bytes.body(), bytes.headers().get("content-type")),
            (&[0, 1, 255][..], Some("image/png"))
        );
        assert_eq!(event(r#""subject":"s""#).unwrap().body(), b"");
        for refused in [event(r#""data_base64":"?""#), shop.delivery(received(&[STRUCTURED], "{"))] {
            assert!(matches!(refused, Err(InvalidMessage::Malformed(_))), "{refused:?}");
        }
    }
}
