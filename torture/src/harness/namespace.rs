//! A private mount namespace, so that a small disk is removed with the last process that uses it.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Result;

/// Set in a process that runs in the namespace.
const INSIDE: &str = "ONCEBOX_TORTURE_INSIDE";

/// Starts this program again in a private mount namespace if that is possible; continues without one otherwise.
pub(crate) fn enter() -> Result<()> {
    if std::env::var_os(INSIDE).is_some() || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // Tried first: `exec` below replaces this process and could not fall back.
    let probe = Command::new("unshare").args(["--mount", "--propagation", "private", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    let this = std::env::current_exe()?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--"]).arg(this).args(std::env::args_os().skip(1));
    Err(command.env(INSIDE, "1").exec().into())
}
