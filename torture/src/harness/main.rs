//! Injects real faults into real databases and processes, and checks that no message is lost or handled twice.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

mod broker;
mod checker;
mod clock;
mod database;
mod disk;
mod fault;
mod finished_seeds;
mod history;
mod injection;
mod keep;
mod namespace;
mod publisher;
mod recovery;
mod report;
mod run;
mod seed;
mod starters;
mod verdict;
mod workers;

use std::hash::{DefaultHasher, Hasher};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use oncebox_servers::skip::in_ci;
use oncebox_servers::{postgres, rabbitmq};
use oncebox_torture::scenario::TortureMode;

use broker::BrokerName;
use database::StoreName;
use fault::TortureFault;
use finished_seeds::FinishedSeeds;
use report::TortureReport;
use seed::SeedSettings;

/// The maximum number of faults of one seed.
const SEED_FAULTS: usize = 100;

/// Options of the torture.
#[derive(Parser, Debug)]
#[command(
    bin_name = "cargo xtask torture",
    about = "Real faults against real databases: counts what is lost or doubled"
)]
struct HarnessOptions {
    /// Only this database
    #[arg(long, value_enum)]
    store: Option<StoreName>,
    /// Only this way in; otherwise the seeds take turns
    #[arg(long, value_enum)]
    mode: Option<TortureMode>,
    /// Messages pass this broker, which gets faults too
    #[arg(long, value_enum)]
    broker: Option<BrokerName>,
    /// Only these faults, by their ids
    #[arg(long, value_name = "ID", value_delimiter = ',', conflicts_with = "ledger", value_parser = TortureFault::named)]
    only: Vec<TortureFault>,
    /// Faults for each database; every 100 have a seed and a database of their own
    #[arg(long, default_value_t = 60)]
    faults: usize,
    /// Messages for each database, at least: while faults are to come, more are sent
    #[arg(long, default_value_t = 60_000)]
    messages: u64,
    /// The first seed; the others follow it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leaves history and database of every seed in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Ends with one line of JSON
    #[arg(long)]
    json: bool,
    /// Print every fault as it happens
    #[arg(long, short)]
    verbose: bool,
    /// Where finished seeds are written down; those that the same build has finished are not run again
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// Leave out what needs PostgreSQL, RabbitMQ or faketime where they are missing, instead of installing them
    #[arg(long)]
    no_install: bool,
}

fn main() -> Result<ExitCode> {
    let options = HarnessOptions::parse();
    // Before any thread is started: a mount namespace belongs to a thread.
    namespace::enter()?;
    // One thread only: a worker is killed when the thread ends that started it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            done = torture(&options) => done,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                eprintln!("interrupted; finished seeds are in the ledger, if there is one");
                Ok(ExitCode::from(130))
            }
        }
    })
}

async fn torture(options: &HarnessOptions) -> Result<ExitCode> {
    if options.faults == 0 || options.messages == 0 {
        bail!("there is nothing to do without faults or messages: --faults and --messages must be 1 or more");
    }
    let mut finished = options.ledger.as_deref().map(FinishedSeeds::open).transpose()?;
    let build = build()?;
    let mut report = TortureReport::default();
    for store in StoreName::ALL {
        if options.store.is_some_and(|only| only != store) {
            continue;
        }
        if let Some(why) = missing(store, options.broker, !options.no_install)? {
            report.leave_out(why);
            continue;
        }
        for seed in seeds(options, store) {
            if seed.possible_faults().is_empty() {
                let (store, mode) = (store.name(), seed.mode.name());
                report.leave_out(format!("{store}, {mode}: it meets none of these faults"));
                continue;
            }
            if let Some(verdict) = finished.as_ref().and_then(|finished| finished.verdict(&seed, &build)) {
                println!("{:<22} in the ledger", seed.name());
                report.add(&seed, verdict, &[]);
                continue;
            }
            let started = Instant::now();
            let result = run::run(&seed).await.with_context(|| format!("running {}", seed.name()))?;
            println!("{}", report::line(&seed, &result.verdict, started.elapsed()));
            report.add(&seed, &result.verdict, &result.violations);
            // A seed without some of its faults is not finished.
            if let Some(finished) = finished.as_mut().filter(|_| result.left_out.is_empty()) {
                finished.add(&seed, &build, &result.verdict)?;
            }
            for why in result.left_out {
                report.leave_out(why);
            }
        }
    }
    report.print(options.json)?;
    Ok(if report.is_good(in_ci()) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Why a database or the broker is not available.
fn missing(store: StoreName, broker: Option<BrokerName>, may_install: bool) -> Result<Option<String>> {
    if broker == Some(BrokerName::Rabbitmq) && rabbitmq::find()?.is_none() {
        let installed =
            if may_install { rabbitmq::install().map(drop) } else { Err(anyhow!("it is not installed")) };
        if let Err(error) = installed {
            return Ok(Some(format!("RabbitMQ: {error:#}")));
        }
    }
    if store != StoreName::Postgres || postgres::find()?.is_some() {
        return Ok(None);
    }
    if !may_install {
        return Ok(Some("PostgreSQL: it is not installed".into()));
    }
    Ok(postgres::install().err().map(|error| format!("PostgreSQL: {error:#}")))
}

/// The seeds of a run: each with up to 100 faults, and at least one for each mode.
fn seeds(options: &HarnessOptions, store: StoreName) -> Vec<SeedSettings> {
    let modes = options.mode.map_or(TortureMode::ALL.to_vec(), |mode| vec![mode]);
    // Not more seeds than faults: a seed without a fault tests nothing.
    let count = options.faults.div_ceil(SEED_FAULTS).max(modes.len()).min(options.faults);
    let seed = |number: usize| SeedSettings {
        store,
        broker: options.broker,
        mode: modes[number % modes.len()],
        seed: options.seed + number as u64,
        // The first seeds get the remainder.
        faults: options.faults / count + usize::from(number < options.faults % count),
        messages: options.messages.div_ceil(count as u64),
        only: options.only.clone(),
        keep: options.keep.clone(),
        verbose: options.verbose,
        may_install: !options.no_install,
    };
    (0..count).map(seed).collect()
}

/// A hash of the worker's program.
fn build() -> Result<String> {
    let worker = std::env::current_exe()?.with_file_name("torture-worker");
    let program = std::fs::read(&worker)
        .with_context(|| format!("{} is missing: `cargo xtask torture` builds it", worker.display()))?;
    // Not stable between Rust versions, but another version of Rust also builds another worker.
    let mut hasher = DefaultHasher::new();
    hasher.write(&program);
    Ok(format!("{:016x}", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds_of(arguments: &[&str]) -> Vec<(TortureMode, u64, usize, u64)> {
        let options = HarnessOptions::parse_from([&["torture"], arguments].concat());
        let seeds = seeds(&options, StoreName::Sqlite);
        seeds.iter().map(|seed| (seed.mode, seed.seed, seed.faults, seed.messages)).collect()
    }

    #[test]
    fn a_long_run_is_made_of_seeds_of_a_hundred_faults() {
        let seeds = seeds_of(&["--faults", "1000", "--messages", "2000000", "--seed", "7"]);
        assert_eq!(seeds.len(), 10);
        assert!(seeds.iter().all(|seed| (seed.2, seed.3) == (100, 200_000)));
        assert_eq!(seeds.iter().map(|seed| seed.1).collect::<Vec<_>>(), (7..17).collect::<Vec<_>>());
    }

    #[test]
    fn a_short_run_has_a_seed_for_every_mode() {
        let seeds = seeds_of(&["--faults", "10", "--messages", "100"]);
        assert_eq!(seeds.iter().map(|seed| seed.0).collect::<Vec<_>>(), TortureMode::ALL);
        assert_eq!(seeds.iter().map(|seed| seed.2).sum::<usize>(), 10);
    }

    #[test]
    fn one_fault_is_one_seed() {
        assert_eq!(
            seeds_of(&["--faults", "1", "--messages", "5", "--mode", "spill"]),
            [(TortureMode::Spill, 1, 1, 5)]
        );
        assert_eq!(seeds_of(&["--faults", "1", "--messages", "5"]).len(), 1);
    }
}
