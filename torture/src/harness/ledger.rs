//! Seeds that were run before, so that a long run can go on where it was stopped.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use oncebox_torture::plan::Mode;
use serde::{Deserialize, Serialize};

use crate::checker::Verdict;
use crate::database::StoreName;
use crate::run::Part;

/// A file with a line for each seed.
#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    store: StoreName,
    mode: Mode,
    seed: u64,
    faults: usize,
    messages: u64,
    /// Of the programs: what another build has shown proves nothing about this one.
    build: String,
    verdict: Verdict,
}

impl Ledger {
    /// Opens it, or begins one.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("reading {}", path.display()))?,
        };
        let entries = text.lines().map(|line| {
            serde_json::from_str(line)
                .with_context(|| format!("{} has a line that is not one of its own: {line}", path.display()))
        });
        Ok(Self { path: path.to_owned(), entries: entries.collect::<Result<_>>()? })
    }

    /// What came of this seed when the same build ran it.
    pub(crate) fn verdict(&self, part: &Part, build: &str) -> Option<&Verdict> {
        let is_same = |entry: &&Entry| {
            (entry.store, entry.mode, entry.seed, entry.faults, entry.messages, entry.build.as_str())
                == (part.store, part.mode, part.seed, part.faults, part.messages, build)
        };
        self.entries.iter().find(is_same).map(|entry| &entry.verdict)
    }

    /// Writes down what came of a seed.
    pub(crate) fn add(&mut self, part: &Part, build: &str, verdict: &Verdict) -> Result<()> {
        let entry = Entry {
            store: part.store,
            mode: part.mode,
            seed: part.seed,
            faults: part.faults,
            messages: part.messages,
            build: build.to_owned(),
            verdict: verdict.clone(),
        };
        let line = format!("{}\n", serde_json::to_string(&entry)?);
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path);
        let written = file.as_mut().map_err(|error| std::io::Error::from(error.kind()));
        written
            .and_then(|file| file.write_all(line.as_bytes()))
            .with_context(|| format!("writing {}", self.path.display()))?;
        self.entries.push(entry);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_found_again_by_the_same_build_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/ledger");
        let part = Part {
            store: StoreName::Sqlite,
            mode: Mode::Spill,
            seed: 3,
            faults: 100,
            messages: 1_000,
            only: Vec::new(),
            keep: None,
            verbose: false,
            may_install: false,
        };
        let verdict = Verdict { messages: 1_001, ..Verdict::default() };
        Ledger::open(&path).unwrap().add(&part, "a", &verdict).unwrap();
        let ledger = Ledger::open(&path).unwrap();
        assert_eq!(ledger.verdict(&part, "a"), Some(&verdict));
        assert_eq!(ledger.verdict(&part, "b"), None);
        assert_eq!(ledger.verdict(&Part { seed: 4, ..part }, "a"), None);
        fs::write(&path, "nonsense\n").unwrap();
        Ledger::open(&path).unwrap_err();
    }
}
