//! Messages from files and pipes, one per line.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use oncebox::{Envelope, Headers};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::watch;

use crate::exit::Usage;
use crate::serve::stopped;
use crate::source::{invalid_pointer, is_left_out, not_stored};

/// The maximum number of messages in a batch. They share transactions and keep their order.
const BATCH_MAX: usize = 512;
/// The size of the bodies at which a batch ends.
const BATCH_BYTES: usize = 16 * 1024 * 1024;
/// A batch ends when the input pauses for this time, as with `tail -f`.
const PAUSE: Duration = Duration::from_millis(100);

/// The headers of the command line.
pub(super) fn headers(given: &[String]) -> Result<Headers> {
    let mut headers = Headers::new();
    for header in given {
        let Some((name, value)) = header.split_once(':') else {
            return Err(Usage(format!("invalid header {header:?}: write NAME: VALUE")).into());
        };
        if is_left_out(name.trim()) {
            return Err(Usage(format!("{}: remove it", not_stored(name.trim()))).into());
        }
        headers.append(name.trim(), value.trim());
    }
    Ok(headers)
}

/// Checks the JSON pointers of the command line.
pub(super) fn check_pointers<'p>(pointers: impl IntoIterator<Item = &'p Option<String>>) -> Result<()> {
    for pointer in pointers.into_iter().flatten() {
        if !pointer.starts_with('/') {
            return Err(Usage(invalid_pointer(pointer)).into());
        }
    }
    Ok(())
}

/// The progress bar; a spinner if the size of the input is unknown.
pub(super) async fn progress_bar(json: bool, files: impl IntoIterator<Item = &Path>) -> ProgressBar {
    let mut bytes = 0;
    for file in files {
        bytes += tokio::fs::metadata(file).await.map(|file| file.len()).unwrap_or(0);
    }
    let (bar, style) = match bytes {
        0 => (ProgressBar::new_spinner(), "{spinner} {msg}  {elapsed}"),
        bytes => (ProgressBar::new(bytes), "{bar:30} {percent}%  {msg}  {elapsed}, {eta} left"),
    };
    if json {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    // An error cannot happen: the template is a constant.
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

/// A line, which may have any bytes.
struct InputLine {
    bytes: usize,
    /// `None` if the line is too long.
    body: Option<Vec<u8>>,
}

/// Reads lines, which may have any bytes. Cancellation-safe: a dropped `next` loses nothing.
struct InputLines<R> {
    input: BufReader<R>,
    limit: usize,
    /// The beginning of the next line, unless it is too long.
    begun: Vec<u8>,
    /// The number of bytes of the next line so far.
    bytes: usize,
}

impl<R: AsyncRead + Unpin> InputLines<R> {
    fn new(input: R, limit: usize) -> Self {
        Self { input: BufReader::new(input), limit, begun: Vec::new(), bytes: 0 }
    }

    /// The next line without its line break. The bytes of a line that is too long are dropped, so that it needs no memory.
    async fn next(&mut self) -> std::io::Result<Option<InputLine>> {
        loop {
            // The only await point. Bytes leave the buffer only behind it, so a dropped call loses none.
            let chunk = self.input.fill_buf().await?;
            if chunk.is_empty() {
                return Ok((self.bytes > 0).then(|| self.line()));
            }
            let end = chunk.iter().position(|&byte| byte == b'\n');
            let part = &chunk[..end.unwrap_or(chunk.len())];
            self.bytes += part.len();
            if self.bytes <= self.limit {
                self.begun.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.input.consume(used);
            if end.is_some() {
                return Ok(Some(self.line()));
            }
        }
    }

    fn line(&mut self) -> InputLine {
        let (bytes, mut line) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.begun));
        // Line ends of Windows.
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        InputLine { bytes, body: (bytes <= self.limit).then_some(line) }
    }
}

/// What follows a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterBatch {
    /// There may be more lines.
    More,
    /// The input has ended.
    End,
    /// A signal stops the command.
    Interrupted,
}

/// Messages that are stored together, with the numbers of their lines.
#[derive(Default)]
pub(super) struct LineBatch {
    pub(super) numbers: Vec<u64>,
    pub(super) envelopes: Vec<Envelope>,
    /// The number of lines that are no valid messages. They were reported.
    pub(super) refused: u64,
}

/// Reads messages from an input in batches, and reports the lines that are none.
pub(super) struct MessageReader<'a, R> {
    lines: InputLines<R>,
    /// The number of the last line that was read.
    number: u64,
    report: LineReport<'a>,
}

impl<'a, R: AsyncRead + Unpin> MessageReader<'a, R> {
    /// A reader of lines with at most `limit` bytes.
    pub(super) fn new(input: R, limit: usize, report: LineReport<'a>) -> Self {
        Self { lines: InputLines::new(input, limit), number: 0, report }
    }

    /// Reads the next batch, which ends when it is full or the input pauses. `envelope` makes a message of a line, or says why that
    /// is not possible.
    pub(super) async fn next(
        &mut self,
        batch: &mut LineBatch,
        stop: &watch::Receiver<bool>,
        envelope: impl Fn(Vec<u8>) -> Result<Envelope, String>,
    ) -> Result<AfterBatch> {
        let mut bytes = 0;
        while batch.envelopes.len() < BATCH_MAX && bytes < BATCH_BYTES {
            let pause = async {
                // An empty batch waits without a limit: there is nothing to store yet.
                match batch.envelopes.is_empty() {
                    true => std::future::pending().await,
                    false => tokio::time::sleep(PAUSE).await,
                }
            };
            let read = tokio::select! {
                // Lines first, so that a signal loses none that has left the pipe.
                biased;
                read = self.lines.next() => read,
                () = stopped(stop.clone()) => return Ok(AfterBatch::Interrupted),
                () = pause => return Ok(AfterBatch::More),
            };
            let read = read.with_context(|| format!("cannot read {}", self.report.place(self.number + 1)))?;
            let Some(line) = read else { return Ok(AfterBatch::End) };
            self.number += 1;
            // One more for the line break.
            self.report.bar.inc(line.bytes as u64 + 1);
            let message = match line.body {
                // Blank lines are allowed, also at the end of the file.
                Some(body) if body.is_empty() => continue,
                Some(body) => {
                    bytes += body.len();
                    envelope(body)
                }
                None => Err(format!(
                    "the line has {} bytes, the limit is {}: raise http.max_body_bytes",
                    line.bytes, self.lines.limit
                )),
            };
            match message {
                Ok(envelope) => {
                    batch.numbers.push(self.number);
                    batch.envelopes.push(envelope);
                }
                Err(reason) => {
                    batch.refused += 1;
                    self.report.refuse(self.number, &reason);
                }
            }
        }
        Ok(AfterBatch::More)
    }
}

/// Reports lines to a person.
#[derive(Clone, Copy)]
pub(super) struct LineReport<'a> {
    pub(super) bar: &'a ProgressBar,
    /// The file, if there are several.
    pub(super) file: Option<&'a Path>,
}

impl LineReport<'_> {
    /// The name of a line.
    pub(super) fn place(&self, line: u64) -> String {
        match self.file {
            Some(file) => format!("{}: line {line}", file.display()),
            None => format!("line {line}"),
        }
    }

    /// Reports a line that is not stored.
    pub(super) fn refuse(&self, line: u64, reason: &str) {
        // Otherwise the progress bar would overwrite the line.
        self.bar.suspend(|| {
            #[allow(clippy::print_stderr, reason = "the program speaks to a person")]
            {
                eprintln!("oncebox: {}: {reason}", self.place(line));
            }
        });
    }
}
