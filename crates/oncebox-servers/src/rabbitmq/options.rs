//! The options of a private server.

use std::path::PathBuf;

/// The options of a private server. By default the version that [`find`](super::find) finds, with the server's own settings.
#[derive(Clone, Debug, Default)]
pub struct RabbitOptions {
    pub(super) bin: Option<PathBuf>,
    pub(super) settings: Vec<(String, String)>,
}

impl RabbitOptions {
    /// Takes the server's programs from `folder`.
    #[must_use]
    pub fn bin(mut self, folder: impl Into<PathBuf>) -> Self {
        self.bin = Some(folder.into());
        self
    }

    /// Adds a setting, as in `rabbitmq.conf`.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }
}
