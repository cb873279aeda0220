//! Installing a server from the distribution's packages.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::account;

/// Whether [`install`] can work here: it needs root and `apt-get`.
#[must_use]
pub fn is_available() -> bool {
    account::is_root() && ["/usr/bin/apt-get", "/bin/apt-get"].iter().any(|path| Path::new(path).exists())
}

/// Installs `package` without asking anything. Blocks until it is done, minutes perhaps: an installation cut
/// in half would leave the machine worse than before.
pub fn install(package: &str) -> Result<()> {
    if !is_available() {
        bail!("installing needs root and apt-get: install the package `{package}` by hand");
    }
    // Stale package lists name files that the mirror no longer has.
    run(&["update"])?;
    run(&["install", "--yes", "--no-install-recommends", package])
        .with_context(|| format!("install the package `{package}` by hand"))
}

fn run(arguments: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .arg("--quiet")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .status()
        .context("running apt-get")?;
    ensure!(status.success(), "apt-get {} failed: {status}", arguments.join(" "));
    Ok(())
}
