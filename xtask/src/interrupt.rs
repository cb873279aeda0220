//! Ctrl-C and its relatives.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A person, or the system, wants all of this to end now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted;

/// The signals that ask a program to end; once listened to they no longer end it by themselves, so that the
/// server can be stopped first.
#[derive(Debug)]
pub(crate) struct Interrupt {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Interrupt {
    pub(crate) fn listen() -> Result<Interrupt> {
        let listen = |kind| signal(kind).context("listening to signals");
        Ok(Interrupt {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// Returns as soon as one of them has come, be it before the call.
    pub(crate) async fn came(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}
