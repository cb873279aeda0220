//! Standard output: tables and sentences for people, JSON for programs.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use anyhow::Result;
use serde::Serialize;

/// The form of a command's output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandOutput {
    /// JSON instead of text.
    pub(crate) json: bool,
}

impl CommandOutput {
    /// Prints a text, with `--json` too.
    pub(crate) fn text(self, text: &str) -> Result<()> {
        write(text)
    }

    /// Prints a line, without `--json` only.
    pub(crate) fn line(self, line: impl Display) -> Result<()> {
        if self.json { Ok(()) } else { write(&format!("{line}\n")) }
    }

    /// Prints an object on a line of its own, with `--json` only.
    pub(crate) fn object(self, value: &impl Serialize) -> Result<()> {
        if self.json { write(&format!("{}\n", serde_json::to_string(value)?)) } else { Ok(()) }
    }
}

fn write(text: &str) -> Result<()> {
    // Flushed with each call, because `top` and `serve` print line by line into pipes.
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader has closed the pipe, as `head` does: no error.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        written => Ok(written?),
    }
}
