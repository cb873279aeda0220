//! `oncebox prune`: removes what retention no longer needs, now.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use oncebox::{Inbox, LogStore, Retention};
use serde_json::json;

use crate::cli::Common;
use crate::output::Output;
use crate::store::{Target, with_store};
use crate::times::{parse_duration, rfc3339, rough};

/// How long what is kept. Only time with a live process counts.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// How long markers are kept: longer than any source delivers again
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = parse_duration)]
    retention: Duration,
    /// How long messages are kept that all handlers have passed
    #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = parse_duration)]
    keep_messages: Duration,
}

pub(crate) async fn run(common: &Common, options: &Options) -> Result<ExitCode> {
    let opened = Target::of(common)?.open_ready().await?;
    with_store!(opened, store => prune(store, options, common.output()).await)?;
    Ok(ExitCode::SUCCESS)
}

async fn prune<S: LogStore>(store: S, options: &Options, output: Output) -> Result<()> {
    let retention = Retention { period: options.retention, ..Retention::default() };
    let builder = Inbox::builder(store).for_operators().metrics(false).retention(retention);
    let inbox = builder.keep_messages(options.keep_messages).build().await?;
    let swept = inbox.sweep().await?;
    let pruned = inbox.prune().await?;
    let before = swept.before_ms.and_then(time_of);
    output.object(&json!({
        "messages": pruned.messages,
        "accept_markers": pruned.markers,
        "markers": swept.deleted,
        "markers_before": before.map(rfc3339),
    }))?;
    output.say(format_args!(
        "Removed {} messages, {} accept markers and {} markers of handlers",
        pruned.messages, pruned.markers, swept.deleted
    ))?;
    match before {
        Some(time) => output.say(format_args!("Markers from before {} were due", rfc3339(time))),
        None => output.say(format_args!(
            "No marker is due: processes have not been alive for {} in all yet, and only such time counts",
            rough(options.retention)
        )),
    }
}

fn time_of(ms: i64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(u64::try_from(ms).ok()?))
}
