//! The `oncebox` program: a gateway for services in any language, and the operator's tool.

#![forbid(unsafe_code)]

mod cli;
mod demo;
mod exit;
mod operate;
mod output;
mod store;
mod table;
mod times;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.run().await {
        Ok(code) => code,
        Err(error) => exit::explain(&error),
    }
}
