//! A handler's first parameter: a typed message, or the envelope.

use crate::message::Codec;
use crate::{BoxError, Envelope, Error, Key, Message};

/// A handler's first parameter: a [`Message`], or an [`Envelope`] if the handler decodes the body itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a handler's message",
    note = "add `#[derive(Message)]` and `#[message(kind = \"...\")]` to it, or take an `Envelope` and register with \
            `on_raw`"
)]
pub trait Input: Sized + Send + Sync + 'static {
    /// The kind, if the type determines it.
    const KIND: Option<&'static str>;

    /// Decodes the parameter from an envelope.
    fn decode(envelope: &Envelope) -> Result<Self, BoxError>;

    /// The key from the message's own fields or content, if it has one.
    fn own_key(&self) -> Result<Option<Key>, Error>;

    /// The ordering key from the message's own fields, if it has one.
    fn own_order(&self) -> Option<Key>;
}

impl<M: Message> Input for M {
    const KIND: Option<&'static str> = Some(M::KIND);

    fn decode(envelope: &Envelope) -> Result<Self, BoxError> {
        M::Codec::decode(envelope.body())
    }

    fn own_key(&self) -> Result<Option<Key>, Error> {
        match self.key() {
            Some(key) => Ok(Some(key)),
            None => self.content_key().transpose(),
        }
    }

    fn own_order(&self) -> Option<Key> {
        self.order_by()
    }
}

impl Input for Envelope {
    const KIND: Option<&'static str> = None;

    fn decode(envelope: &Envelope) -> Result<Self, BoxError> {
        Ok(envelope.clone())
    }

    fn own_key(&self) -> Result<Option<Key>, Error> {
        // The fields are not decoded. The key of the envelope itself is found elsewhere, for all types of input.
        Ok(None)
    }

    fn own_order(&self) -> Option<Key> {
        self.order_by.clone()
    }
}
