//! Leaving everything behind, so that others can count for themselves.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::checker::{Found, Verdict};
use crate::run::Part;

const README: &str = "\
history      what the harness did and heard, a line each, in the order of time
effects.csv  the table of effects, in the order in which they were written
database     the files of the database: torture.db, or a PostgreSQL data folder
workers.log  what the workers complained of
verdict.json what the checker made of it

Every `sent` message must be acknowledged (`settled ID WORKER ack ...`) and have one effect of each handler:
  grep -c '^sent ' history
  sort effects.csv | uniq -d | wc -l     must be 0
  sort -u effects.csv | wc -l
";

/// Files that would go away.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept<'a> {
    pub(crate) history: &'a Path,
    /// What workers wrote to their standard error.
    pub(crate) log: &'a Path,
    pub(crate) database: &'a Path,
}

/// Copies the history, the effects and the files of a stopped database.
pub(crate) fn keep(
    folder: &Path,
    part: &Part,
    Kept { history, log, database }: Kept<'_>,
    found: &Found,
    verdict: &Verdict,
) -> Result<()> {
    let doing = || format!("keeping {} in {}", part.name(), folder.display());
    fs::create_dir_all(folder).with_context(doing)?;
    fs::copy(history, folder.join("history")).with_context(doing)?;
    fs::copy(log, folder.join("workers.log")).with_context(doing)?;
    let mut effects = String::new();
    for (handler, id) in &found.effects {
        writeln!(effects, "{handler},{id}")?;
    }
    fs::write(folder.join("effects.csv"), effects).with_context(doing)?;
    fs::write(folder.join("verdict.json"), serde_json::to_string_pretty(verdict)?).with_context(doing)?;
    fs::write(folder.join("README"), README).with_context(doing)?;
    // Owners and rights belong to the data; the standard library copies neither.
    let copied = Command::new("cp").arg("-a").arg(database).arg(folder.join("database")).status();
    ensure!(copied.with_context(doing)?.success(), "{}: the database cannot be copied", doing());
    Ok(())
}
