//! `cargo xtask torture`: real faults against real databases.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;

const PACKAGE: &str = "oncebox-torture";
const PROGRAM: &str = "torture";

/// Faults for each database in the short run that belongs to the tests.
const SHORT_FAULTS: &str = "30";
const SHORT_MESSAGES: &str = "9000";

/// What to torture.
#[derive(clap::Args, Debug)]
// `--help` is passed on, because only the program knows its options.
#[command(disable_help_flag = true)]
pub(crate) struct TortureOptions {
    /// Arguments of the program: see `--help`
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Replaces this process by the program: another program may read its output, and signals go to it alone. Returns only if
/// it cannot be started.
pub(crate) fn run(workspace: &Workspace, options: &TortureOptions) -> Result<Infallible> {
    // Two programs are needed; `cargo run` would build only the one that it runs.
    let mut build = workspace.cargo();
    build.args(["build", "--release", "--package", PACKAGE]);
    ensure!(
        build.status().context("running cargo")?.success(),
        "cannot build the torture programs: see cargo's output above"
    );
    let mut command = Command::new(workspace.target().join("release").join(PROGRAM));
    command.args(&options.arguments);
    Err(command.exec()).context("running the program")
}

/// Builds the programs as tests are built.
pub(crate) fn build_for_tests(workspace: &Workspace) -> Command {
    let mut build = workspace.cargo();
    build.args(["build", "--package", PACKAGE]);
    build
}

/// The short run that belongs to the tests.
pub(crate) fn short(workspace: &Workspace, may_install: bool) -> Command {
    let mut command = Command::new(workspace.target().join("debug").join(PROGRAM));
    command.args(["--faults", SHORT_FAULTS, "--messages", SHORT_MESSAGES, "--json"]);
    if !may_install {
        command.arg("--no-install");
    }
    command.current_dir(workspace.root());
    command
}
