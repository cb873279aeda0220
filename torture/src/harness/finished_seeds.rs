//! The file of `--ledger`: seeds that were finished before, so that a long run can be continued.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use oncebox_torture::scenario::TortureMode;
use serde::{Deserialize, Serialize};

use crate::broker::BrokerName;
use crate::database::StoreName;
use crate::seed::SeedSettings;
use crate::verdict::Verdict;

/// A file with one line per finished seed.
#[derive(Debug)]
pub(crate) struct FinishedSeeds {
    path: PathBuf,
    seeds: Vec<FinishedSeed>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct FinishedSeed {
    store: StoreName,
    mode: TortureMode,
    // Lines of older ledger files do not have this field.
    #[serde(default)]
    broker: Option<BrokerName>,
    seed: u64,
    faults: usize,
    messages: u64,
    /// The worker's build. A verdict about another build proves nothing about this one.
    build: String,
    verdict: Verdict,
}

impl FinishedSeeds {
    /// Reads the file, if it exists.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("reading {}", path.display()))?,
        };
        let seeds = text.lines().map(|line| {
            serde_json::from_str(line)
                .with_context(|| format!("{} has an invalid line: {line}", path.display()))
        });
        Ok(Self { path: path.to_owned(), seeds: seeds.collect::<Result<_>>()? })
    }

    /// The verdict about this seed, if the same build has finished it.
    pub(crate) fn verdict(&self, settings: &SeedSettings, build: &str) -> Option<&Verdict> {
        let SeedSettings { store, mode, broker, seed, faults, messages, .. } = *settings;
        let is_same = |finished: &&FinishedSeed| {
            (finished.store, finished.mode, finished.broker, finished.seed) == (store, mode, broker, seed)
                && (finished.faults, finished.messages, finished.build.as_str()) == (faults, messages, build)
        };
        self.seeds.iter().find(is_same).map(|finished| &finished.verdict)
    }

    /// Adds a seed to the file.
    pub(crate) fn add(&mut self, settings: &SeedSettings, build: &str, verdict: &Verdict) -> Result<()> {
        let SeedSettings { store, mode, broker, seed, faults, messages, .. } = *settings;
        let (build, verdict) = (build.to_owned(), verdict.clone());
        let finished = FinishedSeed { store, mode, broker, seed, faults, messages, build, verdict };
        let line = format!("{}\n", serde_json::to_string(&finished)?);
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        let file = OpenOptions::new().create(true).append(true).open(&self.path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .with_context(|| format!("writing {}", self.path.display()))?;
        self.seeds.push(finished);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::tests::settings;

    #[test]
    fn a_seed_is_found_again_by_the_same_build_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/ledger");
        let settings = settings(StoreName::Sqlite, TortureMode::Spill, 3);
        let verdict = Verdict { messages: 1_001, ..Verdict::default() };
        FinishedSeeds::open(&path).unwrap().add(&settings, "a", &verdict).unwrap();
        let finished = FinishedSeeds::open(&path).unwrap();
        assert_eq!(finished.verdict(&settings, "a"), Some(&verdict));
        assert_eq!(finished.verdict(&settings, "b"), None);
        assert_eq!(finished.verdict(&SeedSettings { seed: 4, ..settings }, "a"), None);
        fs::write(&path, "nonsense\n").unwrap();
        FinishedSeeds::open(&path).unwrap_err();
    }
}
