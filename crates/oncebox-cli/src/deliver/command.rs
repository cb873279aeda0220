//! Delivery to a command: the message on its standard input, the outcome in its exit code.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use oncebox::{Envelope, Failure};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin};

use crate::deliver::beginning;
use crate::deliver::told::Told;

/// The exit code that says that no other try will help: `EX_DATAERR` of sysexits.
const DEAD: i32 = 65;
/// So much of what a command says is kept, from its end.
const KEPT_BYTES: usize = 4096;

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
        let (input, errors) = (running.child.stdin.take(), running.child.stderr.take());
        let body = envelope.body();
        let (written, said, status) =
            tokio::join!(write(input, body), last_words(errors), running.child.wait());
        running.is_over = true;
        let status = status.map_err(|error| format!("{} cannot be waited for: {error}", self.program))?;
        if status.success() {
            // It need not read what it does not need.
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
            .env("ONCEBOX_HANDLER", &told.handler)
            .env("ONCEBOX_KIND", &told.kind)
            .env("ONCEBOX_KEY", told.key.as_deref().unwrap_or_default())
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
        Ok(Running { child, is_over: false })
    }
}

/// A command that is killed, with all that it has started, if nobody waits for it any more.
struct Running {
    child: Child,
    is_over: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let (false, Some(group)) = (self.is_over, group)
            && let Err(error) = kill_process_group(group, Signal::KILL)
        {
            tracing::warn!(%error, "a command that took too long could not be killed");
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

/// The end of what it says on standard error, however much that is.
async fn last_words(errors: Option<ChildStderr>) -> String {
    let Some(mut errors) = errors else { return String::new() };
    let (mut kept, mut chunk) = (Vec::new(), [0; 1024]);
    while let Ok(read @ 1..) = errors.read(&mut chunk).await {
        kept.extend_from_slice(&chunk[..read]);
        let surplus = kept.len().saturating_sub(KEPT_BYTES);
        kept.drain(..surplus);
    }
    match beginning(&String::from_utf8_lossy(&kept)) {
        nothing if nothing.is_empty() => nothing,
        text => format!(": {text}"),
    }
}

fn ended(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit code {code}"),
        None => status.to_string(),
    }
}
