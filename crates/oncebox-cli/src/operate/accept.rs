//! `oncebox accept`: takes messages from a file or standard input, one a line, each once.

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

use crate::cli::Common;
use crate::config::Config;
use crate::exit::Usage;
use crate::output::Output;
use crate::serve::{inbox, stop_signals, stopped};
use crate::source::{Part, Refusal, Source, is_left_out};
use crate::store::{For, with_store};

/// So many are under way at once; they share transactions, and stay in their order.
const AT_ONCE: usize = 512;
/// Those that have come go without the others when nothing follows for so long, as with `tail -f`.
const PAUSE: Duration = Duration::from_millis(100);

/// What to accept.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// One message a line; `-` is standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    /// The source whose rules and key space hold, as in POST /in/SOURCE
    #[arg(long)]
    source: String,
    /// Where the key stands in each line, as in /id [default: as the source is configured]
    #[arg(long, value_name = "POINTER")]
    key_pointer: Option<String>,
    /// Where the kind stands in each line, as in /type [default: as the source is configured]
    #[arg(long, value_name = "POINTER")]
    kind_pointer: Option<String>,
    /// The kind of all messages that do not say another
    #[arg(long)]
    kind: Option<String>,
    /// A header of all messages, as in 'content-type: application/json'
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
}

/// What became of the lines.
#[derive(Debug, Default, Serialize)]
struct Tally {
    accepted: u64,
    duplicates: u64,
    refused: u64,
    /// Somebody stopped it before the end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
}

/// Accepts every line that can be; says which cannot.
pub(crate) async fn run(common: &Common, options: &Options) -> Result<ExitCode> {
    let config = Config::load(common)?;
    let source = source(&config, options)?;
    let headers = headers(&options.headers)?;
    let bar = bar(common.json, &options.file).await;
    let opened = config.target.open_ready(For::Acting).await?;
    let mut tally = Tally::default();
    let stop = stop_signals()?;
    with_store!(opened, store => {
        let inbox = inbox(store, &config, false).await?;
        let out = Intake { inbox, source, headers, max_body_bytes: config.http.max_body_bytes, bar: bar.clone() };
        if options.file.as_os_str() == "-" {
            out.take(tokio::io::stdin(), &mut tally, &stop).await?;
        } else {
            let file = File::open(&options.file).await;
            let file = file.with_context(|| format!("opening {}", options.file.display()))?;
            out.take(file, &mut tally, &stop).await?;
        }
    });
    bar.finish_and_clear();
    report(common.output(), &tally)
}

fn report(out: Output, tally: &Tally) -> Result<ExitCode> {
    let Tally { accepted, duplicates, refused, interrupted } = tally;
    out.say(format_args!("{accepted} accepted, {duplicates} duplicates, {refused} refused"))?;
    if *interrupted {
        out.say("interrupted: what was read is accepted; run the same again, and that is recognised")?;
    }
    out.object(tally)?;
    if *interrupted {
        // At once: somebody may still be waiting for a line of standard input, which nobody will send.
        std::process::exit(130);
    }
    Ok(if *refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn source(config: &Config, options: &Options) -> Result<Source> {
    let Some(mut source) = config.sources.find(&options.source) else {
        let names = match config.sources.names()[..] {
            [] => "a name has letters, digits, `-`, `_` and `.`".to_owned(),
            ref names => format!("configured are {}", names.join(", ")),
        };
        return Err(Usage(format!("there is no source {:?}: {names}", options.source)).into());
    };
    for pointer in [&options.key_pointer, &options.kind_pointer].into_iter().flatten() {
        if !pointer.starts_with('/') {
            return Err(
                Usage(format!("{pointer:?} is no JSON pointer: it begins with a slash, as in /id")).into()
            );
        }
    }
    if let Some(pointer) = &options.key_pointer {
        source.key = Some(Part::Pointer(pointer.clone()));
    }
    if let Some(pointer) = &options.kind_pointer {
        source.kind = Some(Part::Pointer(pointer.clone()));
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
            return Err(Usage(format!("{header:?} is no header: write NAME: VALUE")).into());
        };
        if is_left_out(name.trim()) {
            return Err(Usage(format!(
                "the header {} is about a connection or secret, and not kept: leave it out",
                name.trim()
            ))
            .into());
        }
        headers.append(name.trim(), value.trim());
    }
    Ok(headers)
}

/// For a person who waits.
async fn bar(json: bool, file: &PathBuf) -> ProgressBar {
    let bytes = tokio::fs::metadata(file).await.map(|file| file.len()).unwrap_or(0);
    let (bar, style) = match bytes {
        0 => (ProgressBar::new_spinner(), "{spinner} {msg}  {elapsed}"),
        bytes => (ProgressBar::new(bytes), "{bar:30} {percent}%  {msg}  {elapsed}, {eta} left"),
    };
    if json {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    // The template is a constant.
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

/// A line of any bytes.
struct Line {
    bytes: usize,
    /// Nothing if it is too long.
    body: Option<Vec<u8>>,
}

/// Lines of any bytes. Whoever stops waiting for one loses nothing of it.
struct Lines<R> {
    input: BufReader<R>,
    limit: usize,
    /// What was read of the next line, as long as it is not too long.
    begun: Vec<u8>,
    /// How much that is.
    bytes: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(input: R, limit: usize) -> Self {
        Self { input: BufReader::new(input), limit, begun: Vec::new(), bytes: 0 }
    }

    /// The next line without its end. One that is too long is passed over, not kept.
    async fn next(&mut self) -> std::io::Result<Option<Line>> {
        loop {
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

    fn line(&mut self) -> Line {
        let (bytes, mut line) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.begun));
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Line { bytes, body: (bytes <= self.limit).then_some(line) }
    }
}

/// Messages that are accepted together, with the numbers of their lines.
#[derive(Default)]
struct Batch {
    numbers: Vec<u64>,
    envelopes: Vec<Envelope>,
}

impl Batch {
    fn add(&mut self, number: u64, envelope: Envelope) {
        self.numbers.push(number);
        self.envelopes.push(envelope);
    }
}

/// Lines on their way into an inbox.
struct Intake<S: LogStore> {
    inbox: Inbox<S>,
    source: Source,
    headers: Headers,
    max_body_bytes: usize,
    bar: ProgressBar,
}

impl<S: LogStore> Intake<S> {
    /// Takes lines to the end, or until it is to stop. What was read by then is accepted: a pipe has it no more.
    async fn take(
        self,
        input: impl AsyncRead + Unpin,
        tally: &mut Tally,
        stop: &watch::Receiver<bool>,
    ) -> Result<()> {
        let mut lines = Lines::new(input, self.max_body_bytes);
        let mut number = 0;
        let mut more = true;
        while more {
            let mut batch = Batch::default();
            more = self.read(&mut lines, &mut number, &mut batch, tally, stop).await?;
            let answers = self.inbox.accept_all(batch.envelopes).await;
            for (line, answer) in batch.numbers.into_iter().zip(answers) {
                self.note(line, answer, tally)?;
            }
            self.bar.set_message(format!("{} accepted, {} duplicates", tally.accepted, tally.duplicates));
        }
        self.inbox.close().await;
        Ok(())
    }

    /// Reads the next messages: as many as may be, or as have come when the input pauses. Whether there may be more.
    async fn read<R: AsyncRead + Unpin>(
        &self,
        lines: &mut Lines<R>,
        number: &mut u64,
        batch: &mut Batch,
        tally: &mut Tally,
        stop: &watch::Receiver<bool>,
    ) -> Result<bool> {
        while batch.envelopes.len() < AT_ONCE {
            let pause = async {
                match batch.envelopes.is_empty() {
                    true => std::future::pending().await,
                    false => tokio::time::sleep(PAUSE).await,
                }
            };
            let read = tokio::select! {
                // Lines first: whoever stops it loses none of those that have left the pipe.
                biased;
                read = lines.next() => read,
                () = stopped(stop.clone()) => {
                    tally.interrupted = true;
                    return Ok(false);
                }
                () = pause => return Ok(true),
            };
            let Some(line) = read.with_context(|| format!("reading line {}", *number + 1))? else {
                return Ok(false);
            };
            *number += 1;
            self.bar.inc(line.bytes as u64 + 1);
            let Some(body) = line.body else {
                let why = format!("it has {} bytes, the limit is {}", line.bytes, self.max_body_bytes);
                self.refuse(*number, &why, tally);
                continue;
            };
            if body.is_empty() {
                continue;
            }
            match self.source.envelope(self.headers.clone(), body) {
                Ok(envelope) => batch.add(*number, envelope),
                Err(refusal) => self.refuse(*number, &self.advised(&refusal), tally),
            }
        }
        Ok(true)
    }

    fn note(&self, line: u64, answer: Result<Accept, Error>, tally: &mut Tally) -> Result<()> {
        match answer {
            Ok(Accept::Accepted(_)) => tally.accepted += 1,
            Ok(Accept::Duplicate { .. } | Accept::KeyReuse { .. }) => tally.duplicates += 1,
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
                self.refuse(line, &error.to_string(), tally);
            }
            Err(error) => {
                let advice = "at this line; run the same again, what was accepted is recognised";
                return Err(error).with_context(|| format!("line {line}: {advice}"));
            }
        }
        Ok(())
    }

    /// What is wrong, and what to say on this command line.
    fn advised(&self, refusal: &Refusal) -> String {
        match (refusal, &self.source.key) {
            (Refusal::MissingKey(_), None) => {
                "there is nothing to recognise a copy by: say where the key stands in each line, as in --key-pointer /id"
                    .to_owned()
            }
            _ => refusal.to_string(),
        }
    }

    fn refuse(&self, line: u64, why: &str, tally: &mut Tally) {
        tally.refused += 1;
        self.bar.suspend(|| {
            #[allow(clippy::print_stderr, reason = "the program speaks to a person")]
            {
                eprintln!("oncebox: line {line}: {why}");
            }
        });
    }
}
