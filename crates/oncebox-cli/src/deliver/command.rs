//! Delivery to a command: the message on its standard input, the outcome in its exit code.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncebox::{Envelope, Failure};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::deliver::beginning;
use crate::deliver::told::Told;

/// The exit code that says that no other try will help: `EX_DATAERR` of sysexits.
const DEAD: i32 = 65;
/// So much of what a command says is kept, from its end.
const KEPT_BYTES: usize = 4096;
/// What a command has said arrives within this time after its end.
const AFTERWARDS: Duration = Duration::from_millis(200);

/// A command to run for each message.
#[derive(Debug)]
pub(super) struct Command {
    program: String,
    arguments: Vec<String>,
    folder: Option<PathBuf>,
}

impl Command {
    pub(super) fn new(program: String, arguments: Vec<String>, folder: Option<PathBuf>) -> Self {
        Self { program, arguments, folder }
    }

    /// Runs it; what its exit code means.
    pub(super) async fn deliver(&self, envelope: Envelope, told: &Told) -> Result<(), Failure> {
        let mut running = self.start(told)?;
        let input = running.child.stdin.take();
        let words = LastWords::listen(running.child.stderr.take());
        let body = envelope.body();
        let mut writing = pin!(write(input, body));
        let (written, status) = tokio::select! {
            written = &mut writing => (written, running.child.wait().await),
            // It need not read what it does not need.
            status = running.child.wait() => (Ok(()), status),
        };
        let status = status.map_err(|error| format!("{} cannot be waited for: {error}", self.program))?;
        let said = words.said().await;
        if status.success() {
            return written
                .map_err(|error| format!("the message was not written to {}: {error}", self.program).into());
        }
        let error = format!("{}{}", ended(status), said);
        if status.code() == Some(DEAD) { Err(Failure::permanent(error)) } else { Err(error.into()) }
    }

    fn start(&self, told: &Told) -> Result<Running, Failure> {
        let mut command = tokio::process::Command::new(&self.program);
        command
            .args(&self.arguments)
            .env("ONCEBOX_EFFECT_ID", &told.effect_id)
            .env("ONCEBOX_ATTEMPT", told.attempt.to_string())
            .env("ONCEBOX_REPLAY", told.is_replay.to_string())
            .env("ONCEBOX_HANDLER", &told.handler)
            .env("ONCEBOX_KIND", &told.kind)
            // A key may have what the environment cannot have.
            .env("ONCEBOX_KEY", told.key.as_deref().filter(|key| !key.contains('\0')).unwrap_or_default())
            .env("ONCEBOX_SOURCE", told.source.as_deref().unwrap_or_default())
            .env("TRACEPARENT", &told.traceparent)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Its own group: Ctrl-C is for the gateway, which waits for it; and whatever it has started ends with it.
            .process_group(0);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        let child =
            command.spawn().map_err(|error| format!("{} cannot be started: {error}", self.program))?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(Running { child, group })
    }
}

/// A command. What it has started and left behind ends with it.
struct Running {
    child: Child,
    group: Option<Pid>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nobody is left in the group, as a rule.
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

async fn write(input: Option<ChildStdin>, body: &[u8]) -> std::io::Result<()> {
    let Some(mut input) = input else { return Ok(()) };
    match input.write_all(body).await {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// The end of what a command says on standard error, however much that is.
struct LastWords {
    kept: Arc<Mutex<Vec<u8>>>,
    listening: JoinHandle<()>,
}

impl LastWords {
    fn listen(errors: Option<ChildStderr>) -> Self {
        let kept = Arc::<Mutex<Vec<u8>>>::default();
        let heard = kept.clone();
        let listening = tokio::spawn(async move {
            let Some(mut errors) = errors else { return };
            let mut chunk = [0; 1024];
            while let Ok(read @ 1..) = errors.read(&mut chunk).await {
                let mut kept = heard.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&chunk[..read]);
                let surplus = kept.len().saturating_sub(KEPT_BYTES);
                kept.drain(..surplus);
            }
        });
        Self { kept, listening }
    }

    /// What was said by the time the command has ended. Whatever it left behind may hold the other end for as long as it likes.
    async fn said(mut self) -> String {
        let _ = timeout(AFTERWARDS, &mut self.listening).await;
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match beginning(&String::from_utf8_lossy(&kept)) {
            nothing if nothing.is_empty() => nothing,
            text => format!(": {text}"),
        }
    }
}

impl Drop for LastWords {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

fn ended(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit code {code}"),
        None => status.to_string(),
    }
}
