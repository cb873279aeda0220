//! The envelope: an encoded message with its headers.

use std::time::{Instant, SystemTime};

use crate::message::Codec;
use crate::{Error, ErrorKind, Fingerprint, Headers, Key, Message, MessageId};

/// An encoded message with its kind, key and headers, as a source delivers it.
///
/// Make it when the delivery arrives: waiting times count from there.
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
    // An `Instant`: a waiting time must not jump with the system clock.
    pub(crate) arrived: Instant,
    pub(crate) message_id: Option<MessageId>,
    /// The key of a message that has none of its own: what its source knows it by.
    pub(crate) fallback_key: Option<Key>,
}

impl Envelope {
    /// Creates an envelope from a kind and an encoded body.
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
            message_id: None,
            fallback_key: None,
        }
    }

    /// Encodes a typed message, with the message's own key and ordering key.
    pub fn of<M: Message>(message: &M) -> Result<Self, Error> {
        let body = M::Codec::encode(message).map_err(|error| {
            Error::new(ErrorKind::Codec, format!("cannot encode the message of kind {:?}", M::KIND))
                .with_source(error)
        })?;
        // Copied into the envelope: receivers with another version of the type use this key unchanged.
        let key = match message.key() {
            Some(key) => Some(key),
            None => message.content_key().transpose()?,
        };
        Ok(Self { key, order_by: message.order_by(), ..Self::new(M::KIND, body) })
    }

    /// Sets the message's key. It takes precedence over the message's own key.
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

    /// Sets the source and its delivery id: together they are the key of last resort.
    ///
    /// Delivery ids are unique per source only, so the source's name is part of that key.
    #[must_use]
    pub fn delivered_by(mut self, source: impl Into<String>, message_id: impl Into<String>) -> Self {
        // Not `append`: a sender's own headers of these names must not decide the key.
        self.headers.set(Headers::SOURCE, source);
        self.headers.set(Headers::MESSAGE_ID, message_id);
        self
    }

    /// Sets the number of this delivery, counted from 1, if the broker reports it.
    #[must_use]
    pub fn with_attempt(mut self, attempt: u32) -> Self {
        // Some sources count redeliveries, and report 0 for the first delivery.
        self.attempt = attempt.max(1);
        self
    }

    /// The same message, delivered once more.
    pub(crate) fn next_attempt(mut self) -> Self {
        self.attempt = self.attempt.saturating_add(1);
        self
    }

    /// Sets the ordering key. It takes precedence over the message's own ordering key.
    ///
    /// In the log, messages with equal ordering keys share a lane, and [ordered](crate::HandlerOptions::ordered) handlers take
    /// them in the order in which they were accepted. Handlers that [`process`](crate::Inbox::process) runs inline take them in
    /// the order of the calls.
    #[must_use]
    pub fn with_order_by(mut self, order_by: impl Into<Key>) -> Self {
        self.order_by = Some(order_by.into());
        self
    }

    /// Sets the time of the event that the message reports.
    #[must_use]
    pub fn with_occurred_at(mut self, at: SystemTime) -> Self {
        self.occurred_at = Some(at);
        self
    }

    /// Sets the due time: handlers do not take the message from the log before it.
    ///
    /// [`accept`](crate::Inbox::accept) stores the message at once. A handler that [`process`](crate::Inbox::process) runs inline
    /// ignores the due time.
    #[must_use]
    pub fn with_due_at(mut self, at: SystemTime) -> Self {
        self.due_at = Some(at);
        self
    }

    /// The message's kind: the name of its type.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The id of a published message; `None` for another one.
    pub fn message_id(&self) -> Option<MessageId> {
        self.message_id
    }

    /// The key that is set on the envelope, if any.
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// The encoded message.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The headers.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// The ordering key that is set on the envelope, if any.
    pub fn order_by(&self) -> Option<&Key> {
        self.order_by.as_ref()
    }

    /// The time of the event that the message reports, if known.
    pub fn occurred_at(&self) -> Option<SystemTime> {
        self.occurred_at
    }

    /// The due time, if the message is to be handled later.
    pub fn due_at(&self) -> Option<SystemTime> {
        self.due_at
    }

    /// The number of this delivery, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The fingerprint of the body.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.body)
    }
}
