//! The workers, as the demo sees them: processes that are started, spoken to, killed, and started again.

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
use crate::demo::wire::{Said, Setup};

const SIGKILL: i32 = 9;
/// How long a worker may take to end when it is asked to.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Something that a worker said, or its end.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) worker: usize,
    /// Nothing more will come, if nothing is here.
    pub(super) line: Option<String>,
}

/// Whether a worker takes deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Station {
    Starting,
    Open,
    Killed,
}

/// A process that is alive, or was until now.
#[derive(Debug)]
struct Worker {
    child: Child,
    tell: mpsc::UnboundedSender<Vec<u8>>,
    complaint: JoinHandle<Option<String>>,
    station: Station,
}

/// All workers. When this goes, they are killed.
#[derive(Debug)]
pub(super) struct Crew {
    setup: Setup,
    workers: Vec<Worker>,
    hear: mpsc::UnboundedSender<Heard>,
    heard: mpsc::UnboundedReceiver<Heard>,
}

impl Crew {
    /// Starts so many.
    pub(super) fn start(setup: Setup, workers: usize) -> Result<Self> {
        let (hear, heard) = mpsc::unbounded_channel();
        let mut crew = Self { setup, workers: Vec::new(), hear, heard };
        for number in 0..workers {
            let worker = crew.start_one(number)?;
            crew.workers.push(worker);
        }
        Ok(crew)
    }

    fn start_one(&self, number: usize) -> Result<Worker> {
        let program = std::env::current_exe().context("finding this program, to start workers with it")?;
        let mut child = Command::new(&program)
            .arg(WORKER_COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for the demo, which ends its workers.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting a worker: {} {WORKER_COMMAND}", program.display()))?;
        let input = child.stdin.take().context("a worker without standard input")?;
        let output = child.stdout.take().context("a worker without standard output")?;
        let complaints = child.stderr.take().context("a worker without standard error")?;
        let (tell, told) = mpsc::unbounded_channel();
        tokio::spawn(pass_on(told, input));
        tokio::spawn(listen(number, BufReader::new(output).lines(), self.hear.clone()));
        let complaint = tokio::spawn(last_line(complaints));
        let worker = Worker { child, tell, complaint, station: Station::Starting };
        worker.tell(&self.setup)?;
        Ok(worker)
    }

    /// Those who take deliveries.
    pub(super) fn open(&self) -> Vec<usize> {
        let is_open = |number: &usize| self.workers[*number].station == Station::Open;
        (0..self.workers.len()).filter(is_open).collect()
    }

    /// The id of a worker's process.
    pub(super) fn pid(&self, worker: usize) -> Option<u32> {
        self.workers[worker].child.id()
    }

    /// Tells a worker something; the dead do not listen.
    pub(super) fn tell(&self, worker: usize, line: &impl Serialize) -> Result<()> {
        self.workers[worker].tell(line)
    }

    /// Kills a worker, wherever it is.
    pub(super) fn kill(&mut self, worker: usize) -> Result<()> {
        let worker = &mut self.workers[worker];
        worker.station = Station::Killed;
        worker.child.start_kill().context("killing a worker")
    }

    /// The next thing that anybody says, within that time.
    pub(super) async fn hear(&mut self, time: Duration) -> Option<Heard> {
        timeout(time, self.heard.recv()).await.ok().flatten()
    }

    /// What has been said already.
    pub(super) fn hear_more(&mut self) -> Option<Heard> {
        self.heard.try_recv().ok()
    }

    /// Makes sense of a line. Who says that it is ready takes deliveries from now on, unless it was killed.
    pub(super) fn understand(&mut self, worker: usize, line: &str) -> Result<Said> {
        let said = serde_json::from_str(line)
            .with_context(|| format!("worker {worker} said what nobody understands: {line}"))?;
        let station = &mut self.workers[worker].station;
        if said == Said::Ready && *station == Station::Starting {
            *station = Station::Open;
        }
        Ok(said)
    }

    /// A worker is gone. If it was killed, another one takes its place. Whether somebody else has killed it, who may join in.
    pub(super) async fn replace(&mut self, number: usize) -> Result<bool> {
        let successor = self.start_one(number)?;
        let mut gone = std::mem::replace(&mut self.workers[number], successor);
        let status = gone.child.wait().await.context("waiting for a worker's end")?;
        match gone.station {
            Station::Killed => Ok(false),
            Station::Open if status.signal() == Some(SIGKILL) => Ok(true),
            station => {
                let complaint = gone.complaint.await.ok().flatten();
                let why = complaint.as_deref().unwrap_or("it did not say why");
                bail!("worker {number} {}: {why}", how(status, station))
            }
        }
    }

    /// Lets all of them finish what is in hand, and waits for it.
    pub(super) async fn dismiss(self) -> Result<()> {
        for Worker { mut child, tell, .. } in self.workers {
            drop(tell);
            if timeout(END_LIMIT, child.wait()).await.is_err() {
                child.kill().await.context("killing a worker that does not end")?;
            }
        }
        Ok(())
    }

    /// Ends all of them at once.
    pub(super) async fn end(mut self) {
        for worker in &mut self.workers {
            // Whoever cannot be killed has ended.
            let _ = worker.child.start_kill();
        }
        for worker in &mut self.workers {
            let _ = worker.child.wait().await;
        }
    }
}

impl Worker {
    fn tell(&self, line: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        let _ = self.tell.send(line);
        Ok(())
    }
}

fn how(status: ExitStatus, station: Station) -> String {
    match station {
        Station::Starting => format!("could not start ({status})"),
        _ => format!("ended by itself ({status})"),
    }
}

/// Writes to a worker; the demo does not wait for one that does not read. Whoever is told nothing more ends.
async fn pass_on(mut told: mpsc::UnboundedReceiver<Vec<u8>>, mut input: ChildStdin) {
    while let Some(line) = told.recv().await {
        if input.write_all(&line).await.is_err() {
            return;
        }
    }
}

async fn listen(
    worker: usize,
    mut output: Lines<BufReader<ChildStdout>>,
    hear: mpsc::UnboundedSender<Heard>,
) {
    while let Ok(Some(line)) = output.next_line().await {
        let _ = hear.send(Heard { worker, line: Some(line) });
    }
    let _ = hear.send(Heard { worker, line: None });
}

async fn last_line(complaints: ChildStderr) -> Option<String> {
    let mut lines = BufReader::new(complaints).lines();
    let mut last = None;
    while let Ok(Some(line)) = lines.next_line().await {
        if !line.trim().is_empty() {
            last = Some(line);
        }
    }
    last
}
