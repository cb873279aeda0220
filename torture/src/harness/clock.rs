//! A clock that can be set, for one process.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use oncebox_servers::apt;

/// Debian's package.
const PACKAGE: &str = "faketime";

/// A clock that only the processes with its environment read.
#[derive(Clone, Debug)]
pub(crate) struct FakeClock {
    library: PathBuf,
    file: PathBuf,
}

impl FakeClock {
    /// Creates a clock that a file of this folder sets. Installs the library if it is missing and `may_install`.
    pub(crate) fn create(folder: &Path, may_install: bool) -> Result<Self> {
        let library = match library() {
            Some(library) => library,
            None => {
                ensure!(may_install, "the package `{PACKAGE}` is not installed");
                apt::install(PACKAGE)?;
                library().context("faketime is installed, but its library was not found")?
            }
        };
        let clock = Self { library, file: folder.join("clock") };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets its difference to the real time.
    pub(crate) fn set(&self, seconds: i64) -> Result<()> {
        fs::write(&self.file, format!("{seconds:+}s\n"))
            .with_context(|| format!("writing {}", self.file.display()))
    }

    /// The environment of a process that reads this clock.
    pub(crate) fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            // Seconds between two reads of the file: the clock must jump while the process runs.
            ("FAKETIME_CACHE_DURATION", "1".into()),
            // Timeouts and intervals use the monotonic clock, which cannot jump.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
    }
}

fn library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten().map(|folder| folder.path());
    // The variant for threads: a worker's runtime reads the clock in several of them.
    folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|library| library.is_file())
}
