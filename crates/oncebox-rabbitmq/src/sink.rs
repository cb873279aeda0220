//! An exchange as a sink.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::SystemTime;

use jiff::Timestamp;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use oncebox_core::{Error, Failure, Key, Outgoing, Sink, Verdict};

use crate::link::Link;
use crate::message::sent_name;
use crate::publisher::{Post, Posted, Publisher};
use crate::topology::{check_exchange, short};

const PERSISTENT: u8 = 2;

/// RabbitMQ's default limit, `max_message_size`. The broker closes the channel for a larger one.
const MAX_BODY_BYTES: usize = 128 * 1024 * 1024;

/// Headers by which the broker would route a message to more queues, or close the channel.
const NOT_SENT: [&str; 2] = ["CC", "BCC"];

/// Publishes the messages of a relay to an exchange, persistent and with confirms.
///
/// | property or header | value |
/// |---|---|
/// | `message_id`, `oncebox-id` | the id of the message, the same for every copy |
/// | `type`, `oncebox-kind` | its kind |
/// | `oncebox-key`, `oncebox-order-by` | as published |
/// | `oncebox-relay`, `oncebox-replay` | the name of the relay; `true` for a replay, otherwise absent |
/// | `timestamp` | the time of the event |
/// | `cloudEvents:id`, `:type`, `:source`, `:time`, `:specversion` | the same as a CloudEvent in binary mode |
/// | `content_type`, `content_encoding`, `correlation_id` | the headers `content-type`, `content-encoding` and `correlation-id` |
///
/// The stored headers of the message come with them, except for `CC` and `BCC`. `ce-…` is written as `cloudEvents:…`. No publisher can
/// set the headers above.
///
/// | response | verdict |
/// |---|---|
/// | confirmed | confirmed |
/// | returned, because no queue receives it | refused |
/// | `basic.nack`, for example because a queue is full | refused |
/// | none, or a lost connection | unknown: the relay waits, and sends it again; no attempt is counted |
///
/// A routing key of more than 255 bytes, or a header with such a name, is refused for good.
#[derive(Clone, Debug)]
#[must_use]
pub struct RabbitSink {
    publisher: Arc<Publisher>,
    exchange: String,
    routing_key: Vec<Part>,
    is_mandatory: bool,
    source: Option<String>,
}

/// A part of a routing key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Kind,
    Key,
    OrderBy,
}

impl RabbitSink {
    pub(crate) fn new(publisher: Arc<Publisher>, exchange: String) -> Self {
        Self { publisher, exchange, routing_key: vec![Part::Kind], is_mandatory: true, source: None }
    }

    /// The routing key of each message. It may have `{kind}`, `{key}` and `{order_by}` in it; bytes that are not UTF-8 are
    /// percent-encoded. Default: `{kind}`.
    pub fn routing_key(mut self, template: impl AsRef<str>) -> Result<Self, Error> {
        self.routing_key = parts(template.as_ref())?;
        Ok(self)
    }

    /// Whether a message that reaches no queue is refused; otherwise it is confirmed and gone. Default: true.
    pub fn mandatory(mut self, is_mandatory: bool) -> Self {
        self.is_mandatory = is_mandatory;
        self
    }

    /// The `cloudEvents:source` of each message, a URI or a path. Default: `/relays/` and the name of the relay.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Connects, and checks that the exchange exists. An error says what keeps the sink from working.
    pub async fn check(&self) -> Result<(), Error> {
        let settings = self.publisher.settings();
        let link = Link::open(settings, &format!("check of {}", self.exchange)).await?;
        match self.exchange.is_empty() {
            // The default exchange always exists.
            true => Ok(()),
            false => {
                let doing = format!("checking the exchange {:?}", self.exchange);
                check_exchange(&link, settings, &doing, &self.exchange).await
            }
        }
    }

    /// The message in the form of the broker. An error is one of the message: another attempt has it too.
    fn post<'m>(&self, message: &'m Outgoing) -> Result<Post<'m>, Error> {
        if message.body.len() > MAX_BODY_BYTES {
            let text =
                format!("the body has {} bytes: RabbitMQ takes at most {MAX_BODY_BYTES}", message.body.len());
            return Err(Error::configuration(text));
        }
        Ok(Post {
            exchange: short(&self.exchange)?,
            routing_key: limited("routing key", rendered(&self.routing_key, message))?,
            is_mandatory: self.is_mandatory,
            properties: self.properties(message)?,
            body: Cow::Borrowed(&message.body),
        })
    }

    fn properties(&self, message: &Outgoing) -> Result<BasicProperties, Error> {
        let id = message.id.to_string();
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_message_id(limited("id", id.clone())?)
            .with_type(limited("kind", message.kind.clone())?);
        let mut headers = BTreeMap::new();
        for (name, value) in message.headers.iter() {
            match name.to_ascii_lowercase().as_str() {
                "content-type" => properties = properties.with_content_type(limited(name, value.to_owned())?),
                "content-encoding" => {
                    properties = properties.with_content_encoding(limited(name, value.to_owned())?);
                }
                "correlation-id" => {
                    properties = properties.with_correlation_id(limited(name, value.to_owned())?);
                }
                lower if lower.starts_with("oncebox-") || NOT_SENT.contains(&name) => {}
                _ => {
                    let name = limited("name of a header", sent_name(name).into_owned())?;
                    // The first value of a name counts, as everywhere.
                    headers.entry(name).or_insert_with(|| text(value.as_bytes()));
                }
            }
        }
        let source = match &self.source {
            Some(source) => Cow::Borrowed(source.as_str()),
            None => {
                Cow::Owned(format!("/relays/{}", percent_encoded(message.relay.as_bytes(), is_unreserved)))
            }
        };
        let mut set = |name: &'static str, value: &[u8]| _ = headers.insert(name.into(), text(value));
        set("oncebox-id", id.as_bytes());
        set("oncebox-kind", message.kind.as_bytes());
        set("oncebox-key", message.key.as_bytes());
        if let Some(order_by) = &message.order_by {
            set("oncebox-order-by", order_by.as_bytes());
        }
        set("oncebox-relay", message.relay.as_bytes());
        if message.is_replay {
            set("oncebox-replay", b"true");
        }
        set("cloudEvents:specversion", b"1.0");
        set("cloudEvents:id", id.as_bytes());
        set("cloudEvents:type", message.kind.as_bytes());
        set("cloudEvents:source", source.as_bytes());
        if let Some(time) = message.occurred_at {
            if let Ok(time) = Timestamp::try_from(time) {
                set("cloudEvents:time", time.to_string().as_bytes());
            }
            if let Ok(since) = time.duration_since(SystemTime::UNIX_EPOCH) {
                properties = properties.with_timestamp(since.as_secs());
            }
        }
        Ok(properties.with_headers(FieldTable::from(headers)))
    }
}

impl Sink for RabbitSink {
    const KEEPS_ORDER: bool = false;

    const WAVE: usize = 1000;

    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        let posts: Vec<Result<Post<'_>, Error>> = wave.iter().map(|message| self.post(message)).collect();
        let mut invalid = Vec::new();
        let mut valid = Vec::with_capacity(posts.len());
        for (n, post) in posts.into_iter().enumerate() {
            match post {
                Ok(post) => valid.push(post),
                Err(error) => invalid.push((n, error)),
            }
        }
        let posted = self.publisher.publish(&valid).await;
        let mut verdicts: Vec<Verdict> =
            valid.iter().zip(&posted).map(|(post, posted)| verdict(post, posted)).collect();
        // In ascending order, so that each is at its place when the next one comes.
        for (n, error) in invalid {
            verdicts.insert(n, Verdict::Refused(Failure::permanent(error)));
        }
        verdicts
    }
}

fn verdict(post: &Post<'_>, posted: &Posted) -> Verdict {
    match (posted, posted.failure(post)) {
        (_, None) => Verdict::Confirmed,
        (Posted::Unknown(_), Some(error)) => Verdict::Unknown(error.into()),
        (_, Some(error)) => Verdict::Refused(error.into()),
    }
}

/// The parts of a template.
fn parts(template: &str) -> Result<Vec<Part>, Error> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some((text, behind)) = rest.split_once('{') {
        let invalid = || {
            Error::configuration(format!(
                "invalid routing key {template:?}: use text with {{kind}}, {{key}} and {{order_by}}"
            ))
        };
        let (name, behind) = behind.split_once('}').ok_or_else(invalid)?;
        if !text.is_empty() {
            parts.push(Part::Text(text.to_owned()));
        }
        parts.push(match name {
            "kind" => Part::Kind,
            "key" => Part::Key,
            "order_by" => Part::OrderBy,
            _ => return Err(invalid()),
        });
        rest = behind;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    Ok(parts)
}

fn rendered(parts: &[Part], message: &Outgoing) -> String {
    let mut routing_key = String::new();
    for part in parts {
        match part {
            Part::Text(text) => routing_key.push_str(text),
            Part::Kind => routing_key.push_str(&message.kind),
            Part::Key => routing_key.push_str(&key_text(&message.key)),
            Part::OrderBy => {
                routing_key.push_str(&message.order_by.as_ref().map(key_text).unwrap_or_default());
            }
        }
    }
    routing_key
}

fn key_text(key: &Key) -> Cow<'_, str> {
    match std::str::from_utf8(key.as_bytes()) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(percent_encoded(key.as_bytes(), |byte| (b' '..=b'~').contains(&byte))),
    }
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
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

fn text(value: &[u8]) -> AMQPValue {
    AMQPValue::LongString(value.to_vec().into())
}

fn limited(what: &str, text: String) -> Result<ShortString, Error> {
    let bytes = text.len();
    ShortString::try_new(text).map_err(|_| {
        Error::configuration(format!("the {what} has {bytes} bytes: RabbitMQ takes at most 255"))
    })
}
