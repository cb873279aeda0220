//! Keys and bodies: bytes, which are usually text.

use std::fmt::Write;

use oncebox::Key;
use serde::Serialize;

use crate::operate::json_layout::laid_out;

/// A key as text, or in hexadecimal after `0x` if it is not UTF-8 or has control characters.
pub(crate) fn key_text(key: &Key) -> String {
    match std::str::from_utf8(key.as_bytes()) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => format!("0x{}", hex(key.as_bytes())),
    }
}

/// The key's text, or `-` without a key.
pub(crate) fn key_or_none(key: Option<&Key>) -> String {
    key.map_or_else(|| "-".to_owned(), key_text)
}

/// Untrusted text for a terminal. Control characters are escaped, because they could move the cursor or hide text.
pub(crate) fn escaped(text: &str) -> String {
    let is_safe = |c: char| !c.is_control() || c == '\n' || c == '\t';
    text.chars().map(|c| if is_safe(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

/// A body for a terminal: JSON on several lines, other text unchanged, other bytes in hexadecimal.
pub(crate) fn body_text(body: &[u8]) -> String {
    match std::str::from_utf8(body) {
        Ok("") => "(empty)".to_owned(),
        Ok(text) => escaped(&laid_out(text).unwrap_or_else(|| text.to_owned())),
        Err(_) => hex_lines(body),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut hex, byte| {
        // An error cannot happen: the target is a string.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn hex_lines(bytes: &[u8]) -> String {
    let lines: Vec<String> = bytes.chunks(32).map(hex).collect();
    lines.join("\n")
}

/// A body in JSON: text if it is UTF-8, otherwise hexadecimal.
#[derive(Debug, Serialize)]
pub(crate) struct BodyField {
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_hex: Option<String>,
}

impl BodyField {
    pub(crate) fn new(body: &[u8]) -> Self {
        match std::str::from_utf8(body) {
            Ok(text) => Self { body: Some(text.to_owned()), body_hex: None },
            Err(_) => Self { body: None, body_hex: Some(hex(body)) },
        }
    }
}

/// A key in JSON: text if it is UTF-8, otherwise hexadecimal.
#[derive(Debug, Serialize)]
pub(crate) struct KeyField {
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_hex: Option<String>,
}

impl KeyField {
    pub(crate) fn new(key: Option<&Key>) -> Self {
        let Some(key) = key else { return Self { key: None, key_hex: None } };
        match std::str::from_utf8(key.as_bytes()) {
            Ok(text) => Self { key: Some(text.to_owned()), key_hex: None },
            Err(_) => Self { key: None, key_hex: Some(hex(key.as_bytes())) },
        }
    }
}

/// The keys that an argument can mean: the text itself, and after `0x` the bytes in hexadecimal.
pub(crate) fn parse_key(text: &str) -> Vec<Key> {
    let mut keys = vec![Key::from(text)];
    keys.extend(text.strip_prefix("0x").and_then(unhex).map(Key::from));
    keys
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    // ASCII only: the slices below would panic inside a longer character.
    if text.is_empty() || !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_shown_as_text_or_in_hexadecimal() {
        assert_eq!(key_text(&Key::from("order-1")), "order-1");
        assert_eq!(key_text(&Key::from("a\u{1b}[2J")), "0x611b5b324a");
        assert_eq!(key_text(&Key::from(vec![0xff, 0])), "0xff00");
        assert_eq!(parse_key("order-1"), [Key::from("order-1")]);
        assert_eq!(parse_key("0xff00"), [Key::from("0xff00"), Key::from(vec![0xff, 0])]);
    }

    #[test]
    fn a_body_cannot_control_the_terminal() {
        assert_eq!(body_text(b"{\"a\":1}"), "{\n  \"a\": 1\n}");
        assert_eq!(body_text("größer\n\u{1b}[31mrot".as_bytes()), "größer\n\\u{1b}[31mrot");
        assert_eq!(body_text(&[0xff, 1]), "ff01");
        assert_eq!(body_text(b""), "(empty)");
    }
}
