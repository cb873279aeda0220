//! Values that can be part of a key, and how several of them form one key.

use std::borrow::Cow;
use std::num::{NonZeroI32, NonZeroI64, NonZeroU32, NonZeroU64};
use std::rc::Rc;
use std::sync::Arc;

use uuid::Uuid;

use crate::Key;

/// A value that can be a key or a part of a key: text, bytes, integers, UUIDs.
///
/// `None` of an `Option` is a missing key, not an empty one. Floats are no key parts, because a float has more than one
/// text. Implement the trait for identifiers of your own:
///
/// ```
/// use std::borrow::Cow;
/// struct OrderId(u64);
/// impl oncebox_core::KeyPart for OrderId {
///     fn key_part(&self) -> Option<Cow<'_, [u8]>> {
///         self.0.key_part()
///     }
/// }
/// # use oncebox_core::KeyPart;
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a message key",
    label = "not text, bytes, an integer or a `Uuid`",
    note = "floats have no exact text: use an integer or a string field, or `key_fn = your_function`",
    note = "for an identifier type of your own, implement `oncebox::KeyPart`"
)]
pub trait KeyPart {
    /// The part's bytes; `None` if the part is missing.
    fn key_part(&self) -> Option<Cow<'_, [u8]>>;
}

macro_rules! part_as_bytes {
    ($($part:ty),*) => {$(
        impl KeyPart for $part {
            fn key_part(&self) -> Option<Cow<'_, [u8]>> {
                let bytes: &[u8] = self.as_ref();
                Some(Cow::Borrowed(bytes))
            }
        }
    )*};
}
part_as_bytes!(str, String, [u8], Vec<u8>);

macro_rules! part_as_text {
    ($($part:ty),*) => {$(
        impl KeyPart for $part {
            fn key_part(&self) -> Option<Cow<'_, [u8]>> {
                Some(Cow::Owned(self.to_string().into_bytes()))
            }
        }
    )*};
}
part_as_text!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, bool, char);
part_as_text!(NonZeroU32, NonZeroU64, NonZeroI32, NonZeroI64);

impl KeyPart for Uuid {
    fn key_part(&self) -> Option<Cow<'_, [u8]>> {
        Some(Cow::Owned(self.hyphenated().to_string().into_bytes()))
    }
}

impl KeyPart for Key {
    fn key_part(&self) -> Option<Cow<'_, [u8]>> {
        Some(Cow::Borrowed(self.as_bytes()))
    }
}

impl<T: KeyPart> KeyPart for Option<T> {
    fn key_part(&self) -> Option<Cow<'_, [u8]>> {
        self.as_ref()?.key_part()
    }
}

macro_rules! part_behind_pointer {
    ($($pointer:ty),*) => {$(
        impl<T: KeyPart + ?Sized> KeyPart for $pointer {
            fn key_part(&self) -> Option<Cow<'_, [u8]>> {
                (**self).key_part()
            }
        }
    )*};
}
part_behind_pointer!(&T, Box<T>, Arc<T>, Rc<T>);

impl<T: KeyPart + ToOwned + ?Sized> KeyPart for Cow<'_, T> {
    fn key_part(&self) -> Option<Cow<'_, [u8]>> {
        (**self).key_part()
    }
}

/// One piece of a key template such as `"{tenant}:{order_id}"`.
#[derive(Debug)]
pub enum Piece<'a> {
    /// Text of the template itself.
    Literal(&'static str),
    /// The value of a field.
    Part(Cow<'a, [u8]>),
}

/// Joins pieces into a key, so that different parts always make different keys.
///
/// In each part, `%` and every byte of the literal text between two parts are percent-escaped. A single part stays
/// unchanged. The result is `None` if a part is empty, because an empty key counts as missing.
///
/// The code that `#[derive(Message)]` generates calls this. Two parts without a literal between them, or with a `%` in that
/// literal, would be ambiguous; the derive refuses such a template.
pub fn compose(pieces: &[Piece<'_>]) -> Option<Key> {
    let separators = separators(pieces);
    let mut key = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Literal(text) => key.extend_from_slice(text.as_bytes()),
            // Otherwise the text around an empty field would be one key for all such messages.
            Piece::Part(part) if part.is_empty() => return None,
            Piece::Part(part) => {
                for &byte in part.iter() {
                    if separators.contains(&byte) {
                        // In users' databases: with another form of the escape, these keys would be new ones.
                        key.extend_from_slice(format!("%{byte:02X}").as_bytes());
                    } else {
                        key.push(byte);
                    }
                }
            }
        }
    }
    Some(Key::new(key))
}

/// The bytes that are escaped in each part; none if there is only one part.
fn separators(pieces: &[Piece<'_>]) -> Vec<u8> {
    let is_part = |piece: &Piece<'_>| matches!(piece, Piece::Part(_));
    let (Some(first), Some(last)) = (pieces.iter().position(is_part), pieces.iter().rposition(is_part))
    else {
        return Vec::new();
    };
    // A single part cannot run into another one, and stays readable for support.
    if first == last {
        return Vec::new();
    }
    // `%` too: otherwise the text `%3A` and an escaped `:` would give the same key.
    let mut separators = vec![b'%'];
    for piece in &pieces[first..last] {
        if let Piece::Literal(text) = piece {
            // Each byte, not the whole text: with `::` between them, `a:` and `b` would equal `a` and `:b`.
            separators.extend_from_slice(text.as_bytes());
        }
    }
    separators
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair(a: &[u8], b: &[u8]) -> Key {
        // Never empty: an empty part is a missing one.
        let part = |bytes: &[u8]| Piece::Part([b"x", bytes].concat().into());
        compose(&[part(a), Piece::Literal(":"), part(b)]).unwrap()
    }

    #[test]
    fn different_parts_never_make_the_same_key() {
        assert_ne!(pair(b"a:b", b"c"), pair(b"a", b"b:c"));
        assert_ne!(pair(b"a", b"bc"), pair(b"ab", b"c"));
        assert_ne!(pair(b"a%3A", b"c"), pair(b"a:", b"c"));
        assert_eq!(pair(b"a:b", b"c%"), Key::from("xa%3Ab:xc%25"));
    }

    #[test]
    fn a_template_with_hexadecimal_literals_still_tells_parts_apart() {
        let part = |text: &'static str| Piece::Part(text.as_bytes().into());
        let key = |a: &'static str, b: &'static str| compose(&[part(a), Piece::Literal("3A"), part(b)]);
        assert_ne!(key("x", "3Ay"), key("x3A", "y"));
        assert_ne!(key("%", "y"), key("%25", "y"));
    }

    #[test]
    fn a_single_part_stays_readable() {
        let part = || Piece::Part(b"evt_1:%e"[..].into());
        let key = compose(&[Piece::Literal("stripe:"), part(), Piece::Literal("!")]);
        assert_eq!(key, Some(Key::from("stripe:evt_1:%e!")));
        // Only text between two parts is ambiguous.
        let key = compose(&[Piece::Literal("stripe:"), part(), Piece::Literal("/"), part()]);
        assert_eq!(key, Some(Key::from("stripe:evt_1:%25e/evt_1:%25e")));
    }

    #[test]
    fn an_empty_part_is_a_missing_one() {
        let empty = || Piece::Part(b""[..].into());
        assert_eq!(compose(&[Piece::Literal("stripe:"), empty()]), None);
        assert_eq!(compose(&[Piece::Part(b"a"[..].into()), Piece::Literal(":"), empty()]), None);
    }

    #[test]
    fn none_is_missing_and_empty_text_is_not() {
        assert_eq!(None::<String>.key_part(), None);
        assert_eq!(Some(String::new()).key_part().as_deref(), Some(&b""[..]));
        assert_eq!(Uuid::nil().key_part().as_deref(), Some(&b"00000000-0000-0000-0000-000000000000"[..]));
    }

    proptest! {
        #[test]
        fn different_pairs_give_different_keys(a: Vec<u8>, b: Vec<u8>, c: Vec<u8>, d: Vec<u8>) {
            prop_assert_eq!(pair(&a, &b) == pair(&c, &d), (a, b) == (c, d));
        }
    }
}
