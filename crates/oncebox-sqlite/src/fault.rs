//! What SQLite's errors mean, by result code.

use std::error::Error as StdError;

use oncebox_core::store::{Fault, find_cause};
use oncebox_core::{Error, ErrorKind};

/// Wraps an error of one of the store's own statements.
pub(crate) fn failed(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| Error::unavailable(format!("SQLite could not {doing}"), error)
}

/// The writer was not to be had in time.
pub(crate) fn writer_busy() -> Error {
    Error::new(ErrorKind::Busy, "another transaction holds SQLite's writer").with_source(WriterBusy)
}

#[derive(Debug)]
struct WriterBusy;

impl std::fmt::Display for WriterBusy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the writer is busy")
    }
}

impl StdError for WriterBusy {}

pub(crate) fn classify(error: &(dyn StdError + 'static)) -> Fault {
    find_cause(error, |cause| {
        if cause.is::<WriterBusy>() {
            return Some(Fault::LockTimeout);
        }
        match cause.downcast_ref::<sqlx::Error>()? {
            // A statement can panic the driver's thread. The handler is not to blame, so it counts as a lost
            // connection.
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => {
                Some(Fault::Connection)
            }
            sqlx::Error::Database(error) => result_code(error.code()?.parse().ok()?),
            _ => None,
        }
    })
    .unwrap_or(Fault::Other)
}

/// Whether an error is about the data of a statement.
pub(crate) fn is_about_data(error: &(dyn StdError + 'static)) -> bool {
    // Another try would fail in the same way: such a message becomes a dead letter (decision 32).
    const TOO_BIG: i32 = 18;
    const CONSTRAINT: i32 = 19;
    const MISMATCH: i32 = 20;
    find_cause(error, |cause| match cause.downcast_ref::<sqlx::Error>()? {
        sqlx::Error::Database(error) => error.code()?.parse::<i32>().ok(),
        _ => None,
    })
    .is_some_and(|code| matches!(code & 0xff, TOO_BIG | CONSTRAINT | MISMATCH))
}

/// The primary result code is the low byte of the extended one.
fn result_code(extended: i32) -> Option<Fault> {
    const BUSY: i32 = 5;
    const LOCKED: i32 = 6;
    const NOMEM: i32 = 7;
    const INTERRUPT: i32 = 9;
    const IOERR: i32 = 10;
    const FULL: i32 = 13;
    const CANTOPEN: i32 = 14;
    match extended & 0xff {
        BUSY | LOCKED => Some(Fault::LockTimeout),
        // The machine's fault, not the message's: it spends no attempt.
        IOERR | FULL | CANTOPEN => Some(Fault::Outage),
        NOMEM => Some(Fault::Transient),
        // The seal interrupts a handler's statement at the deadline.
        INTERRUPT => Some(Fault::StatementTimeout),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_codes_read_as_their_primary_ones() {
        let table = [
            (5, Some(Fault::LockTimeout)),
            (261, Some(Fault::LockTimeout)), // BUSY_RECOVERY
            (517, Some(Fault::LockTimeout)), // BUSY_SNAPSHOT
            (9, Some(Fault::StatementTimeout)),
            (13, Some(Fault::Outage)),
            (778, Some(Fault::Outage)), // IOERR_WRITE
            (7, Some(Fault::Transient)),
            (2067, None), // CONSTRAINT_UNIQUE
        ];
        for (code, fault) in table {
            assert_eq!(result_code(code), fault, "{code}");
        }
    }
}
