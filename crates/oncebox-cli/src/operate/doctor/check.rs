//! The result of one check.

use std::fmt::Display;

use serde::Serialize;

use crate::exit::error_text;

/// The level of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CheckLevel {
    /// As required.
    Ok,
    /// A risk, or slow.
    Warning,
    /// Loses, repeats or stops messages.
    Problem,
}

impl CheckLevel {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// A result, with advice if it is not ok.
#[derive(Debug, Serialize)]
pub(super) struct DoctorCheck {
    pub(super) id: &'static str,
    pub(super) level: CheckLevel,
    pub(super) message: String,
    pub(super) fix: Option<String>,
}

impl DoctorCheck {
    pub(super) fn ok(id: &'static str, message: impl Into<String>) -> Self {
        Self { id, level: CheckLevel::Ok, message: message.into(), fix: None }
    }

    pub(super) fn warning(id: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { id, level: CheckLevel::Warning, message: message.into(), fix: Some(fix.into()) }
    }

    pub(super) fn problem(id: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { id, level: CheckLevel::Problem, message: message.into(), fix: Some(fix.into()) }
    }

    /// A check that failed.
    pub(super) fn unknown(id: &'static str, error: impl Display) -> Self {
        Self::warning(
            id,
            format!("could not be checked: {error}"),
            "give this user or role the permission to read it, and try again",
        )
    }

    /// The result, or `unknown` with the error.
    pub(super) fn from_result<E: Into<anyhow::Error>>(id: &'static str, found: Result<Self, E>) -> Self {
        found.unwrap_or_else(|error| Self::unknown(id, error_text(&error.into())))
    }
}
