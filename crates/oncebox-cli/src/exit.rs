//! How the program ends, for scripts; and why, for people.

use std::fmt;
use std::process::ExitCode;

use oncebox::ErrorKind;

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const UNAVAILABLE: u8 = 3;
const NOT_FOUND: u8 = 4;

/// There is no such handler, message or dead letter.
#[derive(Debug)]
pub(crate) struct NotFound(pub(crate) String);

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotFound {}

/// The program was called or configured in a way that cannot work.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// What was being done: the tables were being made or changed. Whoever may not do that needs another hint than others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Migrating;

impl fmt::Display for Migrating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bringing the tables to this version")
    }
}

/// Says what went wrong, with all causes, and by which code to end.
pub(crate) fn explain(error: &anyhow::Error) -> ExitCode {
    #[allow(clippy::print_stderr, reason = "the program speaks to a person")]
    {
        eprintln!("oncebox: {}", in_words(error));
        if let Some(hint) = hint(error) {
            eprintln!("oncebox: {hint}");
        }
    }
    ExitCode::from(code(error))
}

/// The error and its causes, each said once; of what a database said, the message alone.
pub(crate) fn in_words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain() {
        let (said, is_all) = match cause.downcast_ref::<sqlx::Error>() {
            Some(sqlx::Error::Database(error)) => (error.message().to_owned(), true),
            Some(sqlx::Error::Io(error)) => (error.to_string(), true),
            _ => (cause.to_string(), false),
        };
        // Many errors print their cause as part of themselves.
        if !words.ends_with(&said) {
            let colon = if words.is_empty() { "" } else { ": " };
            words.extend([colon, &said]);
        }
        if is_all {
            break;
        }
    }
    words
}

/// Where a role lacks a privilege, what gives it.
fn hint(error: &anyhow::Error) -> Option<&'static str> {
    if database_code(error).as_deref() != Some(INSUFFICIENT_PRIVILEGE) {
        return None;
    }
    Some(match error.downcast_ref::<Migrating>() {
        Some(Migrating) => {
            "the role may not make the tables: let the owner of the database run `oncebox migrate up`, or grant the role \
             CREATE on the database"
        }
        None => {
            "the role lacks a privilege: `oncebox migrate grants ROLE` prints what it needs, for the owner of the schema to run"
        }
    })
}

const INSUFFICIENT_PRIVILEGE: &str = "42501";
const NO_SUCH_DATABASE: &str = "3D000";

/// The code of the database's own error, if that is the cause.
pub(crate) fn database_code(error: &anyhow::Error) -> Option<String> {
    let code = |cause: &sqlx::Error| Some(cause.as_database_error()?.code()?.into_owned());
    error.chain().filter_map(|cause| cause.downcast_ref()).find_map(code)
}

/// Whether the database does not answer now, and may do so later: another password or privilege is no matter of time.
pub(crate) fn is_outage(error: &anyhow::Error) -> bool {
    let is_refusal = |code: String| code.starts_with("28") || code == INSUFFICIENT_PRIVILEGE;
    code(error) == UNAVAILABLE && !database_code(error).is_some_and(is_refusal)
}

fn code(error: &anyhow::Error) -> u8 {
    if database_code(error).as_deref() == Some(NO_SUCH_DATABASE) {
        return NOT_FOUND;
    }
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
    fn the_cause_decides() {
        let unavailable = oncebox::Error::new(ErrorKind::Unavailable, "gone");
        let error = Err::<(), _>(unavailable).context("reading").unwrap_err();
        assert_eq!(code(&error), UNAVAILABLE);
        assert_eq!(code(&NotFound("no such handler".into()).into()), NOT_FOUND);
        assert_eq!(code(&oncebox::Error::configuration("no").into()), USAGE);
        assert_eq!(code(&anyhow::anyhow!("else")), FAILED);
    }

    #[test]
    fn causes_are_said_once() {
        let refused = || std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "Connection refused");
        let error = oncebox::Error::unavailable("PostgreSQL cannot be reached", sqlx::Error::Io(refused()));
        let error = Err::<(), _>(error).context("opening postgres://db/x").unwrap_err();
        assert_eq!(
            in_words(&error),
            "opening postgres://db/x: PostgreSQL cannot be reached: Connection refused"
        );
        assert!(is_outage(&error));
        assert!(!is_outage(&Usage("no".into()).into()));
    }
}
