//! What PostgreSQL's errors mean, by SQLSTATE. Never by text: the server speaks the language it is set to.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

use oncebox_core::store::{Fault, find_cause};
use oncebox_core::{Error, ErrorKind};

/// Wraps an error of one of the store's own statements.
pub(crate) fn failed(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| {
        let message = format!("PostgreSQL could not {doing}");
        match is_read_only(&error) {
            true => Error::unavailable(message, TakesNoWrites(error)),
            false => Error::unavailable(message, error),
        }
    }
}

/// Wraps an error of the statement that begins a transaction.
pub(crate) fn not_begun(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| match code(&error).as_deref() {
        // feature_not_supported: there are no transactions that write on a standby
        Some("0A000") => Error::unavailable(format!("PostgreSQL could not {doing}"), TakesNoWrites(error)),
        _ => failed(doing)(error),
    }
}

/// Whether a statement was to write where nothing may be written.
pub(crate) fn is_read_only(error: &sqlx::Error) -> bool {
    code(error).as_deref() == Some("25006")
}

fn code(error: &sqlx::Error) -> Option<Cow<'_, str>> {
    error.as_database_error()?.code()
}

/// A statement of the store's own was refused by a standby, or by a server that is set to read-only: an outage, which ends with a
/// promotion or with a connection to another server. In a handler's statement the same code means something else: that
/// the handler has left its transaction.
#[derive(Debug)]
struct TakesNoWrites(sqlx::Error);

impl fmt::Display for TakesNoWrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server takes no writes: it is a standby, or set to read-only")
    }
}

impl StdError for TakesNoWrites {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

pub(crate) fn classify(error: &(dyn StdError + 'static)) -> Fault {
    find_cause(error, |cause| match cause.downcast_ref::<sqlx::Error>() {
        None => cause.is::<TakesNoWrites>().then_some(Fault::Connection),
        Some(error) => driver(error),
    })
    .unwrap_or(Fault::Other)
}

fn driver(error: &sqlx::Error) -> Option<Fault> {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::BeginFailed
        | sqlx::Error::WorkerCrashed => Some(Fault::Connection),
        sqlx::Error::Database(error) => sqlstate(&error.code()?),
        _ => None,
    }
}

fn sqlstate(code: &str) -> Option<Fault> {
    match code {
        // connection exceptions; admin shutdown, crash, starting up; idle in transaction for too long
        _ if code.starts_with("08") => Some(Fault::Connection),
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" => Some(Fault::Connection),
        // serialization failure, deadlock; out of disk, memory, connections
        "40001" | "40P01" => Some(Fault::Transient),
        _ if code.starts_with("53") => Some(Fault::Transient),
        "55P03" => Some(Fault::LockTimeout),
        "57014" => Some(Fault::StatementTimeout),
        _ => None,
    }
}

/// Wraps an error of the guard, or of a commit with the guard before it.
pub(crate) fn refused(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| {
        match code(&error).as_deref() {
        // in_failed_sql_transaction
        Some("25P02") => Error::new(
            ErrorKind::Transaction,
            "the handler swallowed an SQL error, after which PostgreSQL commits nothing: return the error, or wrap the \
             statement in a nested transaction",
        )
        .with_source(error),
        // invalid_transaction_termination
        Some("2D000") => Error::new(
            ErrorKind::Transaction,
            "the handler ended the transaction that it was lent: do not run COMMIT or ROLLBACK in a handler; use begin() on \
             the connection for a nested one",
        ),
        _ => failed(doing)(error),
    }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_say_what_to_do() {
        let table = [
            ("08006", Some(Fault::Connection)),
            ("57P01", Some(Fault::Connection)),
            ("40001", Some(Fault::Transient)),
            ("40P01", Some(Fault::Transient)),
            ("53300", Some(Fault::Transient)),
            ("55P03", Some(Fault::LockTimeout)),
            ("57014", Some(Fault::StatementTimeout)),
            ("23505", None),
            ("42501", None),
        ];
        for (code, fault) in table {
            assert_eq!(sqlstate(code), fault, "{code}");
        }
    }
}
