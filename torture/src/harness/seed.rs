//! One seed of a run: its settings, and its result.

use std::path::PathBuf;

use oncebox_torture::scenario::{Scenario, TortureMode};

use crate::broker::BrokerName;
use crate::database::StoreName;
use crate::fault::TortureFault;
use crate::verdict::Verdict;

/// The settings of a seed.
#[derive(Clone, Debug)]
pub(crate) struct SeedSettings {
    pub(crate) store: StoreName,
    pub(crate) mode: TortureMode,
    /// What messages pass on their way to the inbox, if anything.
    pub(crate) broker: Option<BrokerName>,
    pub(crate) seed: u64,
    pub(crate) faults: usize,
    pub(crate) messages: u64,
    /// Only these faults; all if empty.
    pub(crate) only: Vec<TortureFault>,
    pub(crate) keep: Option<PathBuf>,
    /// Prints every fault as it happens.
    pub(crate) verbose: bool,
    /// Whether missing programs may be installed.
    pub(crate) may_install: bool,
}

/// The result of a seed.
#[derive(Debug)]
pub(crate) struct SeedResult {
    pub(crate) verdict: Verdict,
    /// A description of each violation.
    pub(crate) violations: Vec<String>,
    /// Faults that cannot happen on this machine, and why.
    pub(crate) left_out: Vec<String>,
}

impl SeedSettings {
    pub(crate) fn scenario(&self) -> Scenario {
        Scenario { mode: self.mode, seed: self.seed }
    }

    /// The faults that can happen in this mode.
    pub(crate) fn possible_faults(&self) -> Vec<TortureFault> {
        let mut faults = TortureFault::of(self.store, self.mode, self.broker);
        faults.retain(|fault| self.only.is_empty() || self.only.contains(fault));
        faults
    }

    /// Its name in reports and folders.
    pub(crate) fn name(&self) -> String {
        let broker = self.broker.map(|broker| format!("-{}", broker.name())).unwrap_or_default();
        format!("{}-{}{broker}-{}", self.store.name(), self.mode.name(), self.seed)
    }

    /// The command that runs this seed alone.
    pub(crate) fn command(&self) -> String {
        let Self { store, mode, broker, seed, faults, messages, only, .. } = self;
        let only: Vec<&str> = only.iter().map(|fault| fault.id()).collect();
        let only = if only.is_empty() { String::new() } else { format!(" --only {}", only.join(",")) };
        let broker = broker.map(|broker| format!(" --broker {}", broker.name())).unwrap_or_default();
        format!(
            "cargo xtask torture --store {} --mode {}{broker} --seed {seed} --faults {faults} --messages {messages}{only} --keep torture-{}",
            store.name(),
            mode.name(),
            self.name()
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn settings(store: StoreName, mode: TortureMode, seed: u64) -> SeedSettings {
        SeedSettings {
            store,
            mode,
            broker: None,
            seed,
            faults: 100,
            messages: 1_000,
            only: Vec::new(),
            keep: None,
            verbose: false,
            may_install: false,
        }
    }

    #[test]
    fn the_command_runs_the_same_seed_alone() {
        let settings = SeedSettings {
            only: vec![TortureFault::DiskFull],
            ..settings(StoreName::Sqlite, TortureMode::Spill, 3)
        };
        assert_eq!(
            settings.command(),
            "cargo xtask torture --store sqlite --mode spill --seed 3 --faults 100 --messages 1000 --only disk_full \
             --keep torture-sqlite-spill-3"
        );
        let command = SeedSettings { broker: Some(BrokerName::Rabbitmq), ..settings }.command();
        assert!(command.contains(" --mode spill --broker rabbitmq --seed 3 "), "{command}");
        assert!(command.ends_with(" --keep torture-sqlite-spill-rabbitmq-3"), "{command}");
    }
}
