//! A worker process under the test's control.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

pub(crate) struct Worker {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts a process that is ready for deliveries.
    pub(crate) async fn start(url: &str) -> Self {
        Self::spawn(&[url]).await
    }

    /// Starts a process that works on the log until it dies.
    pub(crate) async fn start_stored(url: &str) -> Self {
        Self::spawn(&[url, "stored"]).await
    }

    async fn spawn(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_worker"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut worker = Self { child, input, output };
        assert_eq!(worker.line().await, "ready");
        worker
    }

    pub(crate) async fn deliver(&mut self, key: &str, copies: usize, point: &str) {
        self.input.write_all(format!("deliver {key} {copies} {point}\n").as_bytes()).await.unwrap();
    }

    /// What it says next.
    pub(crate) async fn line(&mut self) -> String {
        self.output.next_line().await.unwrap().expect("the worker died by itself")
    }

    /// kill -9, and wait until it is dead.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

/// No live process is silent for this long, on a busy machine either.
const LEASE: Duration = Duration::from_secs(30);

/// A worker process on the log, in one of its roles. What it reports is kept until the test asks.
pub(crate) struct LogWorker {
    child: Child,
    input: ChildStdin,
    said: mpsc::UnboundedReceiver<String>,
}

impl LogWorker {
    pub(crate) async fn start(url: &str, role: &str, seed: u64, workers: usize) -> Self {
        Self::start_with_lease(url, role, seed, workers, LEASE).await
    }

    pub(crate) async fn start_with_lease(
        url: &str,
        role: &str,
        seed: u64,
        workers: usize,
        lease: Duration,
    ) -> Self {
        let (seed, workers) = (seed.to_string(), workers.to_string());
        let mut child = Command::new(env!("CARGO_BIN_EXE_log_worker"))
            .args([url, role, &seed, &workers, &lease.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let (hear, said) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(line)) = output.next_line().await {
                let _ = hear.send(line);
            }
        });
        let mut worker = Self { child, input, said };
        assert_eq!(worker.line().await.as_deref(), Some("ready"));
        worker
    }

    /// What it says next; nothing once it is dead.
    pub(crate) async fn line(&mut self) -> Option<String> {
        self.said.recv().await
    }

    /// Waits until it says this; what it said before.
    pub(crate) async fn until(&mut self, line: &str) -> Vec<String> {
        let mut before = Vec::new();
        loop {
            let said = self.line().await.unwrap_or_else(|| panic!("it died before {line:?}: {before:?}"));
            if said == line {
                return before;
            }
            before.push(said);
        }
    }

    /// Sends it a command. A dead process does not read it.
    pub(crate) async fn tell(&mut self, line: &str) {
        let _ = self.input.write_all(format!("{line}\n").as_bytes()).await;
    }

    /// Its process number.
    pub(crate) fn number(&self) -> u32 {
        self.child.id().expect("it was not waited for")
    }

    /// Sends a signal by its name.
    pub(crate) async fn signal(&self, name: &str) {
        let number = self.number().to_string();
        assert!(Command::new("kill").args(["-s", name, &number]).status().await.unwrap().success());
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// kill -9, and wait until it is dead; what it had said.
    pub(crate) async fn kill(mut self) -> Vec<String> {
        self.child.kill().await.unwrap();
        self.rest().await
    }

    /// Lets it finish its work in flight. Returns its lines, and the done, failed, dead and lost leases that it reports.
    pub(crate) async fn stop(mut self) -> (Vec<String>, [u64; 4]) {
        self.tell("stop").await;
        let mut said = self.rest().await;
        assert!(self.child.wait().await.unwrap().success(), "{said:?}");
        let report = said.pop().unwrap();
        let numbers: Vec<u64> = report
            .strip_prefix("report ")
            .unwrap()
            .split(' ')
            .map(|number| number.parse().unwrap())
            .collect();
        (said, numbers.try_into().unwrap())
    }

    async fn rest(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        while let Some(line) = self.line().await {
            said.push(line);
        }
        said
    }
}
