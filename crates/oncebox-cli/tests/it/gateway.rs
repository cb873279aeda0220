//! A gateway in a folder of its own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::{Client, Response, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// The program, in a folder.
pub(crate) fn oncebox(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncebox"));
    command.current_dir(folder);
    for variable in ["ONCEBOX_STORE", "ONCEBOX_CONFIG", "ONCEBOX_OPERATOR", "ONCEBOX_LOG"] {
        command.env_remove(variable);
    }
    command
}

/// Runs a command of the program to its end.
pub(crate) fn run(folder: &Path, arguments: &[&str]) -> Output {
    oncebox(folder).args(arguments).output().unwrap()
}

/// The JSON body of a response.
pub(crate) async fn body_of(response: Response) -> Value {
    serde_json::from_str(&response.text().await.unwrap()).unwrap()
}

/// The output of a command with `--json`, which must succeed.
pub(crate) fn json(folder: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = run(folder, &[arguments, &["--json"]].concat());
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{err}");
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn client() -> Client {
    // As in the program.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder().no_proxy().build().unwrap()
}

pub(crate) struct TestGateway {
    pub(crate) folder: TempDir,
    running: GatewayProcess,
    /// What the gateway has printed so far.
    printed: Printed,
    pub(crate) address: String,
    pub(crate) client: Client,
}

impl TestGateway {
    /// Starts a gateway with this configuration on a free port.
    pub(crate) fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("oncebox.toml"), config).unwrap();
        Self::start_in(folder)
    }

    /// Starts a gateway in a folder with a configuration.
    pub(crate) fn start_in(folder: TempDir) -> Self {
        Self::start_with(folder, &[])
    }

    /// The same with more arguments.
    pub(crate) fn start_with(folder: TempDir, arguments: &[&str]) -> Self {
        let (running, printed, address) = spawn(folder.path(), arguments);
        Self { folder, running, printed, address, client: client() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Sends a message.
    pub(crate) async fn post(&self, source: &str, key: &str, body: &str) -> Response {
        let request = self.client.post(format!("http://{}/in/{source}", self.address));
        request.header("Idempotency-Key", key).body(body.to_owned()).send().await.unwrap()
    }

    pub(crate) async fn accept(&self, source: &str, key: &str, body: &str) {
        assert_eq!(self.post(source, key, body).await.status(), StatusCode::ACCEPTED);
    }

    pub(crate) async fn get(&self, page: &str) -> Response {
        self.client.get(format!("http://{}{page}", self.address)).send().await.unwrap()
    }

    /// Waits for a line of the start message with this text, and returns it.
    pub(crate) async fn line(&self, text: &str) -> String {
        loop {
            let found = self.printed.lock().unwrap().iter().find(|line| line.contains(text)).cloned();
            if let Some(line) = found {
                return line;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the health check has this status, and returns its message.
    pub(crate) async fn health(&self, status: StatusCode) -> String {
        loop {
            let response = self.get("/healthz").await;
            if response.status() == status {
                return body_of(response).await["message"].as_str().unwrap_or_default().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Kills the gateway with SIGKILL, and starts it again.
    pub(crate) fn kill_and_restart(&mut self) {
        self.running.end();
        (self.running, self.printed, self.address) = spawn(self.folder.path(), &[]);
    }

    /// Stops the gateway with SIGTERM and waits. Returns its exit code and its folder.
    pub(crate) async fn stop(mut self) -> (Option<i32>, TempDir) {
        let id = Pid::from_raw(i32::try_from(self.running.0.id()).unwrap()).unwrap();
        kill_process(id, Signal::TERM).unwrap();
        loop {
            if let Some(status) = self.running.0.try_wait().unwrap() {
                return (status.code(), self.folder);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Killed at the end of its test, also if that fails.
struct GatewayProcess(Child);

impl GatewayProcess {
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// The lines on standard output.
type Printed = Arc<Mutex<Vec<String>>>;

fn spawn(folder: &Path, arguments: &[&str]) -> (GatewayProcess, Printed, String) {
    let mut command = oncebox(folder);
    command
        .args(["serve", "--listen", "127.0.0.1:0"])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let log = std::thread::spawn(move || {
        #[allow(clippy::print_stderr, reason = "shown if a test fails")]
        for line in BufReader::new(err).lines().map_while(Result::ok) {
            eprintln!("gateway: {line}");
        }
    });
    let printed = Printed::default();
    let keep = printed.clone();
    let mut lines = BufReader::new(out)
        .lines()
        .map_while(Result::ok)
        .inspect(move |line| keep.lock().unwrap().push(line.clone()));
    let address = lines.find_map(|line| {
        let address = line.trim().strip_prefix("messages in")?.trim().strip_prefix("http://")?.to_owned();
        Some(address.strip_suffix("/in/SOURCE")?.to_owned())
    });
    let Some(address) = address else {
        GatewayProcess(child).end();
        log.join().unwrap();
        panic!("the gateway does not start");
    };
    std::thread::spawn(move || lines.for_each(drop));
    (GatewayProcess(child), printed, address)
}
