//! `oncebox demo`: a minute of proof, with nothing installed.
//!
//! A source delivers messages again until it has seen an acknowledgement, out of order and with copies, and some acknowledgements
//! are dropped on purpose. Several processes take the deliveries with real inboxes on one database, and are killed by `SIGKILL`
//! wherever they happen to be. Each message adds a row to a ledger that would take a second one. The audit counts.

mod audit;
mod chance;
mod crew;
mod deliverer;
mod history;
mod kills;
mod ledger;
mod place;
mod plan;
mod progress;
mod report;
mod show;
mod signals;
mod wire;
pub(crate) mod worker;

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::time::timeout;
use uuid::Uuid;

use crate::cli::Common;
use crate::demo::audit::Audit;
use crate::demo::crew::Crew;
use crate::demo::deliverer::Deliverer;
use crate::demo::history::{Counts, Event, History};
use crate::demo::kills::Kills;
use crate::demo::ledger::{Ledger, table};
use crate::demo::place::Place;
use crate::demo::plan::Plan;
use crate::demo::progress::Progress;
use crate::demo::report::Report;
use crate::demo::show::Show;
use crate::demo::signals::Signals;
use crate::demo::wire::Setup;
use crate::output::Output;
use crate::store::{For, Opened, Target, with_store};

/// The hidden command that makes this program one of the demo's workers.
pub(crate) const WORKER_COMMAND: &str = "demo-worker";
/// How long whoever interrupts waits for tables that are being created.
const CREATE_LIMIT: Duration = Duration::from_secs(5);

/// What to show.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Without --store it happens in an SQLite file in a temporary folder. With a PostgreSQL address it happens in a \
                        schema of its own, which is dropped at the end unless --keep says otherwise."
)]
pub(crate) struct Options {
    /// How many messages are sent
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
    /// How many processes handle them
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    workers: u8,
    /// How often one of them is killed
    #[arg(long, value_name = "N", default_value_t = 20)]
    kills: u16,
    /// What all chance follows from [default: another one each time]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Keep the database, and a history of everything in history.jsonl, in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Only count again what --keep has left in this folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["messages", "workers", "kills", "seed", "keep"])]
    audit: Option<PathBuf>,
}

pub(crate) async fn run(common: &Common, options: Options) -> Result<ExitCode> {
    if let Some(folder) = &options.audit {
        return count_again(common, folder).await;
    }
    let mut signals = Signals::listen()?;
    let mut place = tokio::select! {
        place = Place::open(common, options.keep.as_deref()) => place?,
        code = signals.next() => return Ok(code),
    };
    let left = place.left();
    let ended = perform(common.output(), &options, &mut place, &mut signals).await;
    let cleared = place.clear().await;
    let (report, interrupted) = ended?;
    if let Some(report) = &report {
        tell(common.output(), report)?;
    }
    if let Some(left) = left {
        common.output().say(left)?;
    }
    cleared?;
    let proven = report.is_some_and(|report| report.is_proof());
    Ok(interrupted.unwrap_or(if proven { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

/// Shows it all; what came of it as far as it got, and the code to end with if it was interrupted. No worker is left.
async fn perform(
    output: Output,
    options: &Options,
    place: &mut Place,
    signals: &mut Signals,
) -> Result<(Option<Report>, Option<ExitCode>)> {
    if let Some(code) = create(place, signals).await? {
        return Ok((None, Some(code)));
    }
    let mut show = set_up(output, options, place)?;
    let ended = tokio::select! {
        performed = show.perform(place) => performed.map(|()| None),
        code = signals.next() => Ok(Some(code)),
    };
    let Show { crew, mut history, progress, .. } = show;
    progress.clear();
    let interrupted = match ended {
        Ok(None) => {
            crew.dismiss().await?;
            None
        }
        Ok(code) => {
            crew.end().await;
            history.note(Event::Interrupted)?;
            code
        }
        Err(error) => {
            crew.end().await;
            return Err(error);
        }
    };
    let counts = history.finish()?;
    let audit = audit(&counts, &place.opened, place.target.schema.as_deref()).await?;
    Ok((Some(Report { counts, audit }), interrupted))
}

/// Creates the tables. Whoever interrupts that waits a moment for it: what is half made cannot be taken away.
async fn create(place: &mut Place, signals: &mut Signals) -> Result<Option<ExitCode>> {
    let mut creating = pin!(place.create());
    tokio::select! {
        created = &mut creating => created.map(|()| None),
        code = signals.next() => {
            let _ = timeout(CREATE_LIMIT, creating).await;
            Ok(Some(code))
        }
    }
}

/// Everybody in their places.
fn set_up(output: Output, options: &Options, place: &Place) -> Result<Show> {
    // Short enough to be typed, and exact as a number in any JSON.
    let seed = options.seed.unwrap_or_else(|| Uuid::now_v7().as_u64_pair().1 & u64::from(u32::MAX));
    let plan = Plan { seed, messages: options.messages.into() };
    let (messages, workers, kills) =
        (u64::from(options.messages), usize::from(options.workers), usize::from(options.kills));
    let mut history = History::begin(place.history().as_deref())?;
    let (store, schema) = (place.target.shown(), place.target.schema.clone());
    output.say(format!(
        "{messages} messages, {workers} workers, {kills} kills, seed {seed}, on {store}{}",
        schema.as_ref().map(|schema| format!(", schema {schema}")).unwrap_or_default()
    ))?;
    history.note(Event::Begun { seed, messages, workers, kills, store, schema })?;
    let setup = Setup { url: place.target.url.clone(), schema: place.target.schema.clone() };
    Ok(Show {
        crew: Crew::start(setup, workers)?,
        history,
        progress: Progress::new(messages, output.json),
        source: Deliverer::new(plan, workers),
        kills: Kills::new(seed, kills, usize::try_from(options.messages)?),
        moved: Instant::now(),
    })
}

async fn audit(counts: &Counts, opened: &Opened, schema: Option<&str>) -> Result<Audit> {
    let rows = with_store!(opened, store => store.rows(&table(schema)).await);
    Ok(Audit::of(counts, &rows.context("reading the ledger")?))
}

/// Audits what an earlier demo has left.
async fn count_again(common: &Common, folder: &Path) -> Result<ExitCode> {
    let counts = history::read(&folder.join(history::FILE))?;
    let beside = || place::sqlite_url(&folder.join(place::FILE));
    let url = match &common.store {
        Some(url) => url.clone(),
        // A file may have been moved with its folder; a server is where it was, and its password is not written down.
        None if counts.store.starts_with("postgres") => counts.store.clone(),
        None => beside()?,
    };
    let schema = common.schema.clone().or_else(|| counts.schema.clone());
    let target = Target { url, schema };
    let audit = audit(&counts, &target.open(For::Looking).await?, target.schema.as_deref()).await?;
    let report = Report { counts, audit };
    tell(common.output(), &report)?;
    Ok(if report.is_proof() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell(output: Output, report: &Report) -> Result<()> {
    output.object(&report.object())?;
    output.say(format!("\n{}\n", report.table()))?;
    output.say(report.sentence())
}
