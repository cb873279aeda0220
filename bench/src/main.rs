//! How fast Oncebox is beside other inboxes and beside none: `cargo xtask bench inline`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that speaks to a person")]

mod arena;
mod business;
mod contenders;
mod feed;
mod measure;
mod message;
mod options;
mod report;
mod results;
mod scenarios;
mod stats;
mod store;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;

use options::{Command, Options, StoreName};
use results::{Comparison, doubts};

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let Command::Inline(options) = Command::parse();
    tokio::select! {
        // Returning ends the server and removes its files.
        interrupted = tokio::signal::ctrl_c() => interrupted.map(|()| ExitCode::from(130)).map_err(Into::into),
        result = inline(&options) => result,
    }
}

async fn inline(options: &Options) -> Result<ExitCode> {
    let begin = Instant::now();
    let comparisons = measure(options).await?;
    eprintln!("measured in {} s\n", begin.elapsed().as_secs());
    match options.json {
        true => print!("{}", report::json(&comparisons)?),
        false => print!("{}", report::tables(&comparisons)),
    }
    let doubts = doubts(&comparisons);
    for doubt in &doubts {
        eprintln!("INVALID: {doubt}");
    }
    Ok(if doubts.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(options: &Options) -> Result<Vec<Comparison>> {
    let mut all = Vec::new();
    if options.wants_store(StoreName::Postgres) {
        all.extend(scenarios::run::<store::Postgres>(options).await?);
    }
    if options.wants_store(StoreName::Sqlite) {
        all.extend(scenarios::run::<store::Sqlite>(options).await?);
    }
    Ok(all)
}
