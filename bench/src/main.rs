//! The benchmark: Oncebox compared with other inboxes and with none. `cargo xtask bench inline|stored|outbox|broker|gateway`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that speaks to a person")]

mod arena;
mod broker;
mod business;
mod contenders;
mod feed;
mod gateway;
mod measure;
mod message;
mod options;
mod outbox;
mod report;
mod results;
mod scenarios;
mod stats;
mod store;
mod stored;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;

use options::{Asked, Command, InlineScenario, MeasureOptions, OutboxScenario, StoreName, StoredScenario};
use results::{Comparison, doubts};

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let command = Command::parse();
    tokio::select! {
        // Returning ends the server and removes its files.
        interrupted = tokio::signal::ctrl_c() => interrupted.map(|()| ExitCode::from(130)).map_err(Into::into),
        result = run(&command) => result,
    }
}

async fn run(command: &Command) -> Result<ExitCode> {
    let begin = Instant::now();
    let (options, comparisons) = match command {
        Command::Inline(asked) => (&asked.options, inline(asked).await?),
        Command::Stored(asked) => (&asked.options, stored(asked).await?),
        Command::Outbox(asked) => (&asked.options, outbox(asked).await?),
        Command::Broker(options) => {
            (&options.asked.options, broker::run(&options.asked, options.broker).await?)
        }
        Command::Gateway(options) => return gateway::run(options).await,
    };
    eprintln!("measured in {} s\n", begin.elapsed().as_secs());
    print(options, &comparisons)?;
    let doubts = doubts(&comparisons);
    for doubt in &doubts {
        eprintln!("INVALID: {doubt}");
    }
    Ok(if doubts.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(options: &MeasureOptions, comparisons: &[Comparison]) -> Result<()> {
    match options.json {
        true => print!("{}", report::json(comparisons)?),
        false => print!("{}", report::tables(comparisons)),
    }
    Ok(())
}

async fn inline(asked: &Asked<InlineScenario>) -> Result<Vec<Comparison>> {
    let mut all = Vec::new();
    if asked.options.wants_store(StoreName::Postgres) {
        all.extend(scenarios::run::<store::Postgres>(asked).await?);
    }
    if asked.options.wants_store(StoreName::Sqlite) {
        all.extend(scenarios::run::<store::Sqlite>(asked).await?);
    }
    Ok(all)
}

async fn stored(asked: &Asked<StoredScenario>) -> Result<Vec<Comparison>> {
    let mut all = Vec::new();
    if asked.options.wants_store(StoreName::Postgres) {
        all.extend(stored::run::<store::Postgres>(asked).await?);
    }
    if asked.options.wants_store(StoreName::Sqlite) {
        all.extend(stored::run::<store::Sqlite>(asked).await?);
    }
    Ok(all)
}

async fn outbox(asked: &Asked<OutboxScenario>) -> Result<Vec<Comparison>> {
    let mut all = Vec::new();
    if asked.options.wants_store(StoreName::Postgres) {
        all.extend(outbox::run::<store::Postgres>(asked).await?);
    }
    if asked.options.wants_store(StoreName::Sqlite) {
        all.extend(outbox::run::<store::Sqlite>(asked).await?);
    }
    Ok(all)
}
