//! `oncebox demo`: proves the promise with real processes and real kills, with nothing installed.
//!
//! A source sends messages out of order and with copies, and repeats them until their acknowledgement arrives; some acknowledgements
//! are dropped on purpose. Several processes handle the deliveries with real inboxes on one database, and are killed by `SIGKILL` at
//! any moment. Each message adds a row to a ledger without a unique constraint. The audit counts the rows.
//!
//! The source, the format of the history and the comparison with the ledger are those of the torture, in `oncebox-workload`.

mod audit;
mod database;
mod history;
mod kills;
mod ledger;
mod plan;
mod progress;
mod protocol;
mod report;
mod run;
mod signals;
pub(crate) mod worker;
mod workers;

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use oncebox_workload::deliverer::Deliverer;
use tokio::time::timeout;
use uuid::Uuid;

use crate::cli::CommonArgs;
use crate::demo::audit::Audit;
use crate::demo::database::DemoDatabase;
use crate::demo::history::{DemoCounts, DemoEvent, DemoHistory};
use crate::demo::kills::KillSchedule;
use crate::demo::ledger::{LedgerStore, table};
use crate::demo::plan::plan;
use crate::demo::progress::DemoProgress;
use crate::demo::protocol::Setup;
use crate::demo::report::DemoReport;
use crate::demo::run::DemoRun;
use crate::demo::signals::Signals;
use crate::demo::workers::WorkerProcesses;
use crate::output::CommandOutput;
use crate::store::{DatabaseTarget, OpenPurpose, Opened, with_store};

/// The hidden command that makes this program one of the demo's workers.
pub(crate) const WORKER_COMMAND: &str = "demo-worker";
/// The maximum time that an interrupted demo waits until its tables are created.
const CREATE_LIMIT: Duration = Duration::from_secs(5);

/// Options of `demo`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Without --store the demo uses an SQLite file in a temporary folder. On PostgreSQL it uses its own schema, and \
                        drops it at the end, except with --keep."
)]
pub(crate) struct DemoArgs {
    /// Number of messages
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
    /// Number of worker processes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    workers: u8,
    /// Number of times that a worker is killed
    #[arg(long, value_name = "N", default_value_t = 20)]
    kills: u16,
    /// Seed of everything random [default: a new one for each run]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Keep the database, and the history in history.jsonl, in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Run nothing; audit again the files of --keep in this folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["messages", "workers", "kills", "seed", "keep"])]
    audit: Option<PathBuf>,
}

pub(crate) async fn run(common: &CommonArgs, options: DemoArgs) -> Result<ExitCode> {
    if let Some(folder) = &options.audit {
        return audit_again(common, folder).await;
    }
    // Before anything is created: a signal must not leave a schema behind.
    let mut signals = Signals::listen()?;
    let mut database = tokio::select! {
        database = DemoDatabase::open(common, options.keep.as_deref()) => database?,
        code = signals.next() => return Ok(code),
    };
    let remaining = database.remaining();
    let ended = run_in(&mut database, common.output(), &options, &mut signals).await;
    let cleared = database.clear().await;
    let (report, interrupted) = ended?;
    if let Some(report) = &report {
        print(common.output(), report)?;
    }
    if let Some(remaining) = remaining {
        common.output().line(remaining)?;
    }
    // After the report: a schema that cannot be dropped must not hide the result.
    cleared?;
    let proven = report.is_some_and(|report| report.is_proof());
    Ok(interrupted.unwrap_or(if proven { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

/// Runs the demo. Returns the report, if anything was sent, and the exit code if it was interrupted. All workers have ended.
async fn run_in(
    database: &mut DemoDatabase,
    output: CommandOutput,
    options: &DemoArgs,
    signals: &mut Signals,
) -> Result<(Option<DemoReport>, Option<ExitCode>)> {
    if let Some(code) = create_tables(database, signals).await? {
        return Ok((None, Some(code)));
    }
    let mut run = prepare(output, options, database)?;
    let ended = tokio::select! {
        finished = run.run(database) => finished.map(|()| None),
        code = signals.next() => Ok(Some(code)),
    };
    let DemoRun { workers, mut history, progress, .. } = run;
    progress.clear();
    let interrupted = match ended {
        Ok(None) => {
            workers.finish().await?;
            None
        }
        Ok(code) => {
            // Before the audit, because a running worker would still add rows to the ledger.
            workers.kill_all().await;
            history.add(DemoEvent::Interrupted)?;
            code
        }
        Err(error) => {
            workers.kill_all().await;
            return Err(error);
        }
    };
    let counts = history.finish()?;
    let audit = audit(&counts, &database.opened, database.target.schema.as_deref()).await?;
    Ok((Some(DemoReport { counts, audit }), interrupted))
}

/// Creates the tables. A signal does not cut this short at once, because half of a schema could not be dropped.
async fn create_tables(database: &mut DemoDatabase, signals: &mut Signals) -> Result<Option<ExitCode>> {
    let mut creating = pin!(database.create());
    tokio::select! {
        created = &mut creating => created.map(|()| None),
        code = signals.next() => {
            let _ = timeout(CREATE_LIMIT, creating).await;
            Ok(Some(code))
        }
    }
}

/// Begins the history and starts the workers.
fn prepare(output: CommandOutput, options: &DemoArgs, database: &DemoDatabase) -> Result<DemoRun> {
    // Short enough to be typed, and exact as a number in any JSON.
    let seed = options.seed.unwrap_or_else(|| Uuid::now_v7().as_u64_pair().1 & u64::from(u32::MAX));
    let plan = plan(seed);
    let (messages, workers, kills) =
        (u64::from(options.messages), usize::from(options.workers), usize::from(options.kills));
    let mut history = DemoHistory::begin(database.history_file().as_deref())?;
    let (store, schema) = (database.target.redacted_url(), database.target.schema.clone());
    output.line(format!(
        "{messages} messages, {workers} workers, {kills} kills, seed {seed}, on {store}{}",
        schema.as_ref().map(|schema| format!(", schema {schema}")).unwrap_or_default()
    ))?;
    history.add(DemoEvent::Begun { seed, messages, workers, kills, store, schema })?;
    let setup = Setup { url: database.target.url.clone(), schema: database.target.schema.clone() };
    Ok(DemoRun {
        workers: WorkerProcesses::start(setup, workers)?,
        history,
        progress: DemoProgress::new(messages, output.json),
        plan,
        deliverer: Deliverer::new(plan, workers, messages),
        kills: KillSchedule::new(seed, kills, usize::try_from(options.messages)?),
        last_progress: Instant::now(),
    })
}

async fn audit(counts: &DemoCounts, opened: &Opened, schema: Option<&str>) -> Result<Audit> {
    let rows = with_store!(opened, store => store.rows(&table(schema)).await);
    Ok(Audit::new(counts, &rows.context("cannot read the ledger")?))
}

/// Audits the database that an earlier demo has left.
async fn audit_again(common: &CommonArgs, folder: &Path) -> Result<ExitCode> {
    let counts = history::read(&folder.join(history::FILE))?;
    let beside = || database::sqlite_url(&folder.join(database::FILE));
    let url = match &common.store {
        Some(url) => url.clone(),
        // A file can have been moved with its folder. The history has a server's URL, without its password.
        None if counts.store.starts_with("postgres") => counts.store.clone(),
        None => beside()?,
    };
    let schema = common.schema.clone().or_else(|| counts.schema.clone());
    let target = DatabaseTarget { url, schema };
    let audit = audit(&counts, &target.open(OpenPurpose::Read).await?, target.schema.as_deref()).await?;
    let report = DemoReport { counts, audit };
    print(common.output(), &report)?;
    Ok(if report.is_proof() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(output: CommandOutput, report: &DemoReport) -> Result<()> {
    output.object(&report.object())?;
    output.line(format!("\n{}\n", report.table()))?;
    output.line(report.sentence())
}
