//! Standard output: tables and sentences for people, JSON for programs.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use anyhow::Result;
use serde::Serialize;

/// Where answers go, and in which form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// For a program.
    pub(crate) json: bool,
}

impl Output {
    /// A line, or several, for people and programs alike.
    pub(crate) fn text(self, text: &str) -> Result<()> {
        write(text)
    }

    /// A line for people only.
    pub(crate) fn say(self, line: impl Display) -> Result<()> {
        if self.json { Ok(()) } else { write(&format!("{line}\n")) }
    }

    /// One object on a line of its own, for programs only.
    pub(crate) fn object(self, value: &impl Serialize) -> Result<()> {
        if self.json { write(&format!("{}\n", serde_json::to_string(value)?)) } else { Ok(()) }
    }
}

fn write(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever read has seen enough, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        written => Ok(written?),
    }
}
