//! `oncebox publish`: publishes messages from files or standard input into the outbox, one per line.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use oncebox::source::text_at;
use oncebox::store::{Fault, Limits};
use oncebox::{Envelope, Error, ErrorKind, Headers, MessageId, Outbox, OutboxStore};
use serde::Serialize;
use serde_json::Value;
use tokio::fs::File;
use tokio::io::AsyncRead;
use tokio::sync::watch;

use crate::cli::CommonArgs;
use crate::config::Config;
use crate::exit::chain_text;
use crate::operate::lines::{
    AfterBatch, LineBatch, LineReport, MessageReader, check_pointers, headers, progress_bar,
};
use crate::output::CommandOutput;
use crate::serve::stop_signals;
use crate::store::{OpenPurpose, with_store};

/// The maximum size of a line without a configuration, as for the library.
const LINE_MAX_BYTES: usize = 1024 * 1024;
/// The limits of a batch's transaction, which only inserts.
const LIMITS: Limits = Limits {
    lock_timeout: Duration::from_secs(60),
    body_lock_timeout: None,
    handler_timeout: Duration::from_secs(60),
};

/// Options of `publish`.
#[derive(clap::Args, Debug)]
pub(crate) struct PublishArgs {
    /// The files, with one message per line; `-` is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    fields: MessageFields,
    /// A header for all messages, for example 'content-type: application/json'; repeatable
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
}

/// Where the parts of a message are in a line.
#[derive(clap::Args, Clone, Debug, Default)]
struct MessageFields {
    /// The kind, for lines without one at --kind-pointer
    #[arg(long, required_unless_present = "kind_pointer")]
    kind: Option<String>,
    /// Where the kind is in each line, for example /type
    #[arg(long, value_name = "POINTER")]
    kind_pointer: Option<String>,
    /// Where the key is in each line, for example /id [default: no key; then each run publishes new messages]
    #[arg(long, value_name = "POINTER")]
    key_pointer: Option<String>,
    /// Where the ordering key is in each line, for example /customer [default: no order]
    #[arg(long, value_name = "POINTER")]
    order_pointer: Option<String>,
}

impl MessageFields {
    fn check(&self) -> Result<()> {
        check_pointers([&self.kind_pointer, &self.key_pointer, &self.order_pointer])
    }

    /// The message of a line.
    fn envelope(&self, headers: Headers, body: Vec<u8>) -> Result<Envelope, String> {
        let json = self.parse(&body)?;
        let at = |pointer: &Option<String>| match (pointer, &json) {
            (Some(pointer), Some(json)) => text_at(json, pointer).map_err(|invalid| invalid.to_string()),
            _ => Ok(None),
        };
        let kind = at(&self.kind_pointer)?.filter(|kind| !kind.is_empty()).or_else(|| self.kind.clone());
        let kind = kind.ok_or_else(|| missing(&self.kind_pointer, "kind", "or add --kind KIND"))?;
        // An empty key would make all messages duplicates of the first.
        let key = at(&self.key_pointer)?.filter(|key| !key.is_empty());
        if self.key_pointer.is_some() && key.is_none() {
            return Err(missing(&self.key_pointer, "key", "or leave --key-pointer out"));
        }
        let mut envelope = Envelope::new(kind, body).with_headers(headers);
        if let Some(key) = key {
            envelope = envelope.with_key(key);
        }
        if let Some(order) = at(&self.order_pointer)? {
            envelope = envelope.with_order_by(order);
        }
        Ok(envelope)
    }

    /// The line as JSON, if a pointer reads it.
    fn parse(&self, body: &[u8]) -> Result<Option<Value>, String> {
        let mut pointers = [&self.kind_pointer, &self.key_pointer, &self.order_pointer].into_iter().flatten();
        let Some(pointer) = pointers.next() else { return Ok(None) };
        let json = serde_json::from_slice(body);
        json.map(Some).map_err(|error| {
            format!("the line of {} bytes is not JSON ({error}): {pointer} is read from it", body.len())
        })
    }
}

fn missing(pointer: &Option<String>, what: &str, remedy: &str) -> String {
    let pointer = pointer.as_deref().unwrap_or_default();
    format!("no value at {pointer} in the line, where its {what} should be: add it, {remedy}")
}

/// The results of all lines.
#[derive(Debug, Default, Serialize)]
struct PublishCounts {
    published: u64,
    refused: u64,
    /// Whether a signal stopped the command before the end of the input.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
}

/// Publishes all valid lines, and reports the others.
pub(crate) async fn run(common: &CommonArgs, options: &PublishArgs) -> Result<ExitCode> {
    let config = Config::load(common)?;
    options.fields.check()?;
    let headers = headers(&options.headers)?;
    // All of them first: a misspelt name must not be found after half of the messages are published.
    for file in options.files.iter().filter(|file| !is_standard_input(file)) {
        open(file).await?;
    }
    let bar = progress_bar(common.json, options.files.iter().map(|file| &**file)).await;
    let opened = config.target.open_ready(OpenPurpose::Act).await?;
    let stop = stop_signals()?;
    let mut counts = PublishCounts::default();
    with_store!(opened, store => {
        let max_bytes = config.http.max_body_bytes.unwrap_or(LINE_MAX_BYTES);
        let mut outbox = Outbox::builder(store).max_body_bytes(max_bytes).metrics(false);
        if let Some(lanes) = config.lanes {
            outbox = outbox.lanes(lanes);
        }
        let outbox = outbox.build().await?;
        let (fields, output) = (options.fields.clone(), common.output());
        let run = PublishRun { outbox, fields, headers, max_bytes, bar: bar.clone(), output };
        run.publish_files(&options.files, &mut counts, &stop).await?;
    });
    bar.finish_and_clear();
    report(common.output(), &counts, options)
}

fn is_standard_input(file: &Path) -> bool {
    file.as_os_str() == "-"
}

async fn open(file: &Path) -> Result<File> {
    File::open(file).await.with_context(|| format!("cannot open {}", file.display()))
}

fn report(out: CommandOutput, counts: &PublishCounts, options: &PublishArgs) -> Result<ExitCode> {
    let PublishCounts { published, refused, interrupted } = counts;
    out.line(format_args!("{published} published, {refused} refused"))?;
    if *interrupted {
        let next = match options.fields.key_pointer {
            Some(_) => "Run the same command again: messages with a known key are not delivered again.",
            None => {
                "The lines have no keys: publish the rest only, because published lines would be delivered again."
            }
        };
        out.line(format_args!("Interrupted: all lines read so far are published. {next}"))?;
    }
    out.object(counts)?;
    if *interrupted {
        // `exit`, because the runtime would wait for the thread that reads standard input.
        std::process::exit(130);
    }
    // A failure, so that scripts notice lines that are not published.
    Ok(if *refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Publishes the lines of inputs.
struct PublishRun<S: OutboxStore> {
    outbox: Outbox<S>,
    fields: MessageFields,
    headers: Headers,
    max_bytes: usize,
    bar: ProgressBar,
    output: CommandOutput,
}

impl<S: OutboxStore> PublishRun<S> {
    async fn publish_files(
        &self,
        files: &[PathBuf],
        counts: &mut PublishCounts,
        stop: &watch::Receiver<bool>,
    ) -> Result<()> {
        for file in files {
            // With a single input the number of a line is enough.
            let report = LineReport { bar: &self.bar, file: (files.len() > 1).then_some(&**file) };
            let after = match is_standard_input(file) {
                true => self.publish_lines(tokio::io::stdin(), report, counts, stop).await?,
                false => self.publish_lines(open(file).await?, report, counts, stop).await?,
            };
            if after == AfterBatch::Interrupted {
                counts.interrupted = true;
                break;
            }
        }
        Ok(())
    }

    /// Publishes lines until the end or a signal. Lines read before the signal are published, because a pipe has them no more.
    async fn publish_lines(
        &self,
        input: impl AsyncRead + Unpin,
        report: LineReport<'_>,
        counts: &mut PublishCounts,
        stop: &watch::Receiver<bool>,
    ) -> Result<AfterBatch> {
        let mut reader = MessageReader::new(input, self.max_bytes, report);
        let envelope = |body| self.fields.envelope(self.headers.clone(), body);
        loop {
            let mut batch = LineBatch::default();
            let after = reader.next(&mut batch, stop, envelope).await?;
            counts.refused += batch.refused;
            self.publish_batch(batch, report, counts).await?;
            self.bar.set_message(format!("{} published", counts.published));
            if after != AfterBatch::More {
                return Ok(after);
            }
        }
    }

    async fn publish_batch(
        &self,
        batch: LineBatch,
        report: LineReport<'_>,
        counts: &mut PublishCounts,
    ) -> Result<()> {
        let (Some(first), Some(last)) = (batch.numbers.first(), batch.numbers.last()) else { return Ok(()) };
        let results = self.commit(batch.envelopes).await;
        let results = results.map_err(|failed| {
            let (from, to) = (report.place(*first), *last);
            let what = match failed.is_unknown {
                true => {
                    format!("{from} to {to}: the commit got no response, so they may be published or not")
                }
                false => format!("{from} to {to} are not published"),
            };
            let advice = match (self.fields.key_pointer.is_some(), failed.is_unknown) {
                (true, _) => "run the same command again, because known keys are not delivered again",
                (false, false) => {
                    "publish again from there, because lines before it would be delivered again"
                }
                (false, true) => "look for them with `oncebox outbox list`, and publish the rest",
            };
            anyhow::Error::from(failed.error).context(format!("{what}: {advice}"))
        })?;
        for (line, result) in batch.numbers.into_iter().zip(results) {
            match result {
                Ok(id) => {
                    counts.published += 1;
                    let file = report.file.map(|file| file.display().to_string());
                    self.output.object(&PublishedLine { file, line, id: id.to_string() })?;
                }
                Err(refused) => {
                    counts.refused += 1;
                    report.refuse(line, &chain_text(&refused));
                }
            }
        }
        Ok(())
    }

    /// Publishes messages in one transaction. Refused ones do not stop the others.
    async fn commit(&self, envelopes: Vec<Envelope>) -> Result<Vec<Result<MessageId, Error>>, FailedBatch> {
        let store = self.outbox.store();
        let mut tx = store.begin(LIMITS).await?;
        store.arm(&mut tx).await?;
        let conn = S::connection(&mut tx);
        let results = match self.outbox.publish_envelopes(conn, envelopes.clone()).await {
            Ok(ids) => ids.into_iter().map(Ok).collect(),
            // Nothing of that call is written: one by one, to know which are refused.
            Err(error) if is_refused(&error) => {
                let mut results = Vec::with_capacity(envelopes.len());
                for envelope in envelopes {
                    match self.outbox.publish_envelope(conn, envelope).await {
                        Err(error) if !is_refused(&error) => return Err(error.into()),
                        result => results.push(result),
                    }
                }
                results
            }
            Err(error) => return Err(error.into()),
        };
        store
            .commit(tx)
            .await
            .map_err(|error| FailedBatch { is_unknown: S::classify(&error) == Fault::Connection, error })?;
        Ok(results)
    }
}

/// Whether a message is refused before it is written.
fn is_refused(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Key | ErrorKind::Envelope | ErrorKind::TooLarge | ErrorKind::Configuration
    )
}

/// A batch that was not published, or of which that is unknown.
struct FailedBatch {
    error: Error,
    is_unknown: bool,
}

impl From<Error> for FailedBatch {
    fn from(error: Error) -> Self {
        Self { error, is_unknown: false }
    }
}

/// A published line in JSON.
#[derive(Debug, Serialize)]
struct PublishedLine {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    line: u64,
    id: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(kind: Option<&str>, kind_pointer: Option<&str>, key_pointer: Option<&str>) -> MessageFields {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        MessageFields {
            kind: owned(kind),
            kind_pointer: owned(kind_pointer),
            key_pointer: owned(key_pointer),
            order_pointer: Some("/customer".to_owned()),
        }
    }

    fn envelope(fields: &MessageFields, line: &Value) -> Result<Envelope, String> {
        fields.envelope(Headers::new(), line.to_string().into_bytes())
    }

    #[test]
    fn the_parts_of_a_message_are_found_by_pointers() {
        let all = fields(None, Some("/type"), Some("/id"));
        let paid = envelope(&all, &json!({"id": 7, "type": "paid", "customer": "ann"})).unwrap();
        assert_eq!(paid.kind(), "paid");
        assert_eq!(paid.key().unwrap().as_bytes(), b"7");
        assert_eq!(paid.order_by().unwrap().as_bytes(), b"ann");
        let error = envelope(&all, &json!({"type": "paid"})).unwrap_err();
        assert!(error.contains("no value at /id"), "{error}");
        let error = envelope(&all, &json!({"id": 7})).unwrap_err();
        assert!(error.contains("no value at /type") && error.contains("--kind KIND"), "{error}");
        let error = envelope(&all, &json!({"id": 7.5, "type": "paid"})).unwrap_err();
        assert!(error.contains("64-bit integer"), "{error}");
        let fallback = fields(Some("other"), Some("/type"), None);
        let other = envelope(&fallback, &json!({"id": 7})).unwrap();
        assert_eq!((other.kind(), other.key(), other.order_by()), ("other", None, None));
    }

    #[test]
    fn a_line_that_no_pointer_reads_may_have_any_bytes() {
        let plain = MessageFields { kind: Some("note".to_owned()), ..MessageFields::default() };
        assert_eq!(plain.envelope(Headers::new(), vec![0xff]).unwrap().body(), [0xff]);
        let error =
            fields(None, Some("/type"), None).envelope(Headers::new(), b"nonsense".to_vec()).unwrap_err();
        assert!(error.contains("8 bytes is not JSON"), "{error}");
    }
}
