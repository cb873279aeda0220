//! What a source delivers.

use std::time::SystemTime;

use crate::{Headers, Key};

/// A delivery: a message, and the receipt that settles it.
#[derive(Clone, Debug)]
pub struct Received<R> {
    /// Identifies this delivery at its source.
    pub receipt: R,
    /// The message.
    pub message: ReceivedMessage,
}

/// A message as a source delivers it, before the [rules](crate::source::SourceRules) of the source are applied.
///
/// ```
/// use oncebox_core::source::ReceivedMessage;
///
/// let mut message = ReceivedMessage::new(r#"{"order_id":"o-1"}"#);
/// message.kind = Some("order.paid".to_owned());
/// message.message_id = Some("8f14".to_owned());
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ReceivedMessage {
    /// The encoded message.
    pub body: Vec<u8>,
    /// The headers. Attributes of a CloudEvent in binary mode have the names that they have over HTTP: `ce-id`, `ce-type`.
    pub headers: ReceivedHeaders,
    /// The kind, if the protocol has a field for it.
    pub kind: Option<String>,
    /// The id that the publisher gave the message, if the protocol has a field for it.
    pub message_id: Option<String>,
    /// The ordering key, if the protocol has a field for it.
    pub order_by: Option<Key>,
    /// The time of the event, if the protocol has a field for it.
    pub occurred_at: Option<SystemTime>,
    /// The number of this delivery, counted from 1, if the broker reports it.
    pub attempt: Option<u32>,
    /// The number of earlier deliveries that ended without a settlement, if the broker counts them: those of processes that crashed or
    /// lost their connection, also before the process has read the message.
    pub abandoned: u32,
}

impl ReceivedMessage {
    /// A message with this body, and nothing else.
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }
}

/// The headers of a received message.
#[derive(Clone, Debug, Default)]
pub struct ReceivedHeaders {
    /// The headers whose value is UTF-8.
    pub headers: Headers,
    /// The names of the others. A rule that needs one of them fails; it does not fall back to another location.
    pub unreadable: Vec<String>,
}

impl From<Headers> for ReceivedHeaders {
    fn from(headers: Headers) -> Self {
        Self { headers, unreadable: Vec::new() }
    }
}
