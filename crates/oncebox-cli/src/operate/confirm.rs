//! Asks before an action that cannot be undone.

use std::io::{IsTerminal, Write, stdin, stdout};

use anyhow::{Result, bail};

use crate::exit::Usage;

/// Returns if the action is confirmed, by `--yes` or on the terminal. `question` has no question mark.
pub(crate) fn confirm(question: &str, yes: bool) -> Result<()> {
    if yes {
        return Ok(());
    }
    if !(stdin().is_terminal() && stdout().is_terminal()) {
        return Err(Usage(format!(
            "not confirmed: {question}? Add --yes to confirm, because there is no terminal to ask on"
        ))
        .into());
    }
    #[allow(clippy::print_stderr, reason = "the program speaks to a person")]
    {
        // On standard error, because standard output may be the input of another program.
        eprint!("{question}? [y/N] ");
    }
    std::io::stderr().flush()?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        // Anything else means no, because the action cannot be undone.
        _ => bail!("not confirmed: nothing was changed"),
    }
}
