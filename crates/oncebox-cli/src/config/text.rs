//! The text of the configuration: where things stand in it, and what its variables stand for.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;

use crate::exit::Usage;

/// A file's name and content.
pub(super) struct Text<'a> {
    path: &'a Path,
    content: &'a str,
}

impl<'a> Text<'a> {
    pub(super) fn new(path: &'a Path, content: &'a str) -> Self {
        Self { path, content }
    }

    /// What is wrong there.
    pub(super) fn at<T>(&self, there: &Spanned<T>, problem: &str) -> Usage {
        self.at_span(there.span(), problem)
    }

    pub(super) fn at_span(&self, span: Range<usize>, problem: &str) -> Usage {
        let before = self.content.get(..span.start).unwrap_or_default();
        let line = before.matches('\n').count();
        let shown = self.content.lines().nth(line).unwrap_or_default();
        Usage(format!("{}:{}: {problem}\n\n    {}\n", self.path.display(), line + 1, shown.trim()))
    }

    /// It is no TOML, or not what belongs into this file.
    pub(super) fn unreadable(&self, error: &toml::de::Error) -> Usage {
        self.at_span(error.span().unwrap_or(0..0), error.message())
    }

    /// The value with `${NAME}` replaced by the environment's variable: secrets need not stand in the file.
    pub(super) fn expand(&self, value: &Spanned<String>) -> Result<String, Usage> {
        let mut expanded = String::new();
        let mut rest = value.get_ref().as_str();
        while let Some((before, after)) = rest.split_once("${") {
            let Some((name, behind)) = after.split_once('}') else {
                return Err(self.at(value, "a `${` without its `}`"));
            };
            let Ok(found) = std::env::var(name) else {
                return Err(self.at(
                    value,
                    &format!("the environment has no variable {name}: set it, or write the value"),
                ));
            };
            expanded.extend([before, &found]);
            rest = behind;
        }
        Ok(expanded + rest)
    }
}
