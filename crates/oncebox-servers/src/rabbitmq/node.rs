//! The node of a server: its ports, its folder, and the commands that run with them.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::find;
use crate::account::OsAccount;
use crate::port;

// The reason of a failed start is followed by reports of all supervisors.
const LOG_TAIL_LINES: usize = 200;

// For each Erlang machine, also those that the server and rabbitmqctl start themselves. Without the first, one that finds no epmd
// starts a daemon, which outlives the server and holds its port. Without the second, it accepts connections from other machines.
const ERL_FLAGS: &str = "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}";

// Each rabbitmqctl listens on one of these ports while it runs. The default range has eleven.
const CTL_PORTS: (&str, &str) = ("32100", "32700");

/// The ports of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) amqp: u16,
    pub(super) epmd: u16,
    dist: u16,
}

impl Ports {
    /// Three free ports.
    pub(super) fn free() -> Result<Ports> {
        loop {
            let ports = Ports { amqp: port::free()?, epmd: port::free()?, dist: port::free()? };
            if ports.amqp != ports.epmd && ports.epmd != ports.dist && ports.dist != ports.amqp {
                return Ok(ports);
            }
        }
    }
}

/// A node that may run or not. Another process can make one from its address, to run `rabbitmqctl`.
#[derive(Clone, Debug)]
pub(super) struct Node {
    bin: PathBuf,
    folder: PathBuf,
    account: Option<OsAccount>,
    pub(super) ports: Ports,
}

impl Node {
    /// A node with its files in this folder.
    pub(super) fn create(
        bin: PathBuf,
        folder: &Path,
        account: Option<OsAccount>,
        ports: Ports,
        settings: &[(String, String)],
    ) -> Result<Node> {
        let node = Node { bin, folder: folder.to_owned(), account, ports };
        let mut config = format!(
            "listeners.tcp.1 = 127.0.0.1:{}\nloopback_users = none\nlog.console = true\n",
            ports.amqp
        );
        for (name, value) in settings {
            config.push_str(&format!("{name} = {value}\n"));
        }
        node.write("rabbitmq.conf", &config, 0o600)?;
        node.write("plugins", "[].\n", 0o600)?;
        // Any text, the same for the server and rabbitmqctl. The folder is closed to others.
        node.write(".erlang.cookie", &format!("ONCEBOX{}{}", ports.amqp, ports.dist), 0o400)?;
        Ok(node)
    }

    /// The node of a server in another process.
    pub(super) fn of_another_process(folder: &Path, amqp: u16, epmd: u16) -> Result<Node> {
        let bin = find()?.context("RabbitMQ's programs are not installed")?;
        let account = account()?;
        // Only the server itself listens on the third port.
        Ok(Node { bin, folder: folder.to_owned(), account, ports: Ports { amqp, epmd, dist: 0 } })
    }

    // Written anew for each start: the server's user owns it.
    fn write(&self, name: &str, text: &str, mode: u32) -> Result<()> {
        let path = self.folder.join(name);
        let written = match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => fs::write(&path, text),
        };
        written
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(mode)))
            .and_then(|()| match self.account {
                Some(OsAccount { uid, gid }) => chown(&path, Some(uid), Some(gid)),
                None => Ok(()),
            })
            .with_context(|| format!("writing {}", path.display()))
    }

    /// The port mapper of Erlang nodes. One that the node started itself would be a daemon, and outlive it.
    pub(super) fn epmd(&self) -> Result<Command> {
        let mut command = self.command("epmd");
        command.args(["-port", &self.ports.epmd.to_string(), "-address", "127.0.0.1"]);
        self.log_to_file(&mut command)?;
        Ok(command)
    }

    /// The server.
    pub(super) fn server(&self) -> Result<Command> {
        let mut command = self.command(self.bin.join("rabbitmq-server"));
        command.env("RABBITMQ_DIST_PORT", self.ports.dist.to_string());
        self.log_to_file(&mut command)?;
        Ok(command)
    }

    /// Runs `rabbitmqctl`, and returns what it prints.
    pub(super) async fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.command(self.bin.join("rabbitmqctl"));
        command.arg("--quiet").args(arguments);
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = output.await?.context("running rabbitmqctl")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        ensure!(
            output.status.success(),
            "rabbitmqctl {} failed: {}\n{}\n{}",
            arguments.join(" "),
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        );
        Ok(text(&output.stdout))
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        // The caller's settings for another server must not affect this one.
        for (name, _) in env::vars_os() {
            if [&b"RABBITMQ_"[..], b"ERL_"].iter().any(|start| name.as_encoded_bytes().starts_with(start)) {
                command.env_remove(name);
            }
        }
        let file = |name: &str| self.folder.join(name);
        command
            .current_dir(&self.folder)
            .env("HOME", &self.folder)
            .env("LC_ALL", "C.UTF-8")
            .env("ERL_EPMD_PORT", self.ports.epmd.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", format!("oncebox{}@localhost", self.ports.amqp))
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_CONFIG_FILE", file("rabbitmq.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", file("plugins"))
            .env("RABBITMQ_MNESIA_BASE", file("data"))
            .env("RABBITMQ_LOGS", "-")
            .env("ERL_FLAGS", ERL_FLAGS)
            .env("RABBITMQ_CTL_DIST_PORT_MIN", CTL_PORTS.0)
            .env("RABBITMQ_CTL_DIST_PORT_MAX", CTL_PORTS.1)
            .stdin(Stdio::null());
        if let Some(account) = self.account {
            account.applies_to(&mut command);
        }
        command
    }

    fn log_to_file(&self, command: &mut Command) -> Result<()> {
        let log = self.open_log()?;
        command.stdout(log.try_clone().context("sharing the server's log")?).stderr(log);
        Ok(())
    }

    /// The folder that holds everything.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("log")
    }

    // Kept across restarts: the lines before a crash explain it.
    fn open_log(&self) -> Result<File> {
        let path = self.log_path();
        let open = OpenOptions::new().create(true).append(true).open(&path);
        open.with_context(|| format!("opening {}", path.display()))
    }

    /// The text that the server has logged since the log had this length.
    pub(super) fn log_since(&self, length: usize) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(log.get(length..).unwrap_or_default()).into_owned()
    }

    /// The length of the log.
    pub(super) fn log_length(&self) -> usize {
        let length = fs::metadata(self.log_path()).map(|log| log.len()).unwrap_or_default();
        usize::try_from(length).unwrap_or_default()
    }

    /// The last lines that the programs wrote.
    pub(super) fn log_tail(&self) -> String {
        let log = self.log_since(0);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }
}

/// The user of the server: nothing needs root.
pub(super) fn account() -> Result<Option<OsAccount>> {
    OsAccount::unprivileged(&["rabbitmq", "nobody"])
}
