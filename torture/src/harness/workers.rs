//! The worker processes.

use std::fs::File;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use anyhow::{Context, Result};
use oncebox_servers::process::Signal;
use oncebox_torture::protocol::WorkerCommand;
use oncebox_torture::scenario::Scenario;
use rustix::process::{Pid, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// The settings of a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerSettings {
    pub(crate) url: String,
    pub(crate) schema: String,
    /// The URL of the second database, if the mode has one.
    pub(crate) receiver: Option<String>,
    pub(crate) scenario: Scenario,
    pub(crate) connections: u32,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// The file for its standard error.
    pub(crate) log: PathBuf,
}

/// A line that a worker has written, or its end.
#[derive(Debug)]
pub(crate) struct WorkerOutput {
    pub(crate) worker: usize,
    /// `None` if the worker has ended.
    pub(crate) line: Option<String>,
}

/// A process that runs, or ran until now.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    input: mpsc::UnboundedSender<String>,
}

impl Worker {
    /// Starts a process. Its output is sent under its number.
    pub(crate) fn start(
        worker: usize,
        settings: &WorkerSettings,
        output: mpsc::UnboundedSender<WorkerOutput>,
    ) -> Result<Self> {
        let WorkerSettings { url, schema, receiver, scenario, connections, environment, log } = settings;
        let log = File::options().create(true).append(true).open(log).context("opening the workers' log")?;
        let mut child = Command::new(program()?)
            .args([url, scenario.mode.name(), &scenario.seed.to_string(), &connections.to_string(), schema])
            .args(receiver)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::piped())
            // A file and not a pipe: the harness need not read it, and `--keep` copies it.
            .stderr(log)
            // Ctrl-C in a terminal then reaches the harness only, which ends its workers itself.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("starting a worker")?;
        let mut stdin = child.stdin.take().context("a worker without standard input")?;
        let stdout = child.stdout.take().context("a worker without standard output")?;
        let (input, mut commands) = mpsc::unbounded_channel::<String>();
        // A stopped worker does not read; the harness must not wait for it.
        tokio::spawn(async move {
            while let Some(command) = commands.recv().await {
                if stdin.write_all(command.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                // Fails only when the harness ends.
                let _ = output.send(WorkerOutput { worker, line: Some(line) });
            }
            let _ = output.send(WorkerOutput { worker, line: None });
        });
        Ok(Self { child, input })
    }

    /// Sends a command. A worker that has ended does not receive it.
    pub(crate) fn send(&self, command: WorkerCommand) -> Result<()> {
        let _ = self.input.send(format!("{}\n", serde_json::to_string(&command)?));
        Ok(())
    }

    /// Sends a signal, if the process still runs.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for its end.
    pub(crate) async fn wait(mut self) -> Result<ExitStatus> {
        self.child.wait().await.context("waiting for a worker")
    }
}

/// The worker's program is in the same folder as this one.
fn program() -> Result<PathBuf> {
    let harness = std::env::current_exe().context("finding this program")?;
    Ok(harness.with_file_name("torture-worker"))
}
