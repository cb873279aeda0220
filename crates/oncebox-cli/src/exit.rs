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

/// Says what went wrong, with all causes, and by which code to end.
pub(crate) fn explain(error: &anyhow::Error) -> ExitCode {
    #[allow(clippy::print_stderr, reason = "the program speaks to a person")]
    {
        eprintln!("oncebox: {error:#}");
        if is_denied(error) {
            eprintln!(
                "oncebox: the role lacks a privilege: `oncebox migrate grants ROLE` prints what it needs, for the owner of the \
                 schema to run"
            );
        }
    }
    ExitCode::from(code(error))
}

/// Whether PostgreSQL says insufficient_privilege.
fn is_denied(error: &anyhow::Error) -> bool {
    let code = |cause: &sqlx::Error| cause.as_database_error()?.code().map(|code| code == "42501");
    error.chain().filter_map(|cause| cause.downcast_ref()).any(|cause| code(cause) == Some(true))
}

fn code(error: &anyhow::Error) -> u8 {
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
}
