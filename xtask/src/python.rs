//! Python, in which the gateway's example of a receiver is written, and its drivers for PostgreSQL and RabbitMQ.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use oncebox_servers::apt;

use crate::steps::Steps;
use crate::workspace::Workspace;

/// Names the Python that has the drivers to the tests.
pub(crate) const TEST_PYTHON: &str = "ONCEBOX_TEST_PYTHON";

const STEP: &str = "Python";
const PACKAGE: &str = "python3";
/// The drivers, and the distribution's packages of them.
const DRIVERS: [&str; 2] = ["psycopg[binary]>=3.1,<4", "pika>=1.3,<2"];
const DRIVER_PACKAGES: [&str; 2] = ["python3-psycopg", "python3-pika"];

/// Installs Python and its drivers if they are missing and installing is allowed. Returns the program that has the drivers. Without
/// Python or a driver a test is skipped, or fails in CI.
pub(crate) fn provide(workspace: &Workspace, may_install: bool, steps: &mut Steps) -> Option<PathBuf> {
    let system = Path::new("python3");
    if !runs(system, "pass") && may_install && apt::is_available() {
        println!("\n==> Python is not installed: installing the distribution's package `{PACKAGE}`");
        if let Err(error) = apt::install(PACKAGE) {
            steps.fail(STEP, format!("{error:#}"));
        }
    }
    let folder = workspace.target().join("python");
    let own = folder.join("bin").join("python3");
    let has_drivers = |python: &Path| runs(python, "import psycopg, pika");
    if !has_drivers(system) && !has_drivers(&own) && may_install && runs(system, "pass") {
        println!("\n==> Python has no drivers for the servers: installing them into {}", folder.display());
        if let Err(error) = install_drivers(&folder, &own) {
            println!("{error:#}");
            // Without a network, or without `venv`.
            for package in DRIVER_PACKAGES.into_iter().filter(|_| apt::is_available()) {
                if let Err(error) = apt::install(package) {
                    println!("{error:#}");
                }
            }
        }
    }
    [system, &own].into_iter().find(|python| has_drivers(python)).map(Path::to_owned)
}

fn install_drivers(folder: &Path, python: &Path) -> Result<()> {
    run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    let mut install = Command::new(python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(DRIVERS);
    run(&mut install)
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("running {command:?}"))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}

/// Whether this Python runs a program without an error.
fn runs(python: &Path, program: &str) -> bool {
    let mut command = Command::new(python);
    command.args(["-c", program]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
