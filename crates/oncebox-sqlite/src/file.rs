//! The database's file: whether it is still the one that was opened.
//!
//! A file that is removed or replaced while it is open still accepts writes. They are lost when the last process closes it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use oncebox_core::Error;

/// The file of a database; none for one in memory.
#[derive(Clone, Debug)]
pub(crate) struct DatabaseFile(Option<Arc<File>>);

#[derive(Debug)]
struct File {
    path: PathBuf,
    /// What it was when the first transaction began.
    opened: OnceLock<FileIdentity>,
}

impl DatabaseFile {
    pub(crate) fn new(path: Option<&Path>) -> Self {
        let file = |path: &Path| {
            // Absolute, because the program may change its working directory.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            Arc::new(File { path, opened: OnceLock::new() })
        };
        Self(path.map(file))
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        self.0.as_ref().map(|file| &*file.path)
    }

    /// Refuses to go on with a file that is no longer where it was.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Some(file) = &self.0 else { return Ok(()) };
        let is_same = match FileIdentity::of(&file.path) {
            Ok(identity) => *file.opened.get_or_init(|| identity) == identity,
            // Before the first transaction the file may be missing: connecting creates it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => file.opened.get().is_none(),
            // Without the right to look, the file counts as the same.
            Err(_) => true,
        };
        match is_same {
            true => Ok(()),
            false => Err(Error::unavailable(
                "the SQLite database was removed or replaced while it was open, and what is written to it would be lost",
                // An I/O error counts as a lost connection, so the work is retried: the file may be put back soon.
                sqlx::Error::Io(io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("put {} back where it was, or start the program again", file.path.display()),
                )),
            )),
        }
    }
}

/// What tells a file from another one at the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    number: u64,
}

impl FileIdentity {
    #[cfg(unix)]
    fn of(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::metadata(path)?;
        Ok(Self { device: file.dev(), number: file.ino() })
    }

    /// Elsewhere a file that is open cannot be removed.
    #[cfg(not(unix))]
    fn of(_path: &Path) -> io::Result<Self> {
        Ok(Self { device: 0, number: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn a_file_that_is_removed_or_replaced_is_noticed_until_it_is_back() {
        let folder = tempfile::tempdir().unwrap();
        let [path, elsewhere] = ["inbox.db", "elsewhere.db"].map(|name| folder.path().join(name));
        let file = DatabaseFile::new(Some(&path));
        file.check().unwrap();
        std::fs::write(&path, "one").unwrap();
        file.check().unwrap();
        std::fs::rename(&path, &elsewhere).unwrap();
        file.check().unwrap_err();
        std::fs::write(&path, "another").unwrap();
        file.check().unwrap_err();
        std::fs::rename(&elsewhere, &path).unwrap();
        file.check().unwrap();
        DatabaseFile::new(None).check().unwrap();
    }
}
