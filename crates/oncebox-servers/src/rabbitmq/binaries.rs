//! Finding the RabbitMQ server's programs, or installing them.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::apt;

/// Names the folder with the server's programs, ahead of every other place.
pub const RABBITMQ_BIN: &str = "ONCEBOX_RABBITMQ_BIN";

/// Debian's package.
pub const PACKAGE: &str = "rabbitmq-server";

// Debian, the generic archive, Homebrew on either processor. The programs in Debian's `/usr/sbin` change their user, so they
// are no candidates.
const FOLDERS: [&str; 4] =
    ["/usr/lib/rabbitmq/bin", "/opt/rabbitmq/sbin", "/usr/local/sbin", "/opt/homebrew/sbin"];

/// The folder with `rabbitmq-server` and `rabbitmqctl`, if there is one on this machine, and Erlang's `epmd` too.
///
/// Fails only if the environment names a folder that lacks them: taking another version silently would be worse.
pub fn find() -> Result<Option<PathBuf>> {
    if let Some(folder) = env::var_os(RABBITMQ_BIN).map(PathBuf::from) {
        ensure!(
            is_complete(&folder),
            "{RABBITMQ_BIN}={} has no rabbitmq-server and rabbitmqctl",
            folder.display()
        );
        return Ok(Some(folder));
    }
    let folder = FOLDERS.map(PathBuf::from).into_iter().find(|folder| is_complete(folder));
    Ok(folder.filter(|_| has_epmd()))
}

/// Installs the distribution's package, without the server that the distribution would start.
pub fn install() -> Result<PathBuf> {
    apt::install_without_starting(PACKAGE).with_context(|| {
        format!("RabbitMQ's server programs are missing; {RABBITMQ_BIN} may name the folder that has them")
    })?;
    find()?.context("RabbitMQ is installed, but its server programs are nowhere to be found")
}

fn is_complete(folder: &Path) -> bool {
    ["rabbitmq-server", "rabbitmqctl"].iter().all(|program| folder.join(program).is_file())
}

fn has_epmd() -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join("epmd").is_file())
}
