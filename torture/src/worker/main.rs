//! The process that faults happen to: reads commands from standard input and reports on standard output, as
//! `oncebox_torture::protocol` defines them.
//!
//! ```text
//! torture-worker URL MODE SEED POOL SCHEMA
//! ```
//!
//! On `SIGTERM` it finishes its in-flight work.

#![allow(clippy::print_stderr, reason = "its standard error is a log for people")]

mod calls;
mod effects;
mod handlers;
mod points;
mod report;
mod stores;

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use oncebox::store::Select;
use oncebox::{Inbox, InboxBuilder, Mode, Retry};
use oncebox_testing::Faulty;
use oncebox_torture::event::{Backlog, TortureEvent};
use oncebox_torture::protocol::{WorkerCommand, WorkerReport};
use oncebox_torture::scenario::{LEASE, Scenario, TortureMode};
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use crate::calls::Calls;
use crate::effects::EffectStore;
use crate::handlers::{HandlerContext, with_handlers};
use crate::points::Points;
use crate::report::{CommitReporter, report};

const LANES: u16 = 8;
const BATCH: usize = 32;
/// The maximum number of dead letters that are reported and retried at once.
const DEAD_LETTERS: u32 = 500;

type Store<S> = Faulty<S, Points>;

#[tokio::main]
async fn main() {
    if let Ok(filter) = EnvFilter::try_from_env("ONCEBOX_LOG") {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .init();
    }
    let Err(error) = start().await;
    eprintln!("{error:?}");
    end(1)
}

/// `exit`, because the runtime would wait for the thread that reads standard input.
fn end(code: i32) -> ! {
    std::process::exit(code)
}

async fn start() -> Result<Infallible> {
    // Even a stopped worker must end with its harness.
    set_parent_process_death_signal(Some(Signal::KILL)).context("tying this process to its parent")?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, mode, seed, pool, schema] = &arguments[..] else {
        bail!("usage: torture-worker URL MODE SEED POOL SCHEMA");
    };
    let mode = TortureMode::named(mode).with_context(|| format!("unknown mode {mode}"))?;
    let scenario = Scenario { mode, seed: seed.parse().context("the seed")? };
    let pool = pool.parse().context("the size of the pool")?;
    metrics::set_global_recorder(CommitReporter).ok().context("counting unknown commits")?;
    match url.starts_with("postgres:") {
        true => work(stores::postgres(url, pool, schema).await?, scenario).await,
        false => work(stores::sqlite(url, pool).await?, scenario).await,
    }
}

async fn work<S: EffectStore>(store: S, scenario: Scenario) -> Result<Infallible> {
    let points = Points::default();
    let context = HandlerContext::new(scenario, points.clone());
    let builder = Inbox::builder(Faulty::new(store, points.clone()));
    let inbox = with_handlers::<S>(in_mode(builder, scenario.mode), &context).build().await?;
    let (stop, stopped) = watch::channel(false);
    let working = (scenario.mode != TortureMode::Inline).then(|| {
        let (inbox, mut stopped) = (inbox.clone(), stopped.clone());
        tokio::spawn(
            async move { inbox.run(async move { drop(stopped.wait_for(|stop| *stop).await) }).await },
        )
    });
    let mut terminated = signal(SignalKind::terminate()).context("listening to signals")?;
    let mut calls = Calls::new(inbox.clone(), scenario, points.clone());
    // Only now: the harness sends deliveries from here on.
    report(&WorkerReport::Ready);

    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line?,
            _ = terminated.recv() => break,
        };
        let Some(line) = line else { break };
        let command = serde_json::from_str(&line).with_context(|| format!("invalid command: {line}"))?;
        match command {
            WorkerCommand::Deliver { delivery, message, copy } => calls.begin(delivery, message, copy)?,
            WorkerCommand::KillAt(point) => points.kill_at(point),
            WorkerCommand::LoseCommitResults(commits) => points.lose_results(commits),
            WorkerCommand::CancelCalls(number) => calls.cancel(number),
            WorkerCommand::Deallocate(number) => points.deallocate(number),
            WorkerCommand::StopPermanentFailures => context.stop_permanent_failures(),
            WorkerCommand::RetryDeadLetters => retry_dead_letters(&inbox).await,
            WorkerCommand::ReportBacklog => report_backlog(&inbox).await,
            WorkerCommand::ReportClock => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                report(&WorkerReport::Clock(now.as_secs()));
            }
        }
    }
    calls.finish().await;
    stop.send_replace(true);
    if let Some(working) = working {
        working.await??;
    }
    inbox.close().await;
    end(0)
}

fn in_mode<S: EffectStore>(builder: InboxBuilder<Store<S>>, mode: TortureMode) -> InboxBuilder<Store<S>> {
    // The third attempt succeeds by plan. An outage uses up no attempt, so few are enough: more would hide faults that do.
    let retry = Retry::new()
        .max_attempts(6)
        .first_delay(Duration::from_millis(20))
        .max_delay(Duration::from_millis(200));
    let builder = builder.lock_timeout(Duration::from_secs(2));
    let builder = match mode {
        TortureMode::Inline => return builder,
        TortureMode::Stored => builder.stored(),
        TortureMode::Spill => builder.mode(Mode::inline().spill()),
    };
    // Where processes crash without progress, messages run one by one, as many as a process may have had in flight.
    // Small batches keep that short.
    builder.retry(retry).lease(LEASE).poll_every(Duration::from_millis(100)).lanes(LANES).work_batch(BATCH)
}

/// Reports and retries dead letters. The harness repeats this until there are none, so an error is not fatal.
async fn retry_dead_letters<S: EffectStore>(inbox: &Inbox<Store<S>>) {
    let operator = oncebox_testing::operator("torture");
    for letter in inbox.operators().dead_letters(Select::all(), DEAD_LETTERS).await.unwrap_or_default() {
        let Some(message) = letter.key.and_then(|key| key.to_string().parse().ok()) else {
            eprintln!("a dead letter without a message's number as its key");
            continue;
        };
        let (handler, error) = (letter.handler.clone(), letter.error);
        report(&WorkerReport::Event(TortureEvent::DeadLetter { message, handler, error }));
        // Only the one that was reported.
        let reported = Select::all().handler(letter.handler).at(letter.place);
        if let Err(error) = inbox.operators().retry_dead(reported, &operator).await {
            eprintln!("no retry: {error}");
        }
    }
}

async fn report_backlog<S: EffectStore>(inbox: &Inbox<Store<S>>) {
    match inbox.operators().handler_statuses().await {
        Ok(statuses) => {
            let backlog = statuses.iter().fold(Backlog::default(), |sum, status| Backlog {
                lag: sum.lag + status.lag,
                tasks: sum.tasks + status.tasks,
                dead: sum.dead + status.dead,
            });
            report(&WorkerReport::Backlog(backlog));
        }
        Err(error) => eprintln!("no backlog: {error}"),
    }
}
