//! JSON with line breaks: every token stays as it was, numbers and the order of names included.

use serde::de::IgnoredAny;

/// The text with one member a line, if it is a JSON object or list.
pub(crate) fn laid_out(text: &str) -> Option<String> {
    // Checked first, because the loop below relies on balanced brackets. Not parsed into a value, which would round
    // large numbers and reorder names.
    if !text.trim_start().starts_with(['{', '[']) || serde_json::from_str::<IgnoredAny>(text).is_err() {
        return None;
    }
    let mut out = String::with_capacity(text.len() * 2);
    let (mut spaces, mut quoted, mut depth) = (Quoted::default(), Quoted::default(), 0);
    let tokens = text.chars().filter(|&letter| spaces.is_inside(letter) || !letter.is_ascii_whitespace());
    let mut letters = tokens.peekable();
    while let Some(letter) = letters.next() {
        if quoted.is_inside(letter) {
            out.push(letter);
            continue;
        }
        match letter {
            '{' | '[' => {
                out.push(letter);
                let end = if letter == '{' { '}' } else { ']' };
                if letters.next_if_eq(&end).is_some() {
                    out.push(end);
                } else {
                    depth += 1;
                    break_line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth -= 1;
                break_line(&mut out, depth);
                out.push(letter);
            }
            ',' => {
                out.push(letter);
                break_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            _ => out.push(letter),
        }
    }
    Some(out)
}

fn break_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth));
}

/// Knows whether a letter is part of a string.
#[derive(Default)]
struct Quoted {
    inside: bool,
    escaped: bool,
}

impl Quoted {
    fn is_inside(&mut self, letter: char) -> bool {
        if !self.inside {
            self.inside = letter == '"';
            return self.inside;
        }
        match letter {
            _ if self.escaped => self.escaped = false,
            '\\' => self.escaped = true,
            '"' => self.inside = false,
            _ => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_stay_as_they_were() {
        let text = r#"{"b" : 12345678901234567890123, "a":[ ], "t":"x, {\" y", "n":{"l":[1,2.50]}}"#;
        let expected = "{\n  \"b\": 12345678901234567890123,\n  \"a\": [],\n  \"t\": \"x, {\\\" y\",\n  \"n\": {\n    \"l\": [\n      1,\n      2.50\n    ]\n  }\n}";
        assert_eq!(laid_out(text).unwrap(), expected);
        assert_eq!(laid_out("{\"a\": 1"), None);
        assert_eq!(laid_out("5"), None);
    }
}
