//! `oncebox accept`: accepts messages from a file or standard input, one per line.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use oncebox::source::{FieldLocation, InvalidMessage, SourceRules};
use oncebox::{Accept, Error, ErrorKind, Headers, Inbox, LogStore};
use serde::Serialize;
use tokio::fs::File;
use tokio::io::AsyncRead;
use tokio::sync::watch;

use crate::cli::CommonArgs;
use crate::config::Config;
use crate::deliver::inbox;
use crate::exit::{Usage, chain_text};
use crate::operate::lines::{
    AfterBatch, LineBatch, LineReport, MessageReader, check_pointers, headers, progress_bar,
};
use crate::output::CommandOutput;
use crate::serve::stop_signals;
use crate::store::{OpenPurpose, with_store};

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
    let bar = progress_bar(common.json, [&*options.file]).await;
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

fn source(config: &Config, options: &AcceptArgs) -> Result<SourceRules> {
    let Some(mut source) = config.sources.find(&options.source) else {
        let problem = config.sources.unknown(&options.source);
        return Err(Usage(problem).into());
    };
    check_pointers([&options.key_pointer, &options.kind_pointer])?;
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

/// Accepts the lines of an input.
struct AcceptRun<S: LogStore> {
    inbox: Inbox<S>,
    source: SourceRules,
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
        let mut reader = MessageReader::new(input, self.inbox.max_body_bytes(), self.report());
        let envelope = |body| {
            let envelope = self.source.request(self.headers.clone(), body);
            envelope.map_err(|invalid| self.error_text(&invalid))
        };
        let mut after = AfterBatch::More;
        while after == AfterBatch::More {
            let mut batch = LineBatch::default();
            after = reader.next(&mut batch, stop, envelope).await?;
            counts.refused += batch.refused;
            let results = self.inbox.accept_all(batch.envelopes).await;
            for (line, result) in batch.numbers.into_iter().zip(results) {
                self.record(line, result, counts)?;
            }
            self.bar.set_message(format!("{} accepted, {} duplicates", counts.accepted, counts.duplicates));
        }
        counts.interrupted = after == AfterBatch::Interrupted;
        self.inbox.close().await;
        Ok(())
    }

    fn report(&self) -> LineReport<'_> {
        LineReport { bar: &self.bar, file: None }
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
                counts.refused += 1;
                self.report().refuse(line, &chain_text(&error));
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
}
