//! The rules for kinds.

/// The maximum length of a kind, in bytes. The core has the same limit, so that a marker fits into every index.
const MAX_BYTES: usize = 200;

/// Checks a kind; the error says what is wrong and what to do.
pub(crate) fn check(kind: &str) -> Result<(), String> {
    if kind.is_empty() {
        return Err("the kind is empty; give the message a lasting name, e.g. \"order.paid\"".into());
    }
    if kind.starts_with('@') {
        return Err("kinds that start with `@` are reserved for Oncebox; remove the `@`".into());
    }
    if kind.len() > MAX_BYTES {
        return Err(format!("the kind has {} bytes; use up to {MAX_BYTES}", kind.len()));
    }
    if let Some(control) = kind.chars().find(|c| c.is_control()) {
        return Err(format!("the kind contains the control character {control:?}; use printable text"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_any_printable_text_of_up_to_200_bytes() {
        for kind in ["order.paid", "Bestellung bezahlt", "a@b", "注文", &"x".repeat(200)] {
            assert_eq!(check(kind), Ok(()), "{kind}");
        }
    }

    #[test]
    fn the_error_of_an_invalid_kind_has_the_reason() {
        for (kind, reason) in [
            ("", "is empty"),
            ("@accept", "remove the `@`"),
            (&"x".repeat(201), "201 bytes"),
            (&"é".repeat(101), "202 bytes"),
            ("order\npaid", r"control character '\n'"),
            ("order\0", r"control character '\0'"),
        ] {
            let error = check(kind).unwrap_err();
            assert!(error.contains(reason), "{kind:?}: {error}");
        }
    }
}
