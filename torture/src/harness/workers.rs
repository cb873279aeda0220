//! The worker processes.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result};
use oncebox_servers::process::{Signal, describe};
use oncebox_torture::plan::Plan;
use rustix::process::{Pid, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// What a worker was started with.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) plan: Plan,
    pub(crate) connections: u32,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Where its complaints go.
    pub(crate) log: PathBuf,
}

/// Something that a worker said, or its end.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) worker: usize,
    /// Nothing more will come, if nothing is here.
    pub(crate) line: Option<String>,
}

/// A process that is alive, or was until now.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    tell: mpsc::UnboundedSender<String>,
}

impl Worker {
    /// Starts a process. What it says comes in at `hear`, under its number.
    pub(crate) fn start(worker: usize, start: &Start, hear: mpsc::UnboundedSender<Heard>) -> Result<Self> {
        let Start { url, schema, plan, connections, environment, log } = start;
        let log = File::options().create(true).append(true).open(log).context("opening the workers' log")?;
        let mut child = Command::new(program()?)
            .args([url, plan.mode.name(), &plan.seed.to_string(), &connections.to_string(), schema])
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("starting a worker")?;
        let mut input = child.stdin.take().context("a worker's input")?;
        let mut output = BufReader::new(child.stdout.take().context("a worker's output")?).lines();
        let (tell, mut told) = mpsc::unbounded_channel::<String>();
        // Whoever is stopped does not read; the harness must not wait for him.
        tokio::spawn(async move {
            while let Some(line) = told.recv().await {
                if input.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        tokio::spawn(async move {
            while let Ok(Some(line)) = output.next_line().await {
                let _ = hear.send(Heard { worker, line: Some(line) });
            }
            let _ = hear.send(Heard { worker, line: None });
        });
        Ok(Self { child, tell })
    }

    /// Tells it something; the dead do not listen.
    pub(crate) fn tell(&self, line: &str) {
        let _ = self.tell.send(format!("{line}\n"));
    }

    /// Sends a signal, if it is still there.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for its end, which must be near; how it ended.
    pub(crate) async fn ended(mut self) -> Result<String> {
        Ok(describe(self.child.wait().await.context("waiting for a worker")?))
    }
}

/// Beside this program.
fn program() -> Result<PathBuf> {
    let this = std::env::current_exe().context("where this program is")?;
    Ok(this.with_file_name("torture-worker"))
}
