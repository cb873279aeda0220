//! Names of handlers and kinds: values that go into every marker.

use crate::{Error, ErrorKind, Key};

/// The longest name, in bytes: with a key it must fit into one index entry of any store.
pub(crate) const MAX_BYTES: usize = 200;

/// Checks the name of a handler or a kind. Quotes and any other printable text are fine: names are bound as
/// values, never spliced.
pub(crate) fn check(what: &str, name: &str) -> Result<(), Error> {
    let problem = if name.is_empty() {
        "is empty"
    } else if name.len() > MAX_BYTES {
        "is longer than 200 bytes"
    } else if name.chars().any(char::is_control) {
        "has control characters"
    } else if name.starts_with('@') {
        "starts with `@`, which is reserved"
    } else {
        return Ok(());
    };
    Err(Error::configuration(format!("the {what} {name:?} {problem}: choose another name")))
}

/// Checks that a key can stand in a marker.
pub(crate) fn check_key(key: &Key) -> Result<(), Error> {
    if key.is_empty() {
        return Err(Error::new(ErrorKind::Key, "the key is empty: an empty key identifies nothing"));
    }
    if key.as_bytes().len() > Key::MAX_BYTES {
        let bytes = key.as_bytes().len();
        let message =
            format!("the key has {bytes} bytes, the limit is {}: use a digest as key", Key::MAX_BYTES);
        return Err(Error::new(ErrorKind::Key, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_letters_of_any_script_are_fine() {
        for name in ["ledger", "o'brien \"x\"", "台帳", "a;drop table marker", &"n".repeat(200)] {
            check("handler", name).unwrap();
        }
        for name in ["", "a\0b", "line\nbreak", "@accept", &"n".repeat(201)] {
            assert_eq!(check("handler", name).unwrap_err().kind(), ErrorKind::Configuration, "{name:?}");
        }
    }
}
