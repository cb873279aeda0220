//! `oncebox accept`: accepts messages from a file or standard input, one per line.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use oncebox::{Accept, Envelope, Error, ErrorKind, Headers, Inbox, LogStore};
use serde::Serialize;
use tokio::fs::File;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::watch;

use crate::cli::CommonArgs;
use crate::config::Config;
use crate::deliver::inbox;
use crate::exit::Usage;
use crate::exit::chain_text;
use crate::output::CommandOutput;
use crate::serve::{stop_signals, stopped};
use crate::source::{FieldLocation, InvalidMessage, MessageSource, invalid_pointer, is_left_out, not_stored};
use crate::store::{OpenPurpose, with_store};

/// The maximum number of messages in a batch. They share transactions and keep their order.
const BATCH_MAX: usize = 512;
/// A batch is accepted when the input pauses for this time, as with `tail -f`.
const PAUSE: Duration = Duration::from_millis(100);

/// Options of `accept`.
#[derive(clap::Args, Debug)]
pub(crate) struct AcceptArgs {
    /// The file, with one message per line; `-` is standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    /// The source whose rules and key space apply, as in POST /in/SOURCE
    #[arg(long)]
    source: String,
    /// Where the key is in each line, for example /id [default: as configured for the source]
    #[arg(long, value_name = "POINTER")]
    key_pointer: Option<String>,
    /// Where the kind is in each line, for example /type [default: as configured for the source]
    #[arg(long, value_name = "POINTER")]
    kind_pointer: Option<String>,
    /// The kind of messages without one
    #[arg(long)]
    kind: Option<String>,
    /// A header for all messages, for example 'content-type: application/json'; repeatable
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
}

/// The results of all lines.
#[derive(Debug, Default, Serialize)]
struct AcceptCounts {
    accepted: u64,
    duplicates: u64,
    refused: u64,
    /// Whether a signal stopped the command before the end of the input.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
}

/// Accepts all valid lines, and reports the others.
pub(crate) async fn run(common: &CommonArgs, options: &AcceptArgs) -> Result<ExitCode> {
    let config = Config::load(common)?;
    let source = source(&config, options)?;
    let headers = headers(&options.headers)?;
    let bar = bar(common.json, &options.file).await;
    let opened = config.target.open_ready(OpenPurpose::Act).await?;
    let mut counts = AcceptCounts::default();
    let stop = stop_signals()?;
    with_store!(opened, store => {
        let inbox = inbox(store, &config, false).await?;
        let run = AcceptRun { inbox, source, headers, bar: bar.clone() };
        if options.file.as_os_str() == "-" {
            run.accept_lines(tokio::io::stdin(), &mut counts, &stop).await?;
        } else {
            let file = File::open(&options.file).await;
            let file = file.with_context(|| format!("cannot open {}", options.file.display()))?;
            run.accept_lines(file, &mut counts, &stop).await?;
        }
    });
    bar.finish_and_clear();
    report(common.output(), &counts)
}

fn report(out: CommandOutput, counts: &AcceptCounts) -> Result<ExitCode> {
    let AcceptCounts { accepted, duplicates, refused, interrupted } = counts;
    out.line(format_args!("{accepted} accepted, {duplicates} duplicates, {refused} refused"))?;
    if *interrupted {
        out.line("Interrupted: all lines read so far are stored. Run the same command again: stored lines are duplicates.")?;
    }
    out.object(counts)?;
    if *interrupted {
        // `exit`, because the runtime would wait for the thread that reads standard input.
        std::process::exit(130);
    }
    // A failure, so that scripts notice lines that are not stored.
    Ok(if *refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn source(config: &Config, options: &AcceptArgs) -> Result<MessageSource> {
    let Some(mut source) = config.sources.find(&options.source) else {
        let problem = config.sources.unknown(&options.source);
        return Err(Usage(problem).into());
    };
    for pointer in [&options.key_pointer, &options.kind_pointer].into_iter().flatten() {
        if !pointer.starts_with('/') {
            return Err(Usage(invalid_pointer(pointer)).into());
        }
    }
    if let Some(pointer) = &options.key_pointer {
        source.key = Some(FieldLocation::Pointer(pointer.clone()));
    }
    if let Some(pointer) = &options.kind_pointer {
        source.kind = Some(FieldLocation::Pointer(pointer.clone()));
    }
    if let Some(kind) = &options.kind {
        source.default_kind.clone_from(kind);
    }
    Ok(source)
}

fn headers(given: &[String]) -> Result<Headers> {
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

/// The progress bar; a spinner if the size of the input is unknown.
async fn bar(json: bool, file: &PathBuf) -> ProgressBar {
    let bytes = tokio::fs::metadata(file).await.map(|file| file.len()).unwrap_or(0);
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

/// Messages that are accepted together, with the numbers of their lines.
#[derive(Default)]
struct LineBatch {
    numbers: Vec<u64>,
    envelopes: Vec<Envelope>,
}

impl LineBatch {
    fn add(&mut self, number: u64, envelope: Envelope) {
        self.numbers.push(number);
        self.envelopes.push(envelope);
    }
}

/// Accepts the lines of an input.
struct AcceptRun<S: LogStore> {
    inbox: Inbox<S>,
    source: MessageSource,
    headers: Headers,
    bar: ProgressBar,
}

impl<S: LogStore> AcceptRun<S> {
    /// Accepts lines until the end or a signal. Lines read before the signal are accepted, because a pipe has them no more.
    async fn accept_lines(
        self,
        input: impl AsyncRead + Unpin,
        counts: &mut AcceptCounts,
        stop: &watch::Receiver<bool>,
    ) -> Result<()> {
        let mut lines = InputLines::new(input, self.inbox.max_body_bytes());
        let mut number = 0;
        let mut more = true;
        while more {
            let mut batch = LineBatch::default();
            more = self.read(&mut lines, &mut number, &mut batch, counts, stop).await?;
            let results = self.inbox.accept_all(batch.envelopes).await;
            for (line, result) in batch.numbers.into_iter().zip(results) {
                self.record(line, result, counts)?;
            }
            self.bar.set_message(format!("{} accepted, {} duplicates", counts.accepted, counts.duplicates));
        }
        self.inbox.close().await;
        Ok(())
    }

    /// Reads the next batch, which ends when it is full or the input pauses. Returns whether there may be more.
    async fn read<R: AsyncRead + Unpin>(
        &self,
        lines: &mut InputLines<R>,
        number: &mut u64,
        batch: &mut LineBatch,
        counts: &mut AcceptCounts,
        stop: &watch::Receiver<bool>,
    ) -> Result<bool> {
        while batch.envelopes.len() < BATCH_MAX {
            let pause = async {
                // An empty batch waits without a limit: there is nothing to accept yet.
                match batch.envelopes.is_empty() {
                    true => std::future::pending().await,
                    false => tokio::time::sleep(PAUSE).await,
                }
            };
            let read = tokio::select! {
                // Lines first, so that a signal loses none that has left the pipe.
                biased;
                read = lines.next() => read,
                () = stopped(stop.clone()) => {
                    counts.interrupted = true;
                    return Ok(false);
                }
                () = pause => return Ok(true),
            };
            let Some(line) = read.with_context(|| format!("cannot read line {}", *number + 1))? else {
                return Ok(false);
            };
            *number += 1;
            // One more for the line break.
            self.bar.inc(line.bytes as u64 + 1);
            let Some(body) = line.body else {
                let limit = self.inbox.max_body_bytes();
                let reason = format!(
                    "the line has {} bytes, the limit is {limit}: raise http.max_body_bytes",
                    line.bytes
                );
                self.refuse(*number, &reason, counts);
                continue;
            };
            // Blank lines are allowed, also at the end of the file.
            if body.is_empty() {
                continue;
            }
            match self.source.envelope(self.headers.clone(), body) {
                Ok(envelope) => batch.add(*number, envelope),
                Err(invalid) => self.refuse(*number, &self.error_text(&invalid), counts),
            }
        }
        Ok(true)
    }

    fn record(&self, line: u64, result: Result<Accept, Error>, counts: &mut AcceptCounts) -> Result<()> {
        match result {
            Ok(Accept::Accepted(_)) => counts.accepted += 1,
            // `KeyReuse` does not occur: this inbox rejects another body under a known key with an error.
            Ok(Accept::Duplicate { .. } | Accept::KeyReuse { .. }) => counts.duplicates += 1,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Key
                        | ErrorKind::Envelope
                        | ErrorKind::KeyReuse
                        | ErrorKind::TooLarge
                        | ErrorKind::Configuration
                ) =>
            {
                self.refuse(line, &chain_text(&error), counts);
            }
            // Any other error concerns the database, so the lines behind this one would fail too.
            Err(error) => {
                let advice = "run the same command again, because stored lines are duplicates";
                return Err(error).with_context(|| format!("line {line} is not stored: {advice}"));
            }
        }
        Ok(())
    }

    /// The error text. A missing key has the remedy of this command, not that of the gateway.
    fn error_text(&self, invalid: &InvalidMessage) -> String {
        match (invalid, &self.source.key) {
            (InvalidMessage::MissingKey(_), None) => {
                "no idempotency key: name its location in each line, for example --key-pointer /id".to_owned()
            }
            _ => invalid.to_string(),
        }
    }

    fn refuse(&self, line: u64, reason: &str, counts: &mut AcceptCounts) {
        counts.refused += 1;
        // Otherwise the progress bar would overwrite the line.
        self.bar.suspend(|| {
            #[allow(clippy::print_stderr, reason = "the program speaks to a person")]
            {
                eprintln!("oncebox: line {line}: {reason}");
            }
        });
    }
}
