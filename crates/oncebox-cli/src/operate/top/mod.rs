//! `oncebox top`: rates, lag and dead letters, again and again.

mod sample;
mod screen;

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use oncebox::Operators;
use tokio::signal;
use tokio::time::{sleep_until, timeout};

use sample::{Rates, Sample};
use screen::Screen;

use crate::cli::Common;
use crate::exit::{Usage, is_outage};
use crate::store::{For, Target};
use crate::times::parse_duration;

/// How often to look.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The time between two looks
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    every: Duration,
    /// End after so many looks
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// A database that takes longer to respond is reported as an outage.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) async fn run(common: &Common, options: &Options) -> Result<ExitCode> {
    if options.every.is_zero() {
        return Err(Usage("--every is zero: set a time greater than that".into()).into());
    }
    let mut watched = Watched { target: Target::of(common)?, operators: None };
    // What no waiting helps against is said where it stays to be read, and before there is a screen.
    let first = match watched.look().await {
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

/// Ctrl-C, or what a supervisor sends.
async fn stop() -> Result<()> {
    let mut terminate = signal::unix::signal(signal::unix::SignalKind::terminate())?;
    tokio::select! {
        pressed = signal::ctrl_c() => Ok(pressed?),
        _ = terminate.recv() => Ok(()),
    }
}

/// A database that is looked at, opened as soon as that can be.
struct Watched {
    target: Target,
    operators: Option<Operators>,
}

impl Watched {
    async fn look(&mut self) -> Result<Sample> {
        let operators = match &self.operators {
            Some(operators) => operators,
            None => self.operators.insert(self.target.operators(For::Looking).await?),
        };
        timeout(RESPONSE_TIMEOUT, Sample::take(operators)).await.context("the database does not answer")?
    }
}

async fn watch(
    watched: &mut Watched,
    first: Result<Sample>,
    options: &Options,
    screen: &Screen,
) -> Result<()> {
    let mut last: Option<Sample> = None;
    let (mut looked, mut looks) = (first, 0);
    let mut next = Instant::now();
    loop {
        match looked {
            Ok(sample) => {
                screen.show(&sample, &Rates::between(last.as_ref(), &sample), &watched.target)?;
                last = Some(sample);
            }
            // What was known stays: the next rate is that of the whole time in between.
            Err(trouble) => screen.show_trouble(&trouble, &watched.target)?,
        }
        looks += 1;
        if options.count.is_some_and(|count| looks >= count) {
            return Ok(());
        }
        next = (next + options.every).max(Instant::now());
        sleep_until(next.into()).await;
        looked = watched.look().await;
    }
}
