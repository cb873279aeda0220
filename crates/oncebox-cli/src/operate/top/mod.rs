//! `oncebox top`: rates, lag and dead letters, again and again.

mod sample;
mod screen;

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use oncebox::LogStore;
use tokio::signal;
use tokio::time::{sleep_until, timeout};

use sample::{Rates, Sample};
use screen::Screen;

use crate::cli::Common;
use crate::exit::Usage;
use crate::store::{For, Target, with_store};
use crate::times::parse_duration;

/// How often to look.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The time between two looks
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    every: Duration,
    /// End after so many looks
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
}

/// A database that takes longer to answer is in trouble.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) async fn run(common: &Common, options: &Options) -> Result<ExitCode> {
    if options.every.is_zero() {
        return Err(Usage("--every is zero: set a time greater than that".into()).into());
    }
    let target = Target::of(common)?;
    let opened = target.open_ready(For::Looking).await?;
    let screen = match () {
        () if common.json => Screen::json(),
        () if stdout().is_terminal() => Screen::terminal()?,
        () => Screen::plain(),
    };
    // The screen is restored when it is dropped, however this ends.
    with_store!(opened, store => tokio::select! {
        watched = watch(&store, &target, options, &screen) => watched,
        stopped = stop() => stopped,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Ctrl-C, or what a supervisor sends.
async fn stop() -> Result<()> {
    let mut terminate = signal::unix::signal(signal::unix::SignalKind::terminate())?;
    tokio::select! {
        pressed = signal::ctrl_c() => Ok(pressed?),
        _ = terminate.recv() => Ok(()),
    }
}

async fn watch<S: LogStore>(store: &S, target: &Target, options: &Options, screen: &Screen) -> Result<()> {
    let mut last: Option<Sample> = None;
    let mut looks = 0;
    let mut next = Instant::now();
    loop {
        match look(store).await {
            Ok(sample) => {
                screen.show(&sample, &Rates::between(last.as_ref(), &sample), target)?;
                last = Some(sample);
            }
            // What was known stays: the next rate is that of the whole time in between.
            Err(trouble) => screen.show_trouble(&trouble, target)?,
        }
        looks += 1;
        if options.count.is_some_and(|count| looks >= count) {
            return Ok(());
        }
        next = (next + options.every).max(Instant::now());
        sleep_until(next.into()).await;
    }
}

async fn look<S: LogStore>(store: &S) -> Result<Sample> {
    timeout(PATIENCE, Sample::take(store)).await.context("the database does not answer")?
}
