//! What PostgreSQL's errors mean, by SQLSTATE. Never by text: the server speaks the language it is set to.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

use oncebox_core::Error;
use oncebox_core::store::{Fault, find_cause, refusal};
use sqlx::postgres::PgDatabaseError;

/// Wraps an error of one of the store's own statements.
pub(crate) fn failed(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| Error::unavailable(could_not(doing), error)
}

/// Wraps an error of a server that takes no writes.
pub(crate) fn refused_to_write(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| Error::unavailable(could_not(doing), TakesNoWrites(error))
}

fn could_not(doing: &str) -> String {
    format!("PostgreSQL could not {doing}")
}

/// Whether a server takes no writes, from the error of a statement that stands alone.
pub(crate) fn takes_no_writes(error: &sqlx::Error) -> bool {
    // read_only_sql_transaction
    code(error).as_deref() == Some("25006")
}

/// The same from the error of the statement that begins a transaction.
pub(crate) fn begins_no_writes(error: &sqlx::Error) -> bool {
    // feature_not_supported: on a standby no transaction begins that is to write
    takes_no_writes(error) || code(error).as_deref() == Some("0A000")
}

/// Whether a server that refuses a connection may take one soon.
pub(crate) fn is_starting(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        // cannot_connect_now, too_many_connections
        _ => matches!(code(error).as_deref(), Some("57P03" | "53300")),
    }
}

/// Whether a function of the schema refused its arguments. Each function that the store calls has one reason for that.
pub(crate) fn is_refused(error: &sqlx::Error) -> bool {
    // invalid_parameter_value
    code(error).as_deref() == Some("22023")
}

fn code(error: &sqlx::Error) -> Option<Cow<'_, str>> {
    error.as_database_error()?.code()
}

/// A statement was refused by a standby, or by a server that is set to read-only: an outage, which ends with a promotion or
/// with a connection to another server. Inside a transaction that a handler was lent the same code means something else: that
/// the handler has left it, or has set it to read-only.
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

fn server_code(error: &(dyn StdError + 'static)) -> Option<String> {
    find_cause(error, |cause| cause.downcast_ref::<sqlx::Error>().and_then(code).map(Cow::into_owned))
}

/// Whether an error is the server's answer to a statement.
pub(crate) fn is_from_server(error: &(dyn StdError + 'static)) -> bool {
    server_code(error).is_some()
}

/// Whether an error is about the data of a statement.
pub(crate) fn is_about_data(error: &(dyn StdError + 'static)) -> bool {
    server_code(error).is_some_and(|code| {
        // data exceptions, integrity violations, program limits, what functions raise on purpose
        ["22", "23", "54", "P0"].iter().any(|class| code.starts_with(class))
    })
}

fn driver(error: &sqlx::Error) -> Option<Fault> {
    match error {
        _ if is_out_of_date(error) => Some(Fault::Session),
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        // After a protocol error it is unknown what the server has done.
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::BeginFailed
        | sqlx::Error::WorkerCrashed => Some(Fault::Connection),
        sqlx::Error::Database(error) => sqlstate(&error.code()?),
        _ => None,
    }
}

/// Whether a session's plan or prepared statement is gone. "cached plan must not change result type" has no code of its own: it
/// is the one of its kind that comes from this routine of the server.
fn is_out_of_date(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error() else { return false };
    match error.code().as_deref() {
        // invalid_sql_statement_name
        Some("26000") => true,
        // feature_not_supported
        Some("0A000") => error
            .try_downcast_ref::<PgDatabaseError>()
            .is_some_and(|error| error.routine() == Some("RevalidateCachedQuery")),
        _ => false,
    }
}

fn sqlstate(code: &str) -> Option<Fault> {
    match code {
        // connection exceptions; admin shutdown, crash, starting up; idle in transaction for too long
        _ if code.starts_with("08") => Some(Fault::Connection),
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" => Some(Fault::Connection),
        // out of disk, out of connections
        "53100" | "53300" => Some(Fault::Outage),
        // serialization failure, deadlock; out of memory, a limit such as the one for temporary files
        "40001" | "40P01" => Some(Fault::Transient),
        _ if code.starts_with("53") => Some(Fault::Transient),
        "55P03" => Some(Fault::LockTimeout),
        "57014" => Some(Fault::StatementTimeout),
        _ => None,
    }
}

/// Wraps an error of the guard, or of a commit with the guard before it.
pub(crate) fn refused(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| match code(&error).as_deref() {
        // in_failed_sql_transaction
        Some("25P02") => refusal::error_swallowed().with_source(error),
        // invalid_transaction_termination
        Some("2D000") => refusal::transaction_ended(),
        _ => failed(doing)(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_refuses_may_be_starting() {
        let io = |kind: std::io::ErrorKind| sqlx::Error::Io(kind.into());
        assert!(is_starting(&io(std::io::ErrorKind::ConnectionRefused)));
        assert!(!is_starting(&io(std::io::ErrorKind::ConnectionReset)));
        assert!(!is_starting(&sqlx::Error::PoolTimedOut));
    }

    #[test]
    fn sqlstates_say_what_to_do() {
        let table = [
            ("08006", Some(Fault::Connection)),
            ("57P01", Some(Fault::Connection)),
            ("40001", Some(Fault::Transient)),
            ("40P01", Some(Fault::Transient)),
            ("53100", Some(Fault::Outage)),
            ("53200", Some(Fault::Transient)),
            ("53300", Some(Fault::Outage)),
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
