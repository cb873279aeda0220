//! Delivery to a command: the message on its standard input, the outcome in its exit code.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncebox::{Envelope, Failure};
use oncebox_http::delivery::beginning;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::deliver::delivery_info::DeliveryInfo;

/// The exit code of a message that no retry can help: `EX_DATAERR` of sysexits.
const PERMANENT_FAILURE: i32 = 65;
/// The maximum number of bytes of standard error that are kept, from its end.
const STDERR_MAX_BYTES: usize = 4096;
/// How long to wait for the rest of standard error after the command has exited.
const STDERR_TIMEOUT: Duration = Duration::from_millis(200);

/// A command that runs for each message.
#[derive(Debug)]
pub(super) struct CommandRunner {
    program: String,
    arguments: Vec<String>,
    folder: Option<PathBuf>,
}

impl CommandRunner {
    pub(super) fn new(program: String, arguments: Vec<String>, folder: Option<PathBuf>) -> Self {
        Self { program, arguments, folder }
    }

    /// Runs the command, and returns the outcome by its exit code.
    pub(super) async fn deliver(&self, envelope: Envelope, info: &DeliveryInfo) -> Result<(), Failure> {
        let mut running = self.start(info)?;
        let input = running.child.stdin.take();
        // Read while the message is written: a command that fills the pipe of its standard error would block.
        let stderr = ErrorOutput::collect(running.child.stderr.take());
        let body = envelope.body();
        let mut writing = pin!(write(input, body));
        let (written, status) = tokio::select! {
            written = &mut writing => (written, running.child.wait().await),
            // A command may exit without reading its input.
            status = running.child.wait() => (Ok(()), status),
        };
        let status = status.map_err(|error| format!("cannot wait for {}: {error}", self.program))?;
        let error_text = stderr.text().await;
        // Exit code 0 after a failed write is a failure: the command has received only a part of the message.
        if status.success() {
            return written
                .map_err(|error| format!("cannot write the message to {}: {error}", self.program).into());
        }
        let error = format!("{}{error_text}", describe_exit(status));
        if status.code() == Some(PERMANENT_FAILURE) {
            Err(Failure::permanent(error))
        } else {
            Err(error.into())
        }
    }

    fn start(&self, info: &DeliveryInfo) -> Result<RunningCommand, Failure> {
        let mut command = tokio::process::Command::new(&self.program);
        command
            .args(&self.arguments)
            .env("ONCEBOX_EFFECT_ID", &info.effect_id)
            .env("ONCEBOX_ATTEMPT", info.attempt.to_string())
            .env("ONCEBOX_REPLAY", info.is_replay.to_string())
            .env("ONCEBOX_HANDLER", &info.handler)
            .env("ONCEBOX_KIND", &info.kind)
            // An environment variable cannot have a NUL byte; a key can.
            .env("ONCEBOX_KEY", info.key.as_deref().filter(|key| !key.contains('\0')).unwrap_or_default())
            .env("ONCEBOX_SOURCE", info.source.as_deref().unwrap_or_default())
            .env("TRACEPARENT", &info.traceparent)
            .stdin(Stdio::piped())
            // Not a pipe: the command would block when it is full.
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // A group of its own: Ctrl-C must reach the gateway only, and the whole group can be killed.
            .process_group(0);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        let child = command.spawn().map_err(|error| format!("cannot start {}: {error}", self.program))?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(RunningCommand { child, group })
    }
}

/// A running command. Dropping it kills its whole process group.
struct RunningCommand {
    child: Child,
    group: Option<Pid>,
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        // An error means that the group has no process left, which is the usual case.
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

async fn write(input: Option<ChildStdin>, body: &[u8]) -> std::io::Result<()> {
    let Some(mut input) = input else { return Ok(()) };
    // The input is closed when it is dropped here. Commands that read to the end wait for that.
    match input.write_all(body).await {
        // The command has closed its input. Its exit code decides.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// The end of a command's standard error.
struct ErrorOutput {
    kept: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>,
}

impl ErrorOutput {
    fn collect(stderr: Option<ChildStderr>) -> Self {
        let kept = Arc::<Mutex<Vec<u8>>>::default();
        let sink = kept.clone();
        let reading = tokio::spawn(async move {
            let Some(mut stderr) = stderr else { return };
            let mut chunk = [0; 1024];
            while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
                let mut kept = sink.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&chunk[..read]);
                // The end is kept, not the beginning: most programs write the fatal error last.
                let surplus = kept.len().saturating_sub(STDERR_MAX_BYTES);
                kept.drain(..surplus);
            }
        });
        Self { kept, reading }
    }

    /// The text so far, with a short wait for the rest. Processes that the command left behind may keep standard error open.
    async fn text(mut self) -> String {
        let _ = timeout(STDERR_TIMEOUT, &mut self.reading).await;
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match beginning(&String::from_utf8_lossy(&kept)) {
            nothing if nothing.is_empty() => nothing,
            text => format!(": {text}"),
        }
    }
}

impl Drop for ErrorOutput {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

fn describe_exit(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit code {code}"),
        None => status.to_string(),
    }
}
