//! The server's programs and files.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{PostgresOptions, find};
use crate::account::OsAccount;
use crate::folder::PrivateFolder;
use crate::process::{OwnedProcess, Signal, describe};

const LOG_TAIL_LINES: usize = 30;

/// A data folder, and the programs, user and settings of its server.
#[derive(Debug)]
pub(super) struct DataFolder {
    folder: PrivateFolder,
    account: Option<OsAccount>,
    bin: PathBuf,
    settings: Vec<(String, String)>,
}

impl DataFolder {
    pub(super) async fn initialise(options: PostgresOptions) -> Result<DataFolder> {
        let bin = match options.bin {
            Some(bin) => bin,
            None => {
                find()?.context("PostgreSQL's server programs are not installed: install `postgresql`")?
            }
        };
        let data = DataFolder::empty(bin, options.settings, options.parent.as_deref())?;
        // No sync: an empty data folder need not survive a power failure.
        let arguments = ["-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8", "-U", "postgres"];
        data.run("initdb", &arguments).await?;
        Ok(data)
    }

    /// Copies the data of the server on this port; a server on the copy is its standby.
    pub(super) async fn copy(&self, port: u16) -> Result<DataFolder> {
        let data = DataFolder::empty(self.bin.clone(), self.settings.clone(), self.folder.path().parent())?;
        let port = port.to_string();
        let arguments =
            ["-R", "-X", "stream", "-c", "fast", "-h", "127.0.0.1", "-p", &port, "-U", "postgres"];
        // With sync: a standby that confirms must have the copy on disk.
        data.run("pg_basebackup", &arguments).await?;
        Ok(data)
    }

    fn empty(bin: PathBuf, settings: Vec<(String, String)>, parent: Option<&Path>) -> Result<DataFolder> {
        // PostgreSQL refuses to run as root.
        let account = OsAccount::unprivileged(&["postgres", "nobody"])?;
        let folder = match parent {
            Some(parent) => PrivateFolder::create_in(parent, "postgres", account)?,
            None => PrivateFolder::create("postgres", account)?,
        };
        Ok(DataFolder { folder, account, bin, settings })
    }

    async fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let mut command = self.command(program)?;
        command.args(arguments);
        let status = self.spawn(&mut command, Signal::TERM)?.wait().await?;
        if !status.success() {
            bail!("{program} {}:\n{}", describe(status), self.log_tail());
        }
        Ok(())
    }

    /// Starts a server that listens on `port`.
    pub(super) fn spawn_server(&self, port: u16) -> Result<OwnedProcess> {
        let mut command = self.command("postgres")?;
        command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k"]).arg(self.folder.path());
        for (name, value) in &self.settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        // A fast shutdown: rolls back open transactions and closes all connections.
        self.spawn(&mut command, Signal::INT)
    }

    fn spawn(&self, command: &mut Command, stop: Signal) -> Result<OwnedProcess> {
        OwnedProcess::spawn(command, stop, Some(self.folder.path())).with_context(|| match self.account {
            Some(OsAccount { uid, .. }) => format!("running PostgreSQL as user {uid}"),
            None => "running PostgreSQL".into(),
        })
    }

    // A program on this data folder that writes to its log.
    fn command(&self, program: &str) -> Result<Command> {
        let log = self.open_log()?;
        let mut command = Command::new(self.bin.join(program));
        command
            .arg("-D")
            .arg(self.path())
            // The caller's folder may be closed to this user.
            .current_dir(self.folder.path())
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("sharing the server's log")?)
            .stderr(log);
        // The caller's settings for another server must not affect this one.
        for (name, _) in env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
            command.env_remove(name);
        }
        if let Some(account) = self.account {
            account.applies_to(&mut command);
        }
        Ok(command)
    }

    /// The folder that PostgreSQL calls its data directory.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The folder that holds everything.
    pub(super) fn root(&self) -> &Path {
        self.folder.path()
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    // Kept across restarts: the lines before a crash explain it.
    fn open_log(&self) -> Result<File> {
        let path = self.log_path();
        let open = OpenOptions::new().create(true).append(true).open(&path);
        open.with_context(|| format!("opening {}", path.display()))
    }

    /// The last lines that the programs wrote.
    pub(super) fn log_tail(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// Whether the last server could not start because another process listens on its port.
    pub(super) fn lost_its_port(&self) -> bool {
        self.log_tail().contains("Address already in use")
    }
}
