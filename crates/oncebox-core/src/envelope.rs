//! The envelope: a message on its way, before anybody has looked inside.

use std::time::{Instant, SystemTime};

use crate::message::Codec;
use crate::{Error, ErrorKind, Fingerprint, Headers, Key, Message};

/// A message on its way: what a source hands over for one delivery.
#[derive(Clone, Debug)]
pub struct Envelope {
    pub(crate) kind: String,
    pub(crate) key: Option<Key>,
    pub(crate) body: Vec<u8>,
    pub(crate) headers: Headers,
    pub(crate) order_by: Option<Key>,
    pub(crate) occurred_at: Option<SystemTime>,
    pub(crate) due_at: Option<SystemTime>,
    pub(crate) attempt: u32,
    pub(crate) arrived: Instant,
}

impl Envelope {
    /// An envelope from what came over the wire.
    pub fn new(kind: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self {
            kind: kind.into(),
            key: None,
            body: body.into(),
            headers: Headers::new(),
            order_by: None,
            occurred_at: None,
            due_at: None,
            attempt: 1,
            arrived: Instant::now(),
        }
    }

    /// An envelope around a typed message, with the message's own key and ordering key.
    pub fn of<M: Message>(message: &M) -> Result<Self, Error> {
        let body = M::Codec::encode(message).map_err(|error| {
            Error::new(ErrorKind::Codec, format!("a message of kind `{}` cannot be encoded", M::KIND))
                .with_source(error)
        })?;
        let key = match message.key() {
            Some(key) => Some(key),
            None => message.content_key().transpose()?,
        };
        Ok(Self { key, order_by: message.order_by(), ..Self::new(M::KIND, body) })
    }

    /// Says what identifies the message. Wins over what the message itself says.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Key>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.append(name, value);
        self
    }

    /// Replaces all headers.
    #[must_use]
    pub fn with_headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }

    /// Says which source delivered it and under which message id. That id is the key of last resort; ids are
    /// unique per source only, so the source's name is part of that key.
    #[must_use]
    pub fn delivered_by(mut self, source: impl Into<String>, message_id: impl Into<String>) -> Self {
        self.headers.set(Headers::SOURCE, source);
        self.headers.set(Headers::MESSAGE_ID, message_id);
        self
    }

    /// Says which delivery of this message it is, counted from 1, where the broker knows.
    #[must_use]
    pub fn with_attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt.max(1);
        self
    }

    /// Says which messages it must stay in order with. Carried along; inline, the order is that of the calls.
    #[must_use]
    pub fn with_order_by(mut self, order_by: impl Into<Key>) -> Self {
        self.order_by = Some(order_by.into());
        self
    }

    /// Says when the thing that the message tells of happened.
    #[must_use]
    pub fn with_occurred_at(mut self, at: SystemTime) -> Self {
        self.occurred_at = Some(at);
        self
    }

    /// Says when the message is to be handled, if not at once. Carried along; inline, it is handled at once.
    #[must_use]
    pub fn with_due_at(mut self, at: SystemTime) -> Self {
        self.due_at = Some(at);
        self
    }

    /// The name of the message's type.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The key that the envelope itself carries, if any.
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// The encoded message.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// What travels beside the body.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// The ordering key.
    pub fn order_by(&self) -> Option<&Key> {
        self.order_by.as_ref()
    }

    /// When the thing that the message tells of happened.
    pub fn occurred_at(&self) -> Option<SystemTime> {
        self.occurred_at
    }

    /// When the message is to be handled, if not at once.
    pub fn due_at(&self) -> Option<SystemTime> {
        self.due_at
    }

    /// Which delivery of this message it is, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The fingerprint of the body.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.body)
    }
}
