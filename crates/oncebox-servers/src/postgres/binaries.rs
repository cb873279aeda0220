//! Finding the PostgreSQL server's programs, or installing them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::apt;

/// Names the folder with the server's programs, ahead of every other place.
pub const POSTGRES_BIN: &str = "ONCEBOX_POSTGRES_BIN";

/// Debian's package.
pub const PACKAGE: &str = "postgresql";

// Folders that hold one folder per version, as (parent, start of the version's folder name): Debian,
// Red Hat, Homebrew on either processor.
const VERSIONED: [(&str, &str); 4] = [
    ("/usr/lib/postgresql", ""),
    ("/usr", "pgsql-"),
    ("/usr/local/opt", "postgresql@"),
    ("/opt/homebrew/opt", "postgresql@"),
];

/// The folder with `initdb` and `postgres`, if there is one on this machine.
///
/// Fails only if the environment names a folder that lacks them: taking another version silently would be
/// worse.
pub fn find() -> Result<Option<PathBuf>> {
    if let Some(folder) = env::var_os(POSTGRES_BIN).map(PathBuf::from) {
        ensure!(is_complete(&folder), "{POSTGRES_BIN}={} has no initdb and postgres", folder.display());
        return Ok(Some(folder));
    }
    let candidates = configured().into_iter().chain(versioned()).chain(unversioned());
    Ok(candidates.into_iter().find(|folder| is_complete(folder)))
}

/// Installs the distribution's package, without the server that the distribution would start.
pub fn install() -> Result<PathBuf> {
    if apt::is_available() {
        prevent_own_cluster(Path::new("/etc/postgresql-common/createcluster.d"))?;
    }
    apt::install(PACKAGE).with_context(|| {
        format!("PostgreSQL's server programs are missing; {POSTGRES_BIN} may name the folder that has them")
    })?;
    find()?.context("PostgreSQL is installed, but its server programs are nowhere to be found")
}

// A file of our own, since the package would ask what to do with a `createcluster.conf` that it did not write.
fn prevent_own_cluster(folder: &Path) -> Result<()> {
    let file = folder.join("oncebox.conf");
    if file.exists() {
        return Ok(());
    }
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&file, "# Tests start servers of their own.\ncreate_main_cluster = false\n"))
        .with_context(|| format!("writing {}", file.display()))
}

fn is_complete(folder: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|program| folder.join(program).is_file())
}

// If only the client is installed, this is a folder without a server.
fn configured() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(folder.trim()))
}

fn versioned() -> Vec<PathBuf> {
    VERSIONED.iter().flat_map(|(parent, start)| newest_first(Path::new(parent), start)).collect()
}

fn newest_first(parent: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut versions: Vec<(Vec<u32>, PathBuf)> = entries
        .filter_map(|entry| {
            let version = version(entry.file_name().to_str()?.strip_prefix(start)?)?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort_by(|one, other| other.cmp(one));
    versions.into_iter().map(|(_, folder)| folder).collect()
}

// Numbers, since as text 9.6 would be newer than 15.
fn version(text: &str) -> Option<Vec<u32>> {
    text.split('.').map(|part| part.parse().ok()).collect()
}

fn unversioned() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    [PathBuf::from("/usr/local/pgsql/bin")].into_iter().chain(env::split_paths(&path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_comes_first_and_other_folders_are_left_out() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["pgsql-9.6", "pgsql-15", "pgsql-16", "pgsql-common", "15"] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        let expected = ["pgsql-16", "pgsql-15", "pgsql-9.6"].map(|name| parent.path().join(name).join("bin"));
        assert_eq!(newest_first(parent.path(), "pgsql-"), expected);
        assert!(newest_first(Path::new("/nowhere"), "").is_empty());
    }

    #[test]
    fn the_distributions_own_cluster_is_prevented_once() {
        let folder = tempfile::tempdir().unwrap();
        let nested = folder.path().join("createcluster.d");
        prevent_own_cluster(&nested).unwrap();
        prevent_own_cluster(&nested).unwrap();
        let text = fs::read_to_string(nested.join("oncebox.conf")).unwrap();
        assert!(text.contains("create_main_cluster = false"));
    }
}
