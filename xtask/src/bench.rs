//! `cargo xtask bench`: builds the benchmark in release mode, and runs it.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;

/// What to measure.
#[derive(clap::Args, Debug)]
pub(crate) struct BenchOptions {
    /// Arguments of the benchmark: see `inline --help`, `stored --help`, `outbox --help` and `gateway --help`
    #[arg(value_name = "ARGUMENT", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Replaces this process by the benchmark: another program may read its output, and signals go to it alone. Returns only if
/// it cannot be started.
pub(crate) fn run(workspace: &Workspace, options: &BenchOptions) -> Result<Infallible> {
    if options.arguments.first().is_some_and(|what| what == "gateway") {
        // This benchmark starts the program, and `cargo run` builds only the benchmark itself.
        let mut build = workspace.cargo();
        build.args(["build", "--release", "--package", "oncebox-cli"]);
        ensure!(
            build.status().context("running cargo")?.success(),
            "cannot build oncebox-cli: see cargo's output above"
        );
    }
    let mut command = workspace.cargo();
    command.args(["run", "--release", "--package", "oncebox-bench", "--"]).args(&options.arguments);
    Err(command.exec()).context("running cargo")
}
