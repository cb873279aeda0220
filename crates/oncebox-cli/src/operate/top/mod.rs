//! `oncebox top`: rates, lag and dead letters, refreshed.

mod sample;
mod screen;

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use oncebox::Operators;
use tokio::signal;
use tokio::time::{sleep_until, timeout};

use sample::{Rates, StatusSample};
use screen::Screen;

use crate::cli::CommonArgs;
use crate::exit::{Usage, is_outage};
use crate::store::{DatabaseTarget, OpenPurpose};
use crate::times::{parse_duration, rough};

/// Options of `top`.
#[derive(clap::Args, Debug)]
pub(crate) struct TopArgs {
    /// The interval between two refreshes
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    every: Duration,
    /// Exit after this number of refreshes
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// A database that takes longer to respond is reported as an outage.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) async fn run(common: &CommonArgs, options: &TopArgs) -> Result<ExitCode> {
    if options.every.is_zero() {
        return Err(Usage("--every is 0: set an interval, for example 1s".into()).into());
    }
    let mut watched = WatchedDatabase { target: DatabaseTarget::of(common)?, operators: None };
    // An error that waiting does not change ends the command, before the screen hides it.
    let first = match watched.sample().await {
        Err(error) if watched.operators.is_none() && !is_outage(&error) => return Err(error),
        first => first,
    };
    let screen = match () {
        () if common.json => Screen::json(),
        () if stdout().is_terminal() => Screen::terminal()?,
        () => Screen::plain(),
    };
    // The screen is restored when it is dropped, however this ends.
    tokio::select! {
        watched = watch(&mut watched, first, options, &screen) => watched,
        stopped = stop() => stopped,
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Waits for Ctrl-C or SIGTERM.
async fn stop() -> Result<()> {
    let mut terminate = signal::unix::signal(signal::unix::SignalKind::terminate())?;
    tokio::select! {
        pressed = signal::ctrl_c() => Ok(pressed?),
        _ = terminate.recv() => Ok(()),
    }
}

/// The watched database. It is opened as soon as it responds.
struct WatchedDatabase {
    target: DatabaseTarget,
    operators: Option<Operators>,
}

impl WatchedDatabase {
    async fn sample(&mut self) -> Result<StatusSample> {
        let operators = match &self.operators {
            Some(operators) => operators,
            None => self.operators.insert(self.target.operators(OpenPurpose::Read).await?),
        };
        let no_response = format!("the database did not respond within {}", rough(RESPONSE_TIMEOUT));
        timeout(RESPONSE_TIMEOUT, StatusSample::take(operators)).await.context(no_response)?
    }
}

async fn watch(
    watched: &mut WatchedDatabase,
    first: Result<StatusSample>,
    options: &TopArgs,
    screen: &Screen,
) -> Result<()> {
    let mut last: Option<StatusSample> = None;
    let (mut sampled, mut count) = (first, 0);
    let mut next = Instant::now();
    loop {
        match sampled {
            Ok(sample) => {
                screen.show(&sample, &Rates::between(last.as_ref(), &sample), &watched.target)?;
                last = Some(sample);
            }
            // The last sample stays, so the next rate covers the whole outage.
            Err(error) => screen.show_error(&error, &watched.target)?,
        }
        count += 1;
        if options.count.is_some_and(|max| count >= max) {
            return Ok(());
        }
        // Refreshes that were missed during an outage are skipped.
        next = (next + options.every).max(Instant::now());
        sleep_until(next.into()).await;
        sampled = watched.sample().await;
    }
}
