//! The texts of `key` and `order_by`: one field, or a template such as `"{tenant}:{order_id}"`.

use std::fmt;

/// The purpose of a text; only the wording of errors depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Key,
    OrderBy,
}

/// A valid text: it has at least one part, and no two parts touch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Template {
    pieces: Vec<TemplatePiece>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TemplatePiece {
    Literal(String),
    Part(FieldPath),
}

/// A field, or a field of a field: `order.id`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FieldPath {
    pub(crate) first: String,
    pub(crate) rest: Vec<String>,
}

impl Template {
    /// Parses the text; the error says what is wrong and what to do.
    pub(crate) fn parse(text: &str, purpose: Purpose) -> Result<Self, String> {
        let pieces = if text.contains(['{', '}']) {
            split(text)?
        } else {
            vec![TemplatePiece::Part(FieldPath::parse(text)?)]
        };
        if !pieces.iter().any(|piece| matches!(piece, TemplatePiece::Part(_))) {
            return Err(constant(purpose));
        }
        pieces.windows(2).try_for_each(refuse_touching_parts)?;
        pieces.iter().try_for_each(refuse_percent)?;
        Ok(Self { pieces })
    }

    pub(crate) fn pieces(&self) -> &[TemplatePiece] {
        &self.pieces
    }
}

impl FieldPath {
    fn parse(text: &str) -> Result<Self, String> {
        let mut segments = text.split('.').map(str::to_owned);
        if text.split('.').any(str::is_empty) {
            return Err(match text {
                "" => "a field name is missing; write \"order_id\" or \"{tenant}:{order_id}\"".into(),
                _ => format!("a field name is missing in `{text}`; write it as `order.id`"),
            });
        }
        Ok(Self { first: segments.next().unwrap_or_default(), rest: segments.collect() })
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.first)?;
        self.rest.iter().try_for_each(|segment| write!(f, ".{segment}"))
    }
}

/// Splits the text at its braces, as `format!` does.
fn split(text: &str) -> Result<Vec<TemplatePiece>, String> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        literal.push_str(&rest[..at]);
        // Braces are ASCII, so this cannot split a character.
        let (brace, after) = rest[at..].split_at(1);
        if let Some(after) = after.strip_prefix(brace) {
            literal.push_str(brace);
            rest = after;
            continue;
        }
        if brace == "}" {
            return Err("this `}` has no matching `{`; for the character itself write `}}`".into());
        }
        let (name, after) = after
            .split_once('}')
            // In `{a{b}` the first brace is not closed; `a{b` is not meant as a field.
            .filter(|(name, _)| !name.contains('{'))
            .ok_or("this `{` is never closed; for the character itself write `{{`")?;
        if !literal.is_empty() {
            pieces.push(TemplatePiece::Literal(std::mem::take(&mut literal)));
        }
        pieces.push(TemplatePiece::Part(FieldPath::parse(name)?));
        rest = after;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        pieces.push(TemplatePiece::Literal(literal));
    }
    Ok(pieces)
}

fn constant(purpose: Purpose) -> String {
    match purpose {
        Purpose::Key => {
            "no field is named: a constant key would make every message a duplicate of the first; \
                         put a field in braces, e.g. \"order:{order_id}\""
        }
        Purpose::OrderBy => {
            "no field is named: a constant ordering key would make every message wait for the \
                             one before it; put a field in braces, e.g. \"customer:{customer_id}\""
        }
    }
    .into()
}

fn refuse_touching_parts(neighbours: &[TemplatePiece]) -> Result<(), String> {
    match neighbours {
        [TemplatePiece::Part(a), TemplatePiece::Part(b)] => Err(format!(
            "parts `{a}` and `{b}` have nothing between them, so (\"a\", \"bc\") and (\"ab\", \"c\") would be \
             the same key; put a separator, e.g. \"{{{a}}}:{{{b}}}\""
        )),
        _ => Ok(()),
    }
}

/// Refuses `%` in literal text, because it starts an escape in the parts.
///
/// With `"{a}%{b}"` the pairs `("%", "25")` and `("", "25%")` would both make `%25%25`.
fn refuse_percent(piece: &TemplatePiece) -> Result<(), String> {
    match piece {
        TemplatePiece::Literal(text) if text.contains('%') => {
            Err("`%` marks escaped characters in a key, so it cannot be part of the template's \
                 own text; use another character, e.g. `:`"
                .into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(text: &str) -> TemplatePiece {
        TemplatePiece::Literal(text.into())
    }

    fn part(first: &str) -> TemplatePiece {
        path(first, &[])
    }

    fn path(first: &str, rest: &[&str]) -> TemplatePiece {
        TemplatePiece::Part(FieldPath {
            first: first.into(),
            rest: rest.iter().map(|&segment| segment.into()).collect(),
        })
    }

    #[test]
    fn valid_texts_are_split_into_pieces() {
        for (text, pieces) in [
            ("order_id", vec![part("order_id")]),
            ("0", vec![part("0")]),
            ("order.id", vec![path("order", &["id"])]),
            ("order.lines.0", vec![path("order", &["lines", "0"])]),
            ("{order_id}", vec![part("order_id")]),
            ("{a}:{b}", vec![part("a"), literal(":"), part("b")]),
            ("order:{id}", vec![literal("order:"), part("id")]),
            ("{id}/order", vec![part("id"), literal("/order")]),
            ("{a.b}-{c.0}", vec![path("a", &["b"]), literal("-"), path("c", &["0"])]),
            ("{{{a}}}", vec![literal("{"), part("a"), literal("}")]),
            ("{{a}}{b}", vec![literal("{a}"), part("b")]),
            ("{a}}}{{{b}", vec![part("a"), literal("}{"), part("b")]),
            ("ключ·{a}", vec![literal("ключ·"), part("a")]),
        ] {
            let template = Template::parse(text, Purpose::Key).unwrap();
            assert_eq!(template.pieces(), pieces, "{text}");
        }
    }

    #[test]
    fn the_error_of_an_invalid_text_has_the_reason() {
        for (text, reason) in [
            ("", "a field name is missing; write"),
            ("{}", "a field name is missing; write"),
            ("{a}:{}", "a field name is missing; write"),
            (".id", "missing in `.id`"),
            ("order.", "missing in `order.`"),
            ("{order..id}", "missing in `order..id`"),
            ("{a", "`{` is never closed"),
            ("a{", "`{` is never closed"),
            ("{a{b}", "`{` is never closed"),
            ("a}", "`}` has no matching `{`"),
            ("{a}}", "`}` has no matching `{`"),
            ("{{a}", "`}` has no matching `{`"),
            ("{{fixed}}", "duplicate of the first"),
            ("}}", "duplicate of the first"),
            ("{a}{b}", "parts `a` and `b` have nothing between them"),
            ("x{a}:{b.c}{d}", "e.g. \"{b.c}:{d}\""),
            ("{a}%{b}", "`%` marks escaped characters"),
            ("100%:{a}", "`%` marks escaped characters"),
        ] {
            let error = Template::parse(text, Purpose::Key).unwrap_err();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_error_of_a_constant_ordering_key_has_its_own_consequence() {
        let error = Template::parse("{{all}}", Purpose::OrderBy).unwrap_err();
        assert!(error.contains("wait for the one before it"), "{error}");
    }
}
