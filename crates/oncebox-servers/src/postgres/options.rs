//! The options of a private server.

use std::path::PathBuf;

/// The options of a private server.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    pub(super) bin: Option<PathBuf>,
    pub(super) settings: Vec<(String, String)>,
    pub(super) parent: Option<PathBuf>,
}

impl Default for PostgresOptions {
    /// The version that [`find`](super::find) finds, with the server's own (durable) defaults,
    /// and room for many tests at the same time.
    fn default() -> Self {
        let settings = vec![("max_connections".into(), "300".into())];
        PostgresOptions { bin: None, settings, parent: None }
    }
}

impl PostgresOptions {
    /// Takes the server's programs from `folder`.
    #[must_use]
    pub fn bin(mut self, folder: impl Into<PathBuf>) -> Self {
        self.bin = Some(folder.into());
        self
    }

    /// Sets a server parameter, as in `postgresql.conf`; the last one of a name counts.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Keeps everything in a folder inside of this one, such as a disk of its own.
    #[must_use]
    pub fn inside(mut self, parent: impl Into<PathBuf>) -> Self {
        self.parent = Some(parent.into());
        self
    }
}
