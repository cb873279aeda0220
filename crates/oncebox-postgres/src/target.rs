//! What a server must be for the store to use it.

use std::fmt;

use oncebox_core::store::statement::section;
use sqlx::{Executor, PgConnection, Row};

const STATEMENTS: &str = include_str!("sql/server.sql");
const SERVER_STATE: &str = section(STATEMENTS, "server_state");
const TIMELINE: &str = section(STATEMENTS, "timeline");

/// Which of several servers will do, as in libpq's `target_session_attrs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// One that takes writes unless told otherwise.
    ReadWrite,
    /// One that is no standby.
    Primary,
    /// Whichever answers.
    Any,
}

impl Target {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "read-write" => Some(Self::ReadWrite),
            "primary" => Some(Self::Primary),
            "any" => Some(Self::Any),
            _ => None,
        }
    }

    /// Asks a server what it is, and whether that will do.
    pub(crate) async fn ask(self, conn: &mut PgConnection) -> Result<Answer, sqlx::Error> {
        if self == Self::Any {
            return Ok(Answer::Fit(Timeline::UNKNOWN));
        }
        // Statements without parameters go as text: a pooler need not prepare them.
        let row = conn.fetch_one(SERVER_STATE).await?;
        if row.try_get("is_standby")? {
            return Ok(Answer::Unfit("is a standby"));
        }
        if self == Self::ReadWrite && row.try_get("is_read_only")? {
            return Ok(Answer::Unfit("is read-only"));
        }
        match conn.fetch_one(TIMELINE).await {
            Ok(row) => Ok(Answer::Fit(Timeline(row.try_get("timeline")?))),
            // Databases that only speak PostgreSQL's protocol may have no timelines.
            Err(sqlx::Error::Database(_)) => Ok(Answer::Fit(Timeline::UNKNOWN)),
            Err(error) => Err(error),
        }
    }
}

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It will do.
    Fit(Timeline),
    /// It will not, and why.
    Unfit(&'static str),
}

/// Which history a server writes: each promotion begins a new one, with a higher number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timeline(i64);

impl Timeline {
    pub(crate) const UNKNOWN: Self = Self(0);

    /// Whether this history was left behind when `newest` began.
    pub(crate) fn is_behind(self, newest: Self) -> bool {
        self != Self::UNKNOWN && self < newest
    }

    #[cfg(test)]
    pub(crate) fn numbered(number: i64) -> Self {
        Self(number)
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use oncebox_core::store::statement::names;

    use super::*;

    #[test]
    fn every_statement_of_the_file_is_in_use() {
        assert!(names(STATEMENTS).eq(["server_state", "timeline"]));
    }

    #[test]
    fn targets_are_named_as_in_libpq_and_must_be_able_to_write() {
        assert_eq!(Target::from_name("read-write"), Some(Target::ReadWrite));
        assert_eq!(Target::from_name("primary"), Some(Target::Primary));
        assert_eq!(Target::from_name("any"), Some(Target::Any));
        for name in ["standby", "read-only", "prefer-standby", "", "READ-WRITE"] {
            assert_eq!(Target::from_name(name), None, "{name}");
        }
    }

    #[test]
    fn an_older_history_is_behind_and_an_unknown_one_is_not() {
        let [first, second] = [1, 2].map(Timeline::numbered);
        assert!(first.is_behind(second));
        assert!(!second.is_behind(first) && !second.is_behind(second));
        assert!(!Timeline::UNKNOWN.is_behind(second));
    }
}
