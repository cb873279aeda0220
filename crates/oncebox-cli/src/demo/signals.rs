//! Ctrl-C and other signals that end the program.

use std::process::ExitCode;

use anyhow::{Context, Result};
use oncebox_workload::signals::EndSignals;

/// Receives the signals. From then on they no longer end the program by themselves.
#[derive(Debug)]
pub(super) struct Signals(EndSignals);

impl Signals {
    pub(super) fn listen() -> Result<Self> {
        Ok(Self(EndSignals::listen().context("listening to signals")?))
    }

    /// Waits for a signal. Returns the exit code for it.
    pub(super) async fn next(&mut self) -> ExitCode {
        ExitCode::from(self.0.next().await.exit_code())
    }
}
