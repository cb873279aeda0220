//! Errors of refused operations, with the same text for every store. Stores find the case by an error code or a row, never by
//! text.

use crate::{Error, ErrorKind};

/// The maximum number of times that a claim inserts its marker and reads it, before [`unstable_marker`].
// A sweep can delete the marker between the two once. More often in a row, another program must be deleting it.
pub const CLAIM_ATTEMPTS: u32 = 10;

/// The error for an append to a lane that the log does not have.
pub fn no_such_lane(lane: u16) -> Error {
    Error::configuration(format!(
        "the log has no lane {lane}: start an inbox with stored handlers once, it creates the lanes"
    ))
}

/// The error for a message that cannot become a task, because its handler was removed or is only inline now.
pub fn no_tasks_for_handler() -> Error {
    Error::configuration(
        "the message cannot be spilled: its handler was removed, or handles messages only inline now. Restart the program",
    )
}

/// The error for a handler that another process is changing at the same time.
pub fn handler_changes(name: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("another process is changing the handler {name:?}: start the program again"),
    )
}

/// The error for a marker that exists at the insert and is missing at the read, [`CLAIM_ATTEMPTS`] times in a row.
pub fn unstable_marker() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the marker of a key appears and disappears: check whether another program deletes rows of the marker table",
    )
}

/// The error for a handler that ended the transaction that it received.
pub fn transaction_ended() -> Error {
    Error::new(
        ErrorKind::Transaction,
        "the handler ended its transaction: do not run COMMIT, ROLLBACK or OR ROLLBACK in a handler, and return database \
         errors. Call begin() on the connection for a nested transaction",
    )
}

/// The error for a handler that ignored an SQL error, after which the database commits nothing.
pub fn error_swallowed() -> Error {
    Error::new(
        ErrorKind::Transaction,
        "the handler swallowed an SQL error, and the database commits nothing after it: return the error, or wrap the \
         statement in a nested transaction",
    )
}

/// Checks the number of nested transactions that are open on a handler's connection. It must be 1: the engine's own.
pub fn check_depth(depth: usize) -> Result<(), Error> {
    let message = match depth {
        1 => return Ok(()),
        // `COMMIT` as a statement does not change the driver's count, so 0 means another connection.
        0 => "the handler replaced its connection by another one: leave the connection where it is",
        _ => "the handler left a nested transaction open: commit it or drop it",
    };
    Err(Error::new(ErrorKind::Transaction, message))
}

/// Checks the schema version of a database (0 if there is no table) against the version that this program needs. In the error
/// text, `tables` is the name of the tables, and `sql` is the function that prints the migration.
pub fn check_version(found: i64, needed: i64, tables: &str, sql: &str) -> Result<(), Error> {
    let message = match found {
        _ if found == needed => return Ok(()),
        0 => format!("the database has no {tables}: run store.migrate(), or the SQL of {sql}"),
        _ if found < needed => {
            format!("the {tables} have version {found}, this program needs {needed}: run store.migrate()")
        }
        _ => {
            format!("the {tables} have version {found}, this program knows only {needed}: update the program")
        }
    };
    Err(Error::new(ErrorKind::Schema, message))
}

/// The error for a store whose task ended because the runtime is shutting down.
pub fn runtime_stops(source: impl Into<crate::BoxError>) -> Error {
    Error::unavailable("the runtime is shutting down", source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_transaction_of_the_engine_may_be_open() {
        assert!(check_depth(1).is_ok());
        for (depth, part) in
            [(0, "replaced its connection"), (2, "left a nested transaction open"), (3, "nested")]
        {
            let refused = check_depth(depth).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Transaction);
            assert!(refused.to_string().contains(part), "{depth}: {refused}");
        }
    }

    #[test]
    fn a_schema_of_another_version_is_refused_with_what_to_do() {
        let check = |found| check_version(found, 4, "Oncebox tables", "Store::migration_sql()");
        assert!(check(4).is_ok());
        for (found, expected) in [
            (
                0,
                "the database has no Oncebox tables: run store.migrate(), or the SQL of Store::migration_sql()",
            ),
            (3, "the Oncebox tables have version 3, this program needs 4: run store.migrate()"),
            (5, "the Oncebox tables have version 5, this program knows only 4: update the program"),
        ] {
            let refused = check(found).unwrap_err();
            assert_eq!((refused.kind(), refused.to_string()), (ErrorKind::Schema, expected.to_owned()));
        }
    }

    #[test]
    fn a_refusal_names_its_value() {
        assert!(no_such_lane(9).to_string().starts_with("the log has no lane 9: "));
        assert!(handler_changes("ledger").to_string().contains("the handler \"ledger\""));
    }
}
