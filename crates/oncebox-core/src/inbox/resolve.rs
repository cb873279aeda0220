//! Finds the key of a message.

use std::borrow::Cow;

use crate::handler::Prepared;
use crate::key_part::{Piece, compose};
use crate::{Envelope, Headers, Key};

/// Returns the first key that is not empty, in this order: the selector, the envelope, the message's own fields or
/// content, the source's message id.
pub(crate) fn resolve(prepared: &Prepared, envelope: &Envelope) -> Option<Key> {
    [
        prepared.selected.clone(),
        envelope.key().cloned(),
        prepared.own.clone(),
        envelope.fallback_key.clone(),
        delivery_key(envelope.headers()),
    ]
    .into_iter()
    .flatten()
    .find(|key| !key.is_empty())
}

/// The same as [`resolve`], also for a message that could not be decoded.
pub(crate) fn resolve_stored(prepared: Option<&Prepared>, envelope: &Envelope) -> Option<Key> {
    match prepared {
        Some(prepared) => resolve(prepared, envelope),
        None => [envelope.key().cloned(), envelope.fallback_key.clone(), delivery_key(envelope.headers())]
            .into_iter()
            .flatten()
            .find(|key| !key.is_empty()),
    }
}

/// The key from the source's message id. Such ids are unique per source only, so the source is part of the key.
fn delivery_key(headers: &Headers) -> Option<Key> {
    let id = headers.get(Headers::MESSAGE_ID).filter(|id| !id.is_empty())?;
    let part = |text: &str| Piece::Part(Cow::Owned(text.as_bytes().to_vec()));
    // Parts are escaped, so a `:` inside a source cannot make two different pairs equal.
    compose(&[part(headers.get(Headers::SOURCE)?), Piece::Literal(":"), part(id)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(selected: Option<&str>, own: Option<&str>) -> Prepared {
        Prepared {
            message: Box::new(()),
            selected: selected.map(Key::from),
            own: own.map(Key::from),
            order_by: None,
        }
    }

    #[test]
    fn selector_then_envelope_then_message_then_delivery() {
        let bare = || Envelope::new("k", "");
        let delivered = || bare().delivered_by("rabbit:1", "m-1");
        let table = [
            (prepared(Some("s"), Some("o")), delivered().with_key("e"), Some("s")),
            (prepared(None, Some("o")), delivered().with_key("e"), Some("e")),
            (prepared(None, Some("o")), delivered(), Some("o")),
            (prepared(None, None), delivered(), Some("rabbit%3A1:m-1")),
            (prepared(None, None), bare(), None),
            (prepared(Some(""), Some("")), bare().with_key(""), None),
            (prepared(None, None), bare().delivered_by("rabbit", ""), None),
        ];
        for (prepared, envelope, expected) in table {
            assert_eq!(resolve(&prepared, &envelope), expected.map(Key::from));
        }
    }
}
