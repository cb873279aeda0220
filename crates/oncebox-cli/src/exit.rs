//! Exit codes for scripts, and error texts for people.

use std::error::Error as StdError;
use std::fmt;
use std::process::ExitCode;

use oncebox::ErrorKind;

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const UNAVAILABLE: u8 = 3;
const NOT_FOUND: u8 = 4;

/// A database, handler, message or dead letter that does not exist.
#[derive(Debug)]
pub(crate) struct NotFound(pub(crate) String);

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotFound {}

/// Wrong usage or configuration.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The context of a failed migration. A role that may not migrate needs another hint than one that may not read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Migrating;

impl fmt::Display for Migrating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("creating or upgrading the tables")
    }
}

/// Prints an error with all its causes and a hint. Returns the exit code.
pub(crate) fn explain(error: &anyhow::Error) -> ExitCode {
    #[allow(clippy::print_stderr, reason = "the program speaks to a person")]
    {
        eprintln!("oncebox: {}", error_text(error));
        if let Some(hint) = hint(error) {
            eprintln!("oncebox: {hint}");
        }
    }
    ExitCode::from(code(error))
}

/// The error and its causes on one line, each once. Of a database's error only the message: its other fields do not help the reader.
pub(crate) fn error_text(error: &anyhow::Error) -> String {
    chain_text(error.as_ref())
}

/// The same for an error of the library.
pub(crate) fn chain_text(error: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        next = cause.source();
        let (cause_text, is_last) = match cause.downcast_ref::<sqlx::Error>() {
            Some(sqlx::Error::Database(error)) => (error.message().to_owned(), true),
            Some(sqlx::Error::Io(error)) => (error.to_string(), true),
            _ => (cause.to_string(), false),
        };
        // Many errors print their cause as part of themselves.
        if !text.ends_with(&cause_text) {
            let colon = if text.is_empty() { "" } else { ": " };
            text.extend([colon, &cause_text]);
        }
        if is_last {
            break;
        }
    }
    text
}

/// How to get a privilege that the role lacks.
fn hint(error: &anyhow::Error) -> Option<&'static str> {
    if database_code(error).as_deref() != Some(INSUFFICIENT_PRIVILEGE) {
        return None;
    }
    Some(match error.downcast_ref::<Migrating>() {
        Some(Migrating) => {
            "the role may not create tables: let the owner of the database run `oncebox migrate up`, or grant the role \
             CREATE on the database"
        }
        None => {
            "the role lacks a privilege: let the owner of the schema run the SQL that `oncebox migrate grants ROLE` prints"
        }
    })
}

const INSUFFICIENT_PRIVILEGE: &str = "42501";
const NO_SUCH_DATABASE: &str = "3D000";

/// The code of the database's error, if one is the cause.
pub(crate) fn database_code(error: &anyhow::Error) -> Option<String> {
    let code = |cause: &sqlx::Error| Some(cause.as_database_error()?.code()?.into_owned());
    error.chain().filter_map(|cause| cause.downcast_ref()).find_map(code)
}

/// Whether the database may respond later. A refused password or a missing privilege does not change by waiting.
pub(crate) fn is_outage(error: &anyhow::Error) -> bool {
    // Class 28 of SQLSTATE: invalid authorization.
    let is_refusal = |code: String| code.starts_with("28") || code == INSUFFICIENT_PRIVILEGE;
    code(error) == UNAVAILABLE && !database_code(error).is_some_and(is_refusal)
}

fn code(error: &anyhow::Error) -> u8 {
    // PostgreSQL reports it while connecting, so the library counts it as an outage. Waiting does not help.
    if database_code(error).as_deref() == Some(NO_SUCH_DATABASE) {
        return NOT_FOUND;
    }
    // From outside in: the context of this program is more specific than the cause.
    for cause in error.chain() {
        if cause.is::<NotFound>() {
            return NOT_FOUND;
        }
        if cause.is::<Usage>() {
            return USAGE;
        }
        match cause.downcast_ref::<oncebox::Error>().map(oncebox::Error::kind) {
            Some(ErrorKind::Unavailable) => return UNAVAILABLE,
            Some(ErrorKind::Configuration | ErrorKind::Schema) => return USAGE,
            _ => {}
        }
    }
    FAILED
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_cause_decides_the_exit_code() {
        let unavailable = oncebox::Error::new(ErrorKind::Unavailable, "gone");
        let error = Err::<(), _>(unavailable).context("reading").unwrap_err();
        assert_eq!(code(&error), UNAVAILABLE);
        assert_eq!(code(&NotFound("no such handler".into()).into()), NOT_FOUND);
        assert_eq!(code(&oncebox::Error::configuration("no").into()), USAGE);
        assert_eq!(code(&anyhow::anyhow!("else")), FAILED);
    }

    #[test]
    fn each_cause_is_printed_once() {
        let refused = || std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "Connection refused");
        let error = oncebox::Error::unavailable("PostgreSQL cannot be reached", sqlx::Error::Io(refused()));
        let error = Err::<(), _>(error).context("opening postgres://db/x").unwrap_err();
        assert_eq!(
            error_text(&error),
            "opening postgres://db/x: PostgreSQL cannot be reached: Connection refused"
        );
        assert!(is_outage(&error));
        assert!(!is_outage(&Usage("no".into()).into()));
    }
}
