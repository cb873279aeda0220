//! A child process that ends with its owner.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{Pid, kill_process_group};

pub use rustix::process::Signal;

use crate::family;
use crate::guard::Guard;

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A child process in its own process group, with all its descendants.
///
/// Dropping it kills all remaining processes. If the owner crashes first, a guard process kills them.
#[derive(Debug)]
pub struct OwnedProcess {
    child: Child,
    stop_signal: Signal,
    // Dropped with the process, whose number may soon belong to another one.
    guard: Option<Guard>,
}

impl OwnedProcess {
    /// Starts `command`. `stop_signal` requests a graceful shutdown. If the owner crashes, `folder` is removed together
    /// with the process.
    pub fn spawn(command: &mut Command, stop_signal: Signal, folder: Option<&Path>) -> Result<OwnedProcess> {
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().display()))?;
        let mut process = OwnedProcess { child, stop_signal, guard: None };
        process.guard = Some(Guard::over(process.pid(), stop_signal, folder)?);
        Ok(process)
    }

    /// The id of the process, which is also the id of its group.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The exit status, if the process has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait().context("asking how a process ended")?;
        if status.is_some() {
            self.guard = None;
        }
        Ok(status)
    }

    /// Waits until it ends by itself.
    pub async fn wait(&mut self) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Sends a signal to the whole group.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        signal_group(self.pid(), signal)
    }

    /// Asks the whole group to end and, if it does not within `grace`, kills it. Blocks.
    pub fn stop(&mut self, grace: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        signal_group(self.pid(), self.stop_signal)?;
        let deadline = Instant::now() + grace;
        while Instant::now() < deadline {
            if let Some(status) = self.ended()? {
                // The other processes were asked too. One that outlives the leader has no parent left that waits for it.
                signal_group(self.pid(), Signal::KILL)?;
                return Ok(status);
            }
            thread::sleep(POLL_INTERVAL);
        }
        self.kill()
    }

    /// Kills the process and all its descendants with `SIGKILL`. Blocks until all of them have ended.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        let killed = family::kill(self.pid());
        // The leader must not survive, even if its descendants could not be found.
        let _ = self.child.kill();
        let status = self.child.wait().context("waiting for a killed process")?;
        self.guard = None;
        killed.map(|()| status)
    }
}

impl Drop for OwnedProcess {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Describes the end of a process in words.
#[must_use]
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

fn signal_group(leader: Pid, signal: Signal) -> Result<()> {
    match kill_process_group(leader, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("sending {signal:?} to process group {leader:?}")),
    }
}
