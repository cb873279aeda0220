//! Python, in which the gateway's example of a receiver is written, and its driver for PostgreSQL.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use oncebox_servers::apt;

use crate::steps::Steps;
use crate::workspace::Workspace;

/// Names the Python that has the driver to the tests.
pub(crate) const TEST_PYTHON: &str = "ONCEBOX_TEST_PYTHON";

const STEP: &str = "Python";
const PACKAGE: &str = "python3";
/// The driver, and the distribution's package of it.
const DRIVER: &str = "psycopg[binary]>=3.1,<4";
const DRIVER_PACKAGE: &str = "python3-psycopg";

/// Installs Python and its driver for PostgreSQL if they are missing and installing is allowed. Returns the program that has the
/// driver. Without Python or the driver a test is skipped, or fails in CI.
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
    let has_driver = |python: &Path| runs(python, "import psycopg");
    if !has_driver(system) && !has_driver(&own) && may_install && runs(system, "pass") {
        println!("\n==> Python has no driver for PostgreSQL: installing it into {}", folder.display());
        if let Err(error) = install_driver(&folder, &own) {
            println!("{error:#}");
            // Without a network, or without `venv`.
            if apt::is_available()
                && let Err(error) = apt::install(DRIVER_PACKAGE)
            {
                println!("{error:#}");
            }
        }
    }
    [system, &own].into_iter().find(|python| has_driver(python)).map(Path::to_owned)
}

fn install_driver(folder: &Path, python: &Path) -> Result<()> {
    run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    run(Command::new(python).args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", DRIVER]))
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
