//! Signals that ask a program to end.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that asks a program to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndSignal {
    /// The terminal was closed.
    HangUp,
    /// Ctrl-C.
    Interrupt,
    /// The system or a supervisor ends the program.
    Terminate,
}

impl EndSignal {
    /// The exit code that a shell expects of a program that the signal has ended.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::HangUp => 129,
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

/// Receives these signals. From then on they no longer end the program by themselves, so that it can stop its processes first.
#[derive(Debug)]
pub struct EndSignals {
    hang_up: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    /// Begins to receive. Needs a runtime of tokio.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for a signal. One that arrived before the call counts.
    pub async fn next(&mut self) -> EndSignal {
        tokio::select! {
            _ = self.interrupt.recv() => EndSignal::Interrupt,
            _ = self.terminate.recv() => EndSignal::Terminate,
            _ = self.hang_up.recv() => EndSignal::HangUp,
        }
    }
}
