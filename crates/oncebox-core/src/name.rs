//! Rules for handler names, kinds and keys, which are part of every marker.

use crate::{Error, ErrorKind, Key};

/// The maximum length of a name, in bytes. Together with a key it must fit into one index entry of every store.
pub(crate) const MAX_BYTES: usize = 200;

/// Checks a handler name or a kind.
///
/// Quotes and all other printable text are allowed, because statements bind names as values.
pub(crate) fn check(what: &str, name: &str) -> Result<(), Error> {
    let problem = if name.is_empty() {
        "it is empty; use 1 to 200 bytes".to_owned()
    } else if name.len() > MAX_BYTES {
        format!("it has {} bytes; use up to {MAX_BYTES}", name.len())
    } else if let Some(control) = name.chars().find(|c| c.is_control()) {
        format!("it contains the control character {control:?}; use printable text")
    // Names such as `@accept` share columns and hashes with the names of users.
    } else if name.starts_with('@') {
        "names that start with `@` are reserved for Oncebox; remove the `@`".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::configuration(format!("invalid {what} {name:?}: {problem}")))
}

/// Checks that a key can be part of a marker.
pub(crate) fn check_key(key: &Key) -> Result<(), Error> {
    if key.is_empty() {
        let message = format!("the key is empty: use 1 to {} bytes", Key::MAX_BYTES);
        return Err(Error::new(ErrorKind::Key, message));
    }
    if key.as_bytes().len() > Key::MAX_BYTES {
        let bytes = key.as_bytes().len();
        let message = format!(
            "the key has {bytes} bytes, the limit is {}: use a digest of it as the key",
            Key::MAX_BYTES
        );
        return Err(Error::new(ErrorKind::Key, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_letters_of_any_script_are_allowed() {
        for name in ["ledger", "o'brien \"x\"", "台帳", "a;drop table marker", &"n".repeat(200)] {
            check("handler", name).unwrap();
        }
        for name in ["", "a\0b", "line\nbreak", "@accept", &"n".repeat(201)] {
            assert_eq!(check("handler", name).unwrap_err().kind(), ErrorKind::Configuration, "{name:?}");
        }
    }
}
