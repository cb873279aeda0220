//! Copies of a message: for another attempt, for the dead queue, and back from there. Pure.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use oncebox_core::source::ReceivedMessage;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::message::{ATTEMPT, Delivered, EXCHANGE, ROUTING_KEY};

/// The headers of a dead message: the last error, and the number of attempts.
pub(crate) const ERROR: &str = "oncebox-error";
pub(crate) const ATTEMPTS: &str = "oncebox-attempts";
/// The kind of the message that reports a dead one.
pub(crate) const FAULT: &str = "oncebox.fault";

/// The maximum number of bytes of an error text. All headers of a message are in one frame of 128 KiB.
const MAX_ERROR_BYTES: usize = 4096;

const PERSISTENT: u8 = 2;

type HeaderMap = BTreeMap<ShortString, AMQPValue>;

/// The properties of a copy for this attempt.
pub(crate) fn for_attempt(message: &Delivered, attempt: u32) -> BasicProperties {
    let mut headers = kept_headers(message);
    set(&mut headers, ATTEMPT, AMQPValue::LongUInt(attempt));
    copy(message, headers)
}

/// The properties of a copy in the dead queue.
pub(crate) fn dead(message: &Delivered, attempts: u32, error: &str) -> BasicProperties {
    let mut headers = kept_headers(message);
    set(&mut headers, ATTEMPTS, AMQPValue::LongUInt(attempts));
    set(&mut headers, ERROR, text(shortened(error)));
    copy(message, headers)
}

/// The properties of a copy that returns from the dead queue, with all its attempts.
pub(crate) fn redriven(message: &Delivered) -> BasicProperties {
    let mut headers = kept_headers(message);
    for name in [ATTEMPTS, ERROR] {
        headers.retain(|other, _| other.as_str() != name);
    }
    copy(message, headers)
}

/// The message that reports a dead one: properties and body.
pub(crate) fn fault(
    message: &Delivered,
    source: &str,
    attempts: u32,
    error: &str,
) -> (BasicProperties, Vec<u8>) {
    let received: ReceivedMessage = message.to_message(attempts, 0);
    let headers: Map<String, Value> =
        received.headers.headers.iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let (exchange, routing_key) = message.origin();
    let body = json!({
        "error": error,
        "attempts": attempts,
        "source": source,
        "message_id": received.message_id,
        "kind": received.kind,
        "exchange": exchange,
        "routing_key": routing_key,
        "headers": headers,
        "body_base64": BASE64.encode(&message.body),
    });
    // The same for each copy of the report, so that a receiver recognises it. Without an id of the message there is none.
    let id = received.headers.headers.get("oncebox-id").map(str::to_owned).or(received.message_id);
    let id = id.map(|id| format!("fault:{source}:{id}")).filter(|id| id.len() <= 255);
    let id = id.unwrap_or_else(|| Uuid::now_v7().to_string());
    let mut own = HeaderMap::new();
    set(&mut own, "oncebox-id", text(&id));
    set(&mut own, "oncebox-kind", text(FAULT));
    let properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_delivery_mode(PERSISTENT)
        .with_type(FAULT.into())
        .with_headers(FieldTable::from(own));
    let properties = match ShortString::try_new(id) {
        Ok(id) => properties.with_message_id(id),
        Err(_) => properties,
    };
    (properties, body.to_string().into_bytes())
}

/// The headers that a copy keeps, and where the message was published first.
fn kept_headers(message: &Delivered) -> HeaderMap {
    let mut headers =
        message.properties.headers().as_ref().map(FieldTable::inner).cloned().unwrap_or_default();
    headers.retain(|name, _| !is_dropped(name.as_str()));
    let (exchange, routing_key) = message.origin();
    let (exchange, routing_key) = (text(&exchange), text(&routing_key));
    set(&mut headers, EXCHANGE, exchange);
    set(&mut headers, ROUTING_KEY, routing_key);
    headers
}

/// Headers of one delivery, and those by which the broker would send a copy to more queues.
fn is_dropped(name: &str) -> bool {
    matches!(name, "CC" | "BCC" | "x-delivery-count" | "x-acquired-count" | "x-death")
        || name == ATTEMPT
        || name.starts_with("x-first-death-")
        || name.starts_with("x-last-death-")
}

/// The properties of a message with other headers. A copy is persistent. It has no expiry, or it would vanish from the dead queue.
/// It has no user, because the broker accepts only the user of the connection.
fn copy(message: &Delivered, headers: HeaderMap) -> BasicProperties {
    let from = &message.properties;
    let mut to =
        BasicProperties::default().with_headers(FieldTable::from(headers)).with_delivery_mode(PERSISTENT);
    if let Some(value) = from.content_type() {
        to = to.with_content_type(value.clone());
    }
    if let Some(value) = from.content_encoding() {
        to = to.with_content_encoding(value.clone());
    }
    if let Some(value) = from.priority() {
        to = to.with_priority(*value);
    }
    if let Some(value) = from.correlation_id() {
        to = to.with_correlation_id(value.clone());
    }
    if let Some(value) = from.reply_to() {
        to = to.with_reply_to(value.clone());
    }
    if let Some(value) = from.message_id() {
        to = to.with_message_id(value.clone());
    }
    if let Some(value) = from.timestamp() {
        to = to.with_timestamp(*value);
    }
    if let Some(value) = from.kind() {
        to = to.with_type(value.clone());
    }
    if let Some(value) = from.app_id() {
        to = to.with_app_id(value.clone());
    }
    to
}

fn set(headers: &mut HeaderMap, name: &'static str, value: AMQPValue) {
    headers.insert(name.into(), value);
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn shortened(error: &str) -> &str {
    let end = (0..=MAX_ERROR_BYTES.min(error.len())).rev().find(|end| error.is_char_boundary(*end));
    error.get(..end.unwrap_or(0)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::integer;

    fn message() -> Delivered {
        let mut headers = HeaderMap::new();
        set(&mut headers, "tenant", text("a"));
        set(&mut headers, "CC", AMQPValue::FieldArray(vec![text("elsewhere")].into()));
        set(&mut headers, "x-delivery-count", AMQPValue::LongLongInt(4));
        set(&mut headers, "x-death", AMQPValue::FieldArray(vec![].into()));
        set(&mut headers, "x-first-death-queue", text("q"));
        Delivered {
            exchange: "events".into(),
            routing_key: "order.paid".into(),
            properties: BasicProperties::default()
                .with_headers(FieldTable::from(headers))
                .with_message_id("m-1".into())
                .with_type("paid".into())
                .with_expiration("5000".into())
                .with_user_id("other".into())
                .with_delivery_mode(1),
            body: b"\xff".to_vec(),
        }
    }

    fn names(properties: &BasicProperties) -> Vec<&str> {
        properties.headers().as_ref().unwrap().inner().keys().map(ShortString::as_str).collect()
    }

    fn again(properties: BasicProperties) -> Delivered {
        Delivered { exchange: "".into(), routing_key: "q".into(), properties, body: Vec::new() }
    }

    #[test]
    fn a_copy_keeps_the_message_and_loses_what_belongs_to_one_delivery() {
        let copy = for_attempt(&message(), 2);
        assert_eq!(names(&copy), ["oncebox-attempt", "oncebox-exchange", "oncebox-routing-key", "tenant"]);
        assert_eq!(copy.message_id(), message().properties.message_id());
        assert_eq!(copy.kind(), message().properties.kind());
        assert_eq!((copy.expiration(), copy.user_id(), copy.delivery_mode()), (&None, &None, &Some(2)));
        let next = again(copy);
        assert_eq!((next.attempt(), next.origin()), (2, ("events".into(), "order.paid".into())));
        assert_eq!(again(for_attempt(&next, 3)).origin(), ("events".into(), "order.paid".into()));
    }

    #[test]
    fn a_dead_message_says_why_and_a_redriven_one_starts_again() {
        let properties = dead(&again(for_attempt(&message(), 9)), 9, "no such customer");
        assert_eq!(integer(&properties, ATTEMPTS), Some(9));
        assert_eq!(
            names(&properties),
            ["oncebox-attempts", "oncebox-error", "oncebox-exchange", "oncebox-routing-key", "tenant"]
        );
        let back = redriven(&again(properties));
        assert_eq!(names(&back), ["oncebox-exchange", "oncebox-routing-key", "tenant"]);
        assert_eq!(again(back).origin(), ("events".into(), "order.paid".into()));
    }

    #[test]
    fn a_fault_has_the_whole_message() {
        let (properties, body) = fault(&message(), "orders", 11, "no such customer");
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(properties.kind().as_ref().map(ShortString::as_str), Some(FAULT));
        assert_eq!(properties.message_id().as_ref().map(ShortString::as_str), Some("fault:orders:m-1"));
        for (pointer, value) in [
            ("/error", json!("no such customer")),
            ("/attempts", json!(11)),
            ("/source", json!("orders")),
            ("/message_id", json!("m-1")),
            ("/headers/tenant", json!("a")),
            ("/exchange", json!("events")),
            ("/body_base64", json!("/w==")),
        ] {
            assert_eq!(body.pointer(pointer), Some(&value), "{pointer}");
        }
    }

    #[test]
    fn a_long_error_is_shortened_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = format!("a{}", "é".repeat(MAX_ERROR_BYTES));
        assert_eq!(shortened(&long).len(), MAX_ERROR_BYTES - 1);
    }
}
