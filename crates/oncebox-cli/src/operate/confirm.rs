//! Asking before something is gone for good.

use std::io::{IsTerminal, Write, stdin, stdout};

use anyhow::{Result, bail};

use crate::exit::Usage;

/// Goes on if that was said on the command line, or is said on the terminal now. `question` has no question mark.
pub(crate) fn confirm(question: &str, said_yes: bool) -> Result<()> {
    if said_yes {
        return Ok(());
    }
    if !(stdin().is_terminal() && stdout().is_terminal()) {
        return Err(Usage(format!(
            "{question}: nobody is there to be asked. Add --yes if that is what you want"
        ))
        .into());
    }
    #[allow(clippy::print_stderr, reason = "the program speaks to a person")]
    {
        eprint!("{question}? [y/N] ");
    }
    std::io::stderr().flush()?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => bail!("nothing was done"),
    }
}
