//! The process that faults happen to: reads commands from standard input and reports on standard output, as
//! `oncebox_torture::protocol` defines them.
//!
//! ```text
//! torture-worker URL MODE SEED POOL SCHEMA [RECEIVER]
//! ```
//!
//! `RECEIVER` is the URL of the second database, for the mode with an outbox. With a broker, its URL is in the environment. On `SIGTERM` the worker finishes its
//! in-flight work.

#![allow(clippy::print_stderr, reason = "its standard error is a log for people")]

mod calls;
mod effects;
mod handlers;
mod own_transaction;
mod points;
mod queues;
mod receiver;
mod report;
mod sender;
mod services;
mod stores;

use std::convert::Infallible;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use oncebox_testing::Faulty;
use oncebox_torture::protocol::{WorkerCommand, WorkerReport};
use oncebox_torture::scenario::{Scenario, TortureMode};
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use crate::calls::Calls;
use crate::effects::EffectStore;
use crate::handlers::HandlerContext;
use crate::points::Points;
use crate::report::{CommitReporter, report};
use crate::services::Services;

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
    let [url, mode, seed, pool, schema, receiver @ ..] = &arguments[..] else {
        bail!("usage: torture-worker URL MODE SEED POOL SCHEMA [RECEIVER]");
    };
    let mode = TortureMode::named(mode).with_context(|| format!("unknown mode {mode}"))?;
    let scenario = Scenario { mode, seed: seed.parse().context("the seed")? };
    let pool = pool.parse().context("the size of the pool")?;
    metrics::set_global_recorder(CommitReporter { is_stored: mode == TortureMode::Stored })
        .ok()
        .context("counting unknown commits")?;
    let context = HandlerContext::new(scenario, Points::default());
    if url.starts_with("postgres:") {
        let store = stores::postgres(url, pool, schema).await?;
        let receiver = match receiver.first() {
            Some(url) => Some(stores::postgres(url, pool, schema).await?),
            None => None,
        };
        work(Services::build(store, receiver, &context).await?, &context).await
    } else {
        let store = stores::sqlite(url, pool).await?;
        let receiver = match receiver.first() {
            Some(path) => Some(stores::sqlite(path, pool).await?),
            None => None,
        };
        work(Services::build(store, receiver, &context).await?, &context).await
    }
}

async fn work<S: EffectStore>(services: Services<S>, context: &HandlerContext) -> Result<Infallible> {
    let HandlerContext { scenario, points, .. } = context;
    let (stop, stopped) = watch::channel(false);
    let mut working = services.run(&stopped);
    let mut terminated = signal(SignalKind::terminate()).context("listening to signals")?;
    let mut calls = Calls::new(&services, *scenario, points.clone());
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
            WorkerCommand::LoseOutboxResults(commits) => points.lose_outbox_results(commits),
            WorkerCommand::CancelCalls(number) if services.takes_from_queue() => {
                services.drop_consumers(number);
            }
            WorkerCommand::CancelCalls(number) => calls.cancel(number),
            WorkerCommand::Deallocate(number) => points.deallocate(number),
            WorkerCommand::StopPermanentFailures => context.stop_permanent_failures(),
            WorkerCommand::RetryDeadLetters => services.retry_dead_letters().await,
            WorkerCommand::Replay { since_ms } => services.replay(since_ms).await,
            WorkerCommand::ReportBacklog => services.report_backlog().await,
            WorkerCommand::ReportLag => services.report_lag().await,
            WorkerCommand::ReportClock => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                report(&WorkerReport::Clock(now.as_secs()));
            }
        }
    }
    calls.finish().await;
    stop.send_replace(true);
    while let Some(ended) = working.join_next().await {
        ended??;
    }
    services.close().await;
    end(0)
}
