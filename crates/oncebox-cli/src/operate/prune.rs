//! `oncebox prune`: removes what retention no longer needs, now.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use oncebox::{Operators, Retention};
use serde_json::json;

use crate::cli::Common;
use crate::config::Config;
use crate::output::Output;
use crate::store::For;
use crate::times::{parse_duration, rfc3339, rough};

/// How long what is kept. Only time with a live process counts.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// How long markers are kept: longer than any source delivers again [default: retention.markers of the configuration, else
    /// 7d]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    retention: Option<Duration>,
    /// How long messages are kept that all handlers have passed [default: retention.messages of the configuration, else 1d]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    keep_messages: Option<Duration>,
}

pub(crate) async fn run(common: &Common, options: &Options) -> Result<ExitCode> {
    let config = Config::load(common)?;
    let period = options.retention.or(config.keep_markers).unwrap_or(Retention::DEFAULT_PERIOD);
    let keep_messages = options.keep_messages.or(config.keep_messages);
    let opened = config.target.open_ready(For::Acting).await?;
    let retention = Retention::new().period(period);
    let operators = opened.operators_keeping(retention, keep_messages).await?;
    prune(&operators, period, common.output()).await?;
    Ok(ExitCode::SUCCESS)
}

async fn prune(operators: &Operators, period: Duration, output: Output) -> Result<()> {
    let swept = operators.sweep().await?;
    let pruned = operators.prune().await?;
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
            rough(period)
        )),
    }
}

fn time_of(ms: i64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(u64::try_from(ms).ok()?))
}
