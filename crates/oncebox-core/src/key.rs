//! The key: the identity of a message over all its deliveries.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The identity of a message: bytes that are compared exactly.
///
/// Deliveries with equal keys are copies of one message; keys that differ in a single byte are two messages. Keys are never
/// trimmed, case-folded, normalised or cut.
///
/// ```
/// use oncebox_core::Key;
/// assert_ne!(Key::from("Order-1"), Key::from("order-1"));
/// assert_eq!(Key::from(42_u64), Key::from("42"));
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
// Shared: envelope and deliveries hold the same key, which may have 64 KiB, and clone it often.
pub struct Key(Arc<[u8]>);

impl Key {
    /// The maximum length of a key, in bytes. A longer key is rejected.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// Creates a key from any bytes.
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        Self(bytes.as_ref().into())
    }

    /// The key's bytes, unchanged.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether the key has no bytes. An empty key counts as missing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The form in which stores keep and compare the key.
    pub fn stored(&self) -> StoredKey {
        if mutant!("case_insensitive_key") {
            return StoredKey::of(&Self(self.0.to_ascii_lowercase().into()));
        }
        StoredKey::of(self)
    }
}

impl fmt::Display for Key {
    /// Prints text if the key is UTF-8, else `0x` and hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(&self.0) {
            Ok(text) => f.write_str(text),
            Err(_) => {
                f.write_str("0x")?;
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?})", self.to_string())
    }
}

macro_rules! key_from_bytes {
    ($($from:ty),*) => {$(
        impl From<$from> for Key {
            fn from(value: $from) -> Self {
                Self::new(value)
            }
        }
    )*};
}
key_from_bytes!(&str, String, &String, &[u8], Vec<u8>);

impl<const N: usize> From<&[u8; N]> for Key {
    fn from(value: &[u8; N]) -> Self {
        Self::new(value)
    }
}

impl From<Uuid> for Key {
    /// The UUID as text: hyphenated, lower case. So a UUID and its usual text are the same key.
    fn from(value: Uuid) -> Self {
        Self::new(value.hyphenated().to_string())
    }
}

macro_rules! key_from_integer {
    ($($from:ty),*) => {$(
        impl From<$from> for Key {
            /// The decimal digits.
            fn from(value: $from) -> Self {
                Self::new(value.to_string())
            }
        }
    )*};
}
key_from_integer!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

/// A key as stores keep it: a tag byte, then the key itself or the digest of a long key.
///
/// Because of the tag a digest never equals a literal key. Because of the digest an index entry has a maximum size.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoredKey {
    bytes: Vec<u8>,
    original: Option<Key>,
}

impl StoredKey {
    /// The maximum length of a key that is stored literally, in bytes.
    // Handler, kind and key share one index entry, which PostgreSQL limits to about 2,700 bytes.
    pub const LITERAL_MAX_BYTES: usize = 512;
    // In users' databases: other tags would make every stored key a new one.
    const LITERAL: u8 = 0;
    const DIGEST: u8 = 1;

    fn of(key: &Key) -> Self {
        if key.as_bytes().len() <= Self::LITERAL_MAX_BYTES {
            let mut bytes = Vec::with_capacity(1 + key.as_bytes().len());
            bytes.push(Self::LITERAL);
            bytes.extend_from_slice(key.as_bytes());
            return Self { bytes, original: None };
        }
        let mut bytes = Vec::with_capacity(33);
        bytes.push(Self::DIGEST);
        bytes.extend_from_slice(&Sha256::digest(key.as_bytes()));
        Self { bytes, original: Some(key.clone()) }
    }

    /// The bytes that are compared, and that the unique index holds.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The whole key, if `as_bytes` is only its digest; stores keep it so that operators can read it.
    pub fn original(&self) -> Option<&Key> {
        self.original.as_ref()
    }

    /// The key of a store's row; `None` if Oncebox did not write the row.
    pub fn read(bytes: &[u8], original: Option<&[u8]>) -> Option<Key> {
        match (bytes.split_first()?, original) {
            ((&Self::LITERAL, key), _) => Some(Key::new(key)),
            // A digest cannot be turned back into its key, so the row keeps both.
            ((&Self::DIGEST, _), Some(original)) => Some(Key::new(original)),
            _ => None,
        }
    }
}

impl fmt::Debug for StoredKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoredKey({:?})", Key::new(&self.bytes).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_key_reads_back_as_the_same_key() {
        for bytes in [&b""[..], b"a", b" a ", &[0, 255, 0], &[b'x'; 512], &[b'x'; 513], &[7; 70_000]] {
            let key = Key::new(bytes);
            let stored = key.stored();
            let original = stored.original().map(Key::as_bytes);
            assert_eq!(StoredKey::read(stored.as_bytes(), original), Some(key));
        }
    }

    #[test]
    fn a_digest_never_equals_a_literal_key() {
        let long = Key::new([b'x'; 600]);
        let forged = Key::new(&long.stored().as_bytes()[1..]);
        assert_ne!(long.stored().as_bytes(), forged.stored().as_bytes());
        assert_eq!(long.stored().as_bytes().len(), 33);
    }

    #[test]
    fn a_row_that_oncebox_did_not_write_has_no_key() {
        assert_eq!(StoredKey::read(b"", None), None);
        assert_eq!(StoredKey::read(&[9, 1], None), None);
        assert_eq!(StoredKey::read(&[1; 33], None), None);
    }

    #[test]
    fn keys_print_as_text_or_hexadecimal() {
        assert_eq!(Key::from("évt").to_string(), "évt");
        assert_eq!(Key::new([0xff, 0x00]).to_string(), "0xff00");
    }
}
