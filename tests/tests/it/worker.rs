//! A worker process under the test's control.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

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
