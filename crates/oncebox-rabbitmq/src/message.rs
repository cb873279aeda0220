//! A delivery as the message of a source: properties and headers in the names that all sources share. Pure.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use oncebox_core::Key;
use oncebox_core::source::{ReceivedHeaders, ReceivedMessage};

/// The header with the number of a delivery. Each retry increases it.
pub(crate) const ATTEMPT: &str = "oncebox-attempt";
/// The headers with the exchange and the routing key with which a message was published first.
pub(crate) const EXCHANGE: &str = "oncebox-exchange";
pub(crate) const ROUTING_KEY: &str = "oncebox-routing-key";
/// The number of abandoned deliveries, which a quorum queue counts.
const DELIVERY_COUNT: &str = "x-delivery-count";
/// What comes before the attributes of a CloudEvent, and how clients of JMS write it.
const CLOUD_EVENT: [&str; 2] = ["cloudEvents:", "cloudEvents_"];

/// A message as the broker has delivered it.
#[derive(Clone, Debug)]
pub(crate) struct Delivered {
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Vec<u8>,
}

impl Delivered {
    /// The number of this delivery by its header.
    pub(crate) fn attempt(&self) -> u32 {
        integer(&self.properties, ATTEMPT).unwrap_or(1).max(1)
    }

    /// The number of earlier deliveries that the broker has counted.
    pub(crate) fn delivery_count(&self) -> u32 {
        integer(&self.properties, DELIVERY_COUNT).unwrap_or(0)
    }

    /// The exchange and the routing key with which the message was published first.
    pub(crate) fn origin(&self) -> (Cow<'_, str>, Cow<'_, str>) {
        let header = |name| text_header(&self.properties, name);
        match (header(EXCHANGE), header(ROUTING_KEY)) {
            (Some(exchange), Some(routing_key)) => (exchange, routing_key),
            _ => (self.exchange.as_str().into(), self.routing_key.as_str().into()),
        }
    }

    /// The message, with its body. The numbers come from what the source knows of earlier deliveries.
    pub(crate) fn to_message(&self, attempt: u32, abandoned: u32) -> ReceivedMessage {
        let properties = &self.properties;
        let mut message = ReceivedMessage::new(self.body.clone());
        message.headers = headers(properties);
        let (exchange, routing_key) = self.origin();
        message.headers.headers.set("rabbitmq-exchange", exchange);
        message.headers.headers.set("rabbitmq-routing-key", routing_key);
        message.kind =
            text(properties.kind()).or_else(|| text_header(properties, "oncebox-kind").map(Cow::into_owned));
        message.message_id = text(properties.message_id());
        message.order_by = value(properties, "oncebox-order-by").and_then(bytes).map(Key::new);
        message.occurred_at = properties.timestamp().and_then(time);
        message.attempt = Some(attempt);
        message.abandoned = abandoned;
        message
    }
}

/// The headers of a message, and those properties that HTTP has as headers.
fn headers(properties: &BasicProperties) -> ReceivedHeaders {
    let mut received = ReceivedHeaders::default();
    for (name, value) in properties.headers().iter().flatten() {
        let name = received_name(name.as_str());
        match to_text(value) {
            Some(text) => received.headers.append(name, text),
            None => received.unreadable.push(name.into_owned()),
        }
    }
    for (name, property) in [
        ("content-type", properties.content_type()),
        ("content-encoding", properties.content_encoding()),
        ("correlation-id", properties.correlation_id()),
        ("reply-to", properties.reply_to()),
    ] {
        if let Some(property) = property {
            received.headers.set(name, property.as_str());
        }
    }
    received
}

/// The name of a header in a source: `ce-id` for `cloudEvents:id`.
fn received_name(name: &str) -> Cow<'_, str> {
    let attribute = CLOUD_EVENT.iter().find_map(|prefix| name.strip_prefix(prefix));
    attribute.map_or(Cow::Borrowed(name), |attribute| Cow::Owned(format!("ce-{attribute}")))
}

/// The name of a header in RabbitMQ: `cloudEvents:id` for `ce-id`.
pub(crate) fn sent_name(name: &str) -> Cow<'_, str> {
    let is_event = name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("ce-"));
    match name.get(3..).filter(|_| is_event) {
        Some(attribute) => Cow::Owned(format!("cloudEvents:{}", attribute.to_ascii_lowercase())),
        None => Cow::Borrowed(name),
    }
}

fn to_text(value: &AMQPValue) -> Option<String> {
    Some(match value {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok()?.to_owned(),
        AMQPValue::ShortString(text) => text.to_string(),
        AMQPValue::ByteArray(bytes) => std::str::from_utf8(bytes.as_slice()).ok()?.to_owned(),
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::Float(value) => value.to_string(),
        AMQPValue::Double(value) => value.to_string(),
        AMQPValue::Timestamp(seconds) => {
            Timestamp::from_second(i64::try_from(*seconds).ok()?).ok()?.to_string()
        }
        other => to_integer(other)?.to_string(),
    })
}

fn to_integer(value: &AMQPValue) -> Option<i64> {
    Some(match value {
        AMQPValue::ShortShortInt(value) => (*value).into(),
        AMQPValue::ShortShortUInt(value) => (*value).into(),
        AMQPValue::ShortInt(value) => (*value).into(),
        AMQPValue::ShortUInt(value) => (*value).into(),
        AMQPValue::LongInt(value) => (*value).into(),
        AMQPValue::LongUInt(value) => (*value).into(),
        AMQPValue::LongLongInt(value) => *value,
        _ => return None,
    })
}

fn bytes(value: &AMQPValue) -> Option<&[u8]> {
    match value {
        AMQPValue::LongString(text) => Some(text.as_bytes()),
        AMQPValue::ShortString(text) => Some(text.as_str().as_bytes()),
        AMQPValue::ByteArray(bytes) => Some(bytes.as_slice()),
        _ => None,
    }
}

fn text(property: &Option<ShortString>) -> Option<String> {
    property.as_ref().map(ToString::to_string)
}

fn time(seconds: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn value<'p>(properties: &'p BasicProperties, name: &str) -> Option<&'p AMQPValue> {
    properties.headers().as_ref().and_then(|headers: &FieldTable| headers.inner().get(name))
}

fn text_header<'p>(properties: &'p BasicProperties, name: &str) -> Option<Cow<'p, str>> {
    value(properties, name).and_then(bytes).and_then(|text| std::str::from_utf8(text).ok()).map(Cow::Borrowed)
}

/// A header that is a number, whatever its type.
pub(crate) fn integer(properties: &BasicProperties, name: &str) -> Option<u32> {
    let value = value(properties, name)?;
    let number = to_integer(value).or_else(|| std::str::from_utf8(bytes(value)?).ok()?.parse().ok())?;
    u32::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(headers: &[(&str, AMQPValue)]) -> Delivered {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), value.clone());
        }
        Delivered {
            exchange: "events".into(),
            routing_key: "order.paid".into(),
            properties: BasicProperties::default()
                .with_headers(table)
                .with_content_type("application/json".into())
                .with_message_id("m-1".into())
                .with_type("paid".into())
                .with_timestamp(7),
            body: b"{}".to_vec(),
        }
    }

    fn string(text: &str) -> AMQPValue {
        AMQPValue::LongString(text.into())
    }

    #[test]
    fn properties_are_fields_and_headers_keep_their_values_as_text() {
        let message = delivered(&[
            ("cloudEvents:id", string("e-1")),
            ("cloudEvents_source", string("/shop")),
            ("cloudEvents:time", AMQPValue::Timestamp(0)),
            ("Tenant", string("a")),
            ("count", AMQPValue::LongLongInt(-3)),
            ("flag", AMQPValue::Boolean(true)),
            ("raw", AMQPValue::LongString(vec![0xff].into())),
            ("x-death", AMQPValue::FieldArray(vec![].into())),
            ("oncebox-order-by", AMQPValue::LongString(vec![0xff, 1].into())),
        ])
        .to_message(2, 1);
        let header = |name| message.headers.headers.get(name);
        for (name, value) in [
            ("ce-id", "e-1"),
            ("ce-source", "/shop"),
            ("ce-time", "1970-01-01T00:00:00Z"),
            ("tenant", "a"),
            ("count", "-3"),
            ("flag", "true"),
            ("content-type", "application/json"),
            ("rabbitmq-exchange", "events"),
            ("rabbitmq-routing-key", "order.paid"),
        ] {
            assert_eq!(header(name), Some(value), "{name}");
        }
        assert_eq!(message.headers.unreadable, ["oncebox-order-by", "raw", "x-death"]);
        assert_eq!(message.order_by.as_ref().map(Key::as_bytes), Some(&[0xff, 1][..]));
        assert_eq!(
            (message.kind.as_deref(), message.message_id.as_deref(), message.attempt, message.abandoned),
            (Some("paid"), Some("m-1"), Some(2), 1)
        );
        assert_eq!(message.occurred_at, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(7)));
    }

    #[test]
    fn numbers_of_deliveries_are_read_whatever_their_type() {
        for value in [AMQPValue::LongLongInt(3), AMQPValue::ShortShortUInt(3), string("3")] {
            assert_eq!(delivered(&[(ATTEMPT, value.clone())]).attempt(), 3);
            assert_eq!(delivered(&[(DELIVERY_COUNT, value)]).delivery_count(), 3);
        }
        for value in [AMQPValue::LongLongInt(-1), AMQPValue::Void, string("many"), AMQPValue::LongInt(0)] {
            assert_eq!(delivered(&[(ATTEMPT, value)]).attempt(), 1);
        }
        assert_eq!(delivered(&[]).delivery_count(), 0);
    }

    #[test]
    fn a_copy_remembers_where_its_message_was_published() {
        let copy = delivered(&[(EXCHANGE, string("")), (ROUTING_KEY, string("first"))]);
        assert_eq!(copy.origin(), ("".into(), "first".into()));
        assert_eq!(delivered(&[(EXCHANGE, string("x"))]).origin(), ("events".into(), "order.paid".into()));
    }

    #[test]
    fn attributes_of_events_have_a_prefix_in_rabbitmq() {
        for (name, sent) in
            [("ce-id", "cloudEvents:id"), ("CE-Subject", "cloudEvents:subject"), ("cent", "cent")]
        {
            assert_eq!(sent_name(name), sent);
        }
    }
}
