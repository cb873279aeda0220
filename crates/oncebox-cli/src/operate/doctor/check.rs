//! One thing that was looked at.

use std::fmt::Display;

use serde::Serialize;

use crate::exit::in_words;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// It can go wrong, or is slow.
    Warning,
    /// It loses, repeats or stops messages.
    Problem,
}

impl Level {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// What was found.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) id: &'static str,
    pub(super) level: Level,
    pub(super) message: String,
    pub(super) fix: Option<String>,
}

impl Check {
    pub(super) fn ok(id: &'static str, message: impl Into<String>) -> Self {
        Self { id, level: Level::Ok, message: message.into(), fix: None }
    }

    pub(super) fn warning(id: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { id, level: Level::Warning, message: message.into(), fix: Some(fix.into()) }
    }

    pub(super) fn problem(id: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { id, level: Level::Problem, message: message.into(), fix: Some(fix.into()) }
    }

    /// It could not be found out.
    pub(super) fn unknown(id: &'static str, error: impl Display) -> Self {
        Self::warning(
            id,
            format!("could not be checked: {error}"),
            "see that this user or role may read it, and try again",
        )
    }

    /// What was found out, or why not.
    pub(super) fn from_result<E: Into<anyhow::Error>>(id: &'static str, found: Result<Self, E>) -> Self {
        found.unwrap_or_else(|error| Self::unknown(id, in_words(&error.into())))
    }
}
