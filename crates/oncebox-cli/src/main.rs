//! The `oncebox` program: a gateway for services in any language, and the operator's tool.

#![forbid(unsafe_code)]

mod broker;
mod cli;
mod config;
mod deliver;
mod demo;
mod exit;
mod operate;
mod output;
mod serve;
mod source;
mod store;
mod table;
mod times;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;

#[tokio::main]
async fn main() -> ExitCode {
    // Without this, rustls panics if dependencies enable two providers. An error means that one is installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = Cli::parse();
    // Not returned from `main`, which would print the debug form and always exit with 1.
    match cli.run().await {
        Ok(code) => code,
        Err(error) => exit::explain(&error),
    }
}
