//! The text of the configuration: the lines of errors, and the values of environment variables.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;

use crate::exit::Usage;

/// A file's name and content.
pub(super) struct ConfigText<'a> {
    path: &'a Path,
    content: &'a str,
}

impl<'a> ConfigText<'a> {
    pub(super) fn new(path: &'a Path, content: &'a str) -> Self {
        Self { path, content }
    }

    /// An error with the file, the line and its text.
    pub(super) fn at<T>(&self, value: &Spanned<T>, problem: &str) -> Usage {
        self.at_span(value.span(), problem)
    }

    pub(super) fn at_span(&self, span: Range<usize>, problem: &str) -> Usage {
        // `get`, because a span outside of the text must not end the program.
        let before = self.content.get(..span.start).unwrap_or_default();
        let line = before.matches('\n').count();
        let line_text = self.content.lines().nth(line).unwrap_or_default();
        Usage(format!("{}:{}: {problem}\n\n    {}\n", self.path.display(), line + 1, line_text.trim()))
    }

    /// An error of the TOML parser.
    pub(super) fn parse_error(&self, error: &toml::de::Error) -> Usage {
        self.at_span(error.span().unwrap_or(0..0), error.message())
    }

    /// The value with each `${NAME}` replaced by the environment variable, so that the file needs no secrets.
    pub(super) fn expand(&self, value: &Spanned<String>) -> Result<String, Usage> {
        let mut expanded = String::new();
        let mut rest = value.get_ref().as_str();
        while let Some((before, after)) = rest.split_once("${") {
            let Some((name, after_name)) = after.split_once('}') else {
                return Err(self.at(value, "unclosed variable: add the `}` after `${`"));
            };
            let Ok(found) = std::env::var(name) else {
                return Err(self.at(
                    value,
                    &format!("the environment variable {name} is not set: set it, or write the value itself"),
                ));
            };
            // The value is not expanded again: a secret may contain `${`.
            expanded.extend([before, &found]);
            rest = after_name;
        }
        Ok(expanded + rest)
    }
}
