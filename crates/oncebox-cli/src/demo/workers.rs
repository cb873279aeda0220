//! The worker processes of the demo: started, killed, and started again.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::demo::WORKER_COMMAND;
use crate::demo::protocol::{Setup, WorkerReport};

const SIGKILL: i32 = 9;
/// The maximum time for a worker to end on request.
const END_LIMIT: Duration = Duration::from_secs(10);

/// A line that a worker has written, or its end.
#[derive(Debug)]
pub(super) struct WorkerOutput {
    pub(super) worker: usize,
    /// `None` if the worker has ended.
    pub(super) line: Option<String>,
}

/// Whether a worker takes deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerState {
    Starting,
    Open,
    Killed,
}

/// A process that runs, or ran until now.
#[derive(Debug)]
struct WorkerProcess {
    child: Child,
    input: mpsc::UnboundedSender<Vec<u8>>,
    /// The last line of its standard error, when it has ended.
    last_error: JoinHandle<Option<String>>,
    state: WorkerState,
}

/// All workers. Dropping this kills them.
#[derive(Debug)]
pub(super) struct WorkerProcesses {
    setup: Setup,
    processes: Vec<WorkerProcess>,
    output_sender: mpsc::UnboundedSender<WorkerOutput>,
    output: mpsc::UnboundedReceiver<WorkerOutput>,
}

impl WorkerProcesses {
    /// Starts this number of workers.
    pub(super) fn start(setup: Setup, count: usize) -> Result<Self> {
        let (output_sender, output) = mpsc::unbounded_channel();
        let mut workers = Self { setup, processes: Vec::new(), output_sender, output };
        for number in 0..count {
            let process = workers.start_one(number)?;
            workers.processes.push(process);
        }
        Ok(workers)
    }

    fn start_one(&self, number: usize) -> Result<WorkerProcess> {
        let program = std::env::current_exe().context("cannot find this program to start workers with it")?;
        let mut child = Command::new(&program)
            .arg(WORKER_COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for the demo, which ends its workers.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start a worker: {} {WORKER_COMMAND}", program.display()))?;
        let stdin = child.stdin.take().context("a worker has no standard input")?;
        let stdout = child.stdout.take().context("a worker has no standard output")?;
        let stderr = child.stderr.take().context("a worker has no standard error")?;
        let (input, lines) = mpsc::unbounded_channel();
        tokio::spawn(write_lines(lines, stdin));
        tokio::spawn(read_lines(number, BufReader::new(stdout).lines(), self.output_sender.clone()));
        // Read all the time, because a full pipe would block the worker.
        let last_error = tokio::spawn(last_line(stderr));
        let process = WorkerProcess { child, input, last_error, state: WorkerState::Starting };
        process.send(&self.setup)?;
        Ok(process)
    }

    /// The workers that take deliveries.
    pub(super) fn open(&self) -> Vec<usize> {
        let is_open = |number: &usize| self.processes[*number].state == WorkerState::Open;
        (0..self.processes.len()).filter(is_open).collect()
    }

    /// The id of a worker's process.
    pub(super) fn pid(&self, worker: usize) -> Option<u32> {
        self.processes[worker].child.id()
    }

    /// Sends a line to a worker. One that has ended does not receive it.
    pub(super) fn send(&self, worker: usize, line: &impl Serialize) -> Result<()> {
        self.processes[worker].send(line)
    }

    /// Kills a worker, whatever it is doing.
    pub(super) fn kill(&mut self, worker: usize) -> Result<()> {
        let process = &mut self.processes[worker];
        process.state = WorkerState::Killed;
        process.child.start_kill().context("cannot kill a worker")
    }

    /// The next output of any worker, within that time.
    pub(super) async fn next_output(&mut self, time: Duration) -> Option<WorkerOutput> {
        timeout(time, self.output.recv()).await.ok().flatten()
    }

    /// Output that has already arrived.
    pub(super) fn pending_output(&mut self) -> Option<WorkerOutput> {
        self.output.try_recv().ok()
    }

    /// Parses a line. A worker that reports that it is ready takes deliveries from now on, unless it was killed.
    pub(super) fn parse(&mut self, worker: usize, line: &str) -> Result<WorkerReport> {
        let report =
            serde_json::from_str(line).with_context(|| format!("invalid line of worker {worker}: {line}"))?;
        let state = &mut self.processes[worker].state;
        if report == WorkerReport::Ready && *state == WorkerState::Starting {
            *state = WorkerState::Open;
        }
        Ok(report)
    }

    /// Replaces a worker that was killed by another one. Returns whether it was killed from outside, which users may do.
    pub(super) async fn replace(&mut self, number: usize) -> Result<bool> {
        let successor = self.start_one(number)?;
        let mut ended = std::mem::replace(&mut self.processes[number], successor);
        let status = ended.child.wait().await.context("cannot wait for a worker")?;
        match ended.state {
            WorkerState::Killed => Ok(false),
            WorkerState::Open if status.signal() == Some(SIGKILL) => Ok(true),
            state => {
                let error = ended.last_error.await.ok().flatten();
                let reason = error.as_deref().unwrap_or("it reported no error");
                bail!("worker {number} {}: {reason}", describe_end(status, state))
            }
        }
    }

    /// Lets all workers finish their in-flight work, and waits for their end.
    pub(super) async fn finish(self) -> Result<()> {
        for WorkerProcess { mut child, input, .. } in self.processes {
            // The end of its standard input asks the worker to finish.
            drop(input);
            if timeout(END_LIMIT, child.wait()).await.is_err() {
                child.kill().await.context("cannot kill a worker")?;
            }
        }
        Ok(())
    }

    /// Kills all workers, and waits for their end.
    pub(super) async fn kill_all(mut self) {
        for process in &mut self.processes {
            // A process that cannot be killed has ended.
            let _ = process.child.start_kill();
        }
        for process in &mut self.processes {
            let _ = process.child.wait().await;
        }
    }
}

impl WorkerProcess {
    fn send(&self, line: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        // An error means that the worker has ended. The demo notices that by its output.
        let _ = self.input.send(line);
        Ok(())
    }
}

fn describe_end(status: ExitStatus, state: WorkerState) -> String {
    match state {
        WorkerState::Starting => format!("could not start ({status})"),
        _ => format!("ended by itself ({status})"),
    }
}

/// Writes to a worker, so that the demo does not wait for one that does not read. The worker ends when there are no more lines.
async fn write_lines(mut lines: mpsc::UnboundedReceiver<Vec<u8>>, mut stdin: ChildStdin) {
    while let Some(line) = lines.recv().await {
        if stdin.write_all(&line).await.is_err() {
            return;
        }
    }
}

async fn read_lines(
    worker: usize,
    mut lines: Lines<BufReader<ChildStdout>>,
    output: mpsc::UnboundedSender<WorkerOutput>,
) {
    while let Ok(Some(line)) = lines.next_line().await {
        // An error means that the demo is ending, and no task reads the output any more.
        let _ = output.send(WorkerOutput { worker, line: Some(line) });
    }
    let _ = output.send(WorkerOutput { worker, line: None });
}

async fn last_line(stderr: ChildStderr) -> Option<String> {
    let mut lines = BufReader::new(stderr).lines();
    let mut last = None;
    while let Ok(Some(line)) = lines.next_line().await {
        if !line.trim().is_empty() {
            last = Some(line);
        }
    }
    last
}
