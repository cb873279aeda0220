//! Keeps the files of a run, so that others can count the effects.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::checker::{EffectRow, EffectRows};
use crate::seed::SeedSettings;
use crate::verdict::Verdict;

const README: &str = "\
history.jsonl  every event, one JSON object per line, in the order of time
effects.csv    the table of effects, in the order in which they were written; with an outbox first the sender's
database       the files of the database: torture.db and receiver.db, or a PostgreSQL data folder
workers.log    the standard error of the workers
verdict.json   the result of the check

Every `sent` message must be acknowledged (`settled` with the result `ack`) and have one effect of each handler:
  grep -c '\"event\":\"sent\"' history.jsonl
  sort effects.csv | uniq -d | wc -l     must be 0
  sort -u effects.csv | wc -l
";

/// Files that are removed after the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files<'a> {
    pub(crate) history: &'a Path,
    /// The standard error of the workers.
    pub(crate) log: &'a Path,
    pub(crate) database: &'a Path,
}

/// Copies the history, the effects and the files of a stopped database.
pub(crate) fn keep(
    folder: &Path,
    settings: &SeedSettings,
    Files { history, log, database }: Files<'_>,
    effects: &EffectRows,
    verdict: &Verdict,
) -> Result<()> {
    let doing = || format!("keeping {} in {}", settings.name(), folder.display());
    fs::create_dir_all(folder).with_context(doing)?;
    fs::copy(history, folder.join("history.jsonl")).with_context(doing)?;
    fs::copy(log, folder.join("workers.log")).with_context(doing)?;
    let mut csv = String::new();
    for EffectRow { handler, message, .. } in &effects.rows {
        writeln!(csv, "{handler},{message}")?;
    }
    fs::write(folder.join("effects.csv"), csv).with_context(doing)?;
    fs::write(folder.join("verdict.json"), serde_json::to_string_pretty(verdict)?).with_context(doing)?;
    fs::write(folder.join("README"), README).with_context(doing)?;
    // `cp`, because the standard library copies neither owners nor permissions.
    let copied = Command::new("cp").arg("-a").arg(database).arg(folder.join("database")).status();
    ensure!(copied.with_context(doing)?.success(), "{}: copying the database failed", doing());
    Ok(())
}
