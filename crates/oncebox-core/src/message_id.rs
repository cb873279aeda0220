//! The id of a published message.

use std::fmt;

use uuid::Uuid;

/// The id of a published message: a UUID of version 7 that is unique in the world and never changes. Every copy of the message
/// has it, on every way to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Uuid);

impl MessageId {
    /// A new id.
    pub(crate) fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// The id with these bytes, as a store has kept it.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The id of this text, as it prints; `None` if the text is no UUID.
    pub fn from_text(text: &str) -> Option<Self> {
        Uuid::try_parse(text).ok().map(Self)
    }

    /// The bytes of the id.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl Default for MessageId {
    /// A new id.
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_uuid_of_version_7_and_later_ones_are_greater() {
        let (first, second) = (MessageId::new(), MessageId::new());
        assert!(first < second);
        assert_eq!(first.to_string().as_bytes()[14], b'7');
        assert_eq!(MessageId::from_bytes(*first.as_bytes()), first);
    }
}
