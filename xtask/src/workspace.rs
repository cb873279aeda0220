//! The project's folder, and calls of its cargo.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

// Variables that cargo sets for the program it runs. Inherited, they would name the wrong package to the nested cargo and
// make build scripts that look at it run again.
const ABOUT_THIS_PROGRAM: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_"];

/// The cargo workspace in which this program was called.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    pub(crate) fn locate() -> Result<Workspace> {
        let output = cargo()
            .args(["locate-project", "--workspace", "--message-format", "plain"])
            .output()
            .context("running cargo")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        let manifest = String::from_utf8(output.stdout).context("the workspace's path is not text")?;
        let root = Path::new(manifest.trim()).parent().context("the workspace's manifest has no folder")?;
        Ok(Workspace { root: root.to_owned() })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Cargo, called at the root.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = cargo();
        command.current_dir(&self.root);
        command
    }

    /// Whether nextest, the faster test runner, is installed.
    pub(crate) fn has_nextest(&self) -> bool {
        let mut version = self.cargo();
        version.args(["nextest", "--version"]).stdin(Stdio::null());
        version.output().is_ok_and(|output| output.status.success())
    }

    /// The folder of build results.
    pub(crate) fn target(&self) -> PathBuf {
        self.root.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
    }
}

// The cargo that runs this program, even if PATH has another one.
fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    for (name, _) in env::vars_os() {
        let name_starts_with = |start: &&str| name.as_encoded_bytes().starts_with(start.as_bytes());
        if ABOUT_THIS_PROGRAM.iter().any(name_starts_with) {
            command.env_remove(&name);
        }
    }
    command
}
