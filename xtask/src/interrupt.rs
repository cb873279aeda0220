//! Ctrl-C and other signals that end a command.

use anyhow::{Context, Result};
use oncebox_workload::signals::EndSignals;

/// A signal asked the command to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted;

/// Receives the signals. They no longer end the command by themselves, so that the server can be stopped first.
#[derive(Debug)]
pub(crate) struct Interrupt(EndSignals);

impl Interrupt {
    pub(crate) fn listen() -> Result<Interrupt> {
        Ok(Interrupt(EndSignals::listen().context("listening to signals")?))
    }

    /// Waits for a signal. One that arrived before the call counts.
    pub(crate) async fn received(&mut self) {
        self.0.next().await;
    }
}
