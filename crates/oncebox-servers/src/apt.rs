//! Installing a server from the distribution's packages.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
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

// Debian asks this program whether the service of a new package may start.
const START_POLICY: &str = "/usr/sbin/policy-rc.d";

/// The same, and the service of the package is not started. An existing policy of the machine is kept.
pub fn install_without_starting(package: &str) -> Result<()> {
    let policy = Path::new(START_POLICY);
    if !is_available() || policy.exists() {
        return install(package);
    }
    fs::write(
        policy,
        "#!/bin/sh\n# Tests start servers of their own. Removed after the installation.\nexit 101\n",
    )
    .and_then(|()| fs::set_permissions(policy, Permissions::from_mode(0o755)))
    .with_context(|| format!("writing {START_POLICY}"))?;
    let installed = install(package);
    fs::remove_file(policy).with_context(|| format!("removing {START_POLICY}"))?;
    installed
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
