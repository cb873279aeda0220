//! Python, in which the gateway's example of a receiver is written.

use std::process::{Command, Stdio};

use oncebox_servers::apt;

use crate::steps::Steps;

const STEP: &str = "Python";
const PACKAGE: &str = "python3";

/// Installs Python if it is missing and installing is allowed. Without Python a test is skipped, or fails in CI.
pub(crate) fn provide(may_install: bool, steps: &mut Steps) {
    if is_there() || !may_install || !apt::is_available() {
        return;
    }
    println!("\n==> Python is not installed: installing the distribution's package `{PACKAGE}`");
    if let Err(error) = apt::install(PACKAGE) {
        steps.fail(STEP, format!("{error:#}"));
    }
}

fn is_there() -> bool {
    let mut python = Command::new("python3");
    python.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}
