//! Sources of messages: the key, the kind and the ordering key of a message, by the rules of its source. Pure.

use std::fmt;
use std::time::SystemTime;

use jiff::Timestamp;
use oncebox::{Envelope, Headers};
pub(crate) use oncebox_http::delivery::is_left_out;
use serde_json::Value;

/// The header that names the source of a stored message.
pub(crate) const SOURCE_HEADER: &str = "Oncebox-Source";
/// The header with the time from which on handlers run the message.
const DUE_HEADER: &str = "Oncebox-Due-At";

/// The error text for a header that is not stored, without the remedy.
pub(crate) fn not_stored(name: &str) -> String {
    format!("the header {name} is not stored, because it is secret or belongs to the connection")
}

/// The error text of a JSON pointer, on the command line too.
pub(crate) fn invalid_pointer(pointer: &str) -> String {
    format!("invalid JSON pointer {pointer:?}: start it with '/', for example /data/id")
}

/// The rules of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MessageSource {
    pub(crate) name: String,
    /// The location of the key; by default that of HTTP clients, webhooks and CloudEvents.
    pub(crate) key: Option<FieldLocation>,
    /// The location of the kind; by default a CloudEvent's type.
    pub(crate) kind: Option<FieldLocation>,
    /// The kind of messages without one.
    pub(crate) default_kind: String,
    /// The location of the ordering key.
    pub(crate) order: Option<FieldLocation>,
}

/// The location of a value in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FieldLocation {
    /// The value of a header.
    Header(String),
    /// A string or an integer in a JSON body, by its JSON pointer.
    Pointer(String),
}

/// The headers of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestHeaders {
    /// The headers whose value is UTF-8.
    pub(crate) headers: Headers,
    /// The names of the others. A rule that needs one of them fails; it does not fall back to another location.
    pub(crate) unreadable: Vec<String>,
}

impl From<Headers> for RequestHeaders {
    fn from(headers: Headers) -> Self {
        Self { headers, unreadable: Vec::new() }
    }
}

/// Why a message is refused. The sender can correct it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvalidMessage {
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

impl MessageSource {
    /// A source without rules of its own.
    pub(crate) fn named(name: &str) -> Self {
        Self { name: name.to_owned(), key: None, kind: None, default_kind: name.to_owned(), order: None }
    }

    /// The message with this body and these headers.
    pub(crate) fn envelope(
        &self,
        headers: impl Into<RequestHeaders>,
        body: Vec<u8>,
    ) -> Result<Envelope, InvalidMessage> {
        let request = headers.into();
        // Parsed only if a rule needs it: most bodies are stored unread.
        let json = self.reads_body(&request.headers).then(|| parse(&body));
        let parts = IncomingMessage { request: &request, body: &body, json };
        let key = self.key(&parts)?;
        let kind = self.kind(&parts)?;
        let order = self.order.as_ref().map(|part| parts.find(part)).transpose()?.flatten();
        // For information only, so an unreadable time is ignored.
        let occurred_at = parts.cloud_event("time").ok().flatten();
        let occurred_at = occurred_at.and_then(|time| time.parse::<Timestamp>().ok());
        // An unreadable due time is an error: without it the message would run too early.
        let due_at = parts.header(DUE_HEADER)?.map(due_at).transpose()?;
        let mut headers = request.headers;
        // Replaces a header of the same name from the sender, who must not choose the source that handlers see.
        headers.set(SOURCE_HEADER, self.name.as_str());
        // Each source has its own key space: no source has a slash in its name.
        let mut envelope = Envelope::new(kind, body).with_key(self.stored_key(&key)).with_headers(headers);
        if let Some(order) = order {
            // With the source: equal numbers of two sources are different customers.
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

    /// A key of this source, as it is stored.
    pub(crate) fn stored_key(&self, key: &str) -> String {
        format!("{}/{key}", self.name)
    }

    /// Whether a rule reads the body.
    fn reads_body(&self, headers: &Headers) -> bool {
        let parts = [&self.key, &self.kind, &self.order];
        parts.into_iter().flatten().any(|part| matches!(part, FieldLocation::Pointer(_)))
            || is_structured(headers)
    }

    fn key(&self, parts: &IncomingMessage<'_>) -> Result<String, InvalidMessage> {
        let found = match &self.key {
            Some(FieldLocation::Header(name)) => {
                parts.header(name).map_err(InvalidHeader::into_bad_key)?.map(str::to_owned)
            }
            Some(pointer) => parts.find(pointer)?,
            None => parts.usual_key()?,
        };
        // An empty key would make all messages duplicates of the first.
        let found = found.filter(|key| !key.is_empty());
        found.ok_or_else(|| {
            InvalidMessage::MissingKey(match &self.key {
                Some(FieldLocation::Header(name)) => {
                    format!("missing header {name}: this source takes the idempotency key from it")
                }
                Some(FieldLocation::Pointer(pointer)) => {
                    format!(
                        "no value at {pointer} in the body: this source takes the idempotency key from it"
                    )
                }
                None => parts.no_usual_key(),
            })
        })
    }

    fn kind(&self, parts: &IncomingMessage<'_>) -> Result<String, InvalidMessage> {
        let found = match &self.kind {
            Some(part) => parts.find(part)?,
            None => parts.cloud_event("type")?,
        };
        Ok(found.filter(|kind| !kind.is_empty()).unwrap_or_else(|| self.default_kind.clone()))
    }
}

/// A message whose values are looked up.
struct IncomingMessage<'a> {
    request: &'a RequestHeaders,
    body: &'a [u8],
    /// The parsed body, if a rule reads it.
    json: Option<Result<Value, String>>,
}

impl IncomingMessage<'_> {
    fn find(&self, part: &FieldLocation) -> Result<Option<String>, InvalidMessage> {
        match part {
            FieldLocation::Header(name) => Ok(self.header(name)?.map(str::to_owned)),
            FieldLocation::Pointer(pointer) => match &self.json {
                Some(Ok(json)) => text_at(json, pointer),
                Some(Err(error)) => Err(InvalidMessage::Malformed(format!(
                    "the body of {} bytes is not JSON ({error}): this source reads {pointer} from it",
                    self.body.len()
                ))),
                None => Ok(None),
            },
        }
    }

    /// The value of a header. Repeated equal values count as one.
    fn header(&self, name: &str) -> Result<Option<&str>, InvalidHeader> {
        if self.request.unreadable.iter().any(|unreadable| unreadable.eq_ignore_ascii_case(name)) {
            return Err(InvalidHeader(format!("the header {name} is not UTF-8: send UTF-8")));
        }
        let mut values = self.request.headers.get_all(name);
        let first = values.next();
        // Proxies may repeat a header. Different values would make the key depend on their order.
        match values.any(|value| Some(value) != first) {
            true => Err(InvalidHeader(format!("the header {name} has several different values: send one"))),
            false => Ok(first),
        }
    }

    /// The key at the usual location of HTTP clients, webhooks and CloudEvents. The id of an event is unique for its source only.
    fn usual_key(&self) -> Result<Option<String>, InvalidMessage> {
        // A header is an explicit choice of the sender, so it wins over the id of an event.
        for name in ["Idempotency-Key", "webhook-id"] {
            if let Some(key) =
                self.header(name).map_err(InvalidHeader::into_bad_key)?.filter(|key| !key.is_empty())
            {
                return Ok(Some(key.to_owned()));
            }
        }
        if let (true, Some(Err(error))) = (self.is_structured(), &self.json) {
            let bytes = self.body.len();
            return Err(InvalidMessage::Malformed(format!(
                "the body of {bytes} bytes is declared as a CloudEvent, but is not JSON ({error})"
            )));
        }
        let attribute = |name| self.cloud_event(name).map_err(InvalidHeader::into_bad_key);
        let (id, source) = (attribute("id")?.filter(|id| !id.is_empty()), attribute("source")?);
        // Escaped, so that the first space is the one between source and id.
        Ok(id
            .zip(source)
            .map(|(id, source)| format!("{} {id}", source.replace('%', "%25").replace(' ', "%20"))))
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
        is_structured(&self.request.headers)
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
pub(crate) fn text_at(json: &Value, pointer: &str) -> Result<Option<String>, InvalidMessage> {
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
    let time: Result<Timestamp, _> = text.parse();
    time.map(SystemTime::from).map_err(|_| {
        InvalidMessage::Malformed(format!(
            "invalid {DUE_HEADER} {text:?}: write RFC 3339, for example 2026-01-31T12:00:00Z"
        ))
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

    fn take(source: &MessageSource, pairs: &[(&str, &str)], body: &str) -> Result<Envelope, InvalidMessage> {
        source.envelope(headers(pairs), body.into())
    }

    fn key_of(source: &MessageSource, pairs: &[(&str, &str)], body: &str) -> String {
        let envelope = take(source, pairs, body).unwrap();
        String::from_utf8(envelope.key().unwrap().as_bytes().to_vec()).unwrap()
    }

    const STRUCTURED: (&str, &str) = ("Content-Type", "application/cloudevents+json; charset=utf-8");
    const EVENT: &str =
        r#"{"specversion":"1.0","id":"e-1","source":"/shop","type":"paid","time":"2026-01-31T12:00:00Z"}"#;

    #[test]
    fn the_key_is_at_the_usual_location_of_clients_webhooks_and_events() {
        let shop = MessageSource::named("shop");
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
        let request = |unreadable: &str| RequestHeaders {
            headers: headers(&[("idempotency-key", "1"), ("webhook-id", "2"), ("x-id", "3")]),
            unreadable: vec![unreadable.to_owned()],
        };
        let shop = MessageSource::named("shop");
        let refused = |source: &MessageSource, unreadable| source.envelope(request(unreadable), Vec::new());
        let error = refused(&shop, "idempotency-key").unwrap_err();
        assert!(
            matches!(&error, InvalidMessage::BadKey(text) if text.contains("Idempotency-Key")),
            "{error}"
        );
        refused(&shop, "webhook-id").unwrap();
        refused(&shop, "x-other").unwrap();
        let by_header = |part: &str| Some(FieldLocation::Header(part.to_owned()));
        let keyed = MessageSource { key: by_header("X-Id"), ..shop.clone() };
        assert!(matches!(refused(&keyed, "x-id"), Err(InvalidMessage::BadKey(_))));
        refused(&keyed, "idempotency-key").unwrap();
        let of_kind = MessageSource { kind: by_header("x-kind"), ..shop.clone() };
        let ordered = MessageSource { order: by_header("x-customer"), ..shop.clone() };
        for (source, unreadable) in
            [(&shop, "ce-type"), (&of_kind, "x-kind"), (&ordered, "x-customer"), (&shop, "oncebox-due-at")]
        {
            let error = refused(source, unreadable).unwrap_err();
            assert!(matches!(error, InvalidMessage::Malformed(_)), "{error}");
        }
        refused(&of_kind, "ce-type").unwrap();
        let event = RequestHeaders {
            headers: headers(&[("ce-source", "/shop")]),
            unreadable: vec!["ce-id".to_owned()],
        };
        assert!(matches!(shop.envelope(event, Vec::new()), Err(InvalidMessage::BadKey(_))));
    }

    #[test]
    fn several_values_are_refused() {
        let shop = MessageSource::named("shop");
        let twice = [("idempotency-key", "1"), ("Idempotency-Key", "2"), ("webhook-id", "3")];
        assert!(matches!(take(&shop, &twice, ""), Err(InvalidMessage::BadKey(_))));
        let the_same = [("idempotency-key", "1"), ("idempotency-key", "1")];
        assert_eq!(key_of(&shop, &the_same, ""), "shop/1");
        let kinds = [("idempotency-key", "1"), ("ce-type", "a"), ("ce-type", "b")];
        assert!(matches!(take(&shop, &kinds, ""), Err(InvalidMessage::Malformed(_))));
    }

    #[test]
    fn a_configured_location_of_the_key_is_the_only_one() {
        let by = |part| MessageSource { key: Some(part), ..MessageSource::named("s") };
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
        let shop = MessageSource { default_kind: "paid".into(), ..MessageSource::named("shop") };
        assert_eq!(take(&shop, &[key], "").unwrap().kind(), "paid");
        assert_eq!(take(&shop, &[key, ("ce-type", "refunded")], "").unwrap().kind(), "refunded");
        assert_eq!(take(&shop, &[STRUCTURED], EVENT).unwrap().kind(), "paid");
        let by_body = MessageSource { kind: Some(FieldLocation::Pointer("/type".into())), ..shop };
        assert_eq!(take(&by_body, &[key], r#"{"type":"x"}"#).unwrap().kind(), "x");
        assert_eq!(take(&by_body, &[key], "{}").unwrap().kind(), "paid");
    }

    #[test]
    fn order_and_times_are_read() {
        let by_customer = MessageSource {
            order: Some(FieldLocation::Pointer("/customer".into())),
            ..MessageSource::named("shop")
        };
        let envelope = take(&by_customer, &[("webhook-id", "1")], r#"{"customer":7}"#).unwrap();
        assert_eq!(envelope.order_by(), Some(&Key::from("shop/7")));
        assert_eq!(envelope.headers().get(SOURCE_HEADER), Some("shop"));
        let event = take(&MessageSource::named("shop"), &[STRUCTURED], EVENT).unwrap();
        assert_eq!(
            event.occurred_at().map(crate::times::rfc3339).as_deref(),
            Some("2026-01-31T12:00:00.000Z")
        );
        let later = take(
            &MessageSource::named("shop"),
            &[("webhook-id", "1"), ("oncebox-due-at", "2026-02-01T00:00:00Z")],
            "",
        );
        assert_eq!(
            later.unwrap().due_at().map(crate::times::rfc3339).as_deref(),
            Some("2026-02-01T00:00:00.000Z")
        );
        let soon =
            take(&MessageSource::named("shop"), &[("webhook-id", "1"), ("oncebox-due-at", "soon")], "");
        assert!(matches!(soon, Err(InvalidMessage::Malformed(_))));
    }

    #[test]
    fn sources_have_key_spaces_of_their_own() {
        let key = [("idempotency-key", "b/1")];
        assert_ne!(
            key_of(&MessageSource::named("a"), &key, ""),
            key_of(&MessageSource::named("a.b"), &key, "")
        );
    }
}
