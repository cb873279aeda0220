//! `oncebox prune`: removes expired messages and markers now.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use oncebox::{Operators, Retention};
use serde_json::json;

use crate::cli::CommonArgs;
use crate::config::Config;
use crate::output::CommandOutput;
use crate::store::OpenPurpose;
use crate::times::{parse_duration, rfc3339, rough};

/// Options of `prune`. Only time with a live process counts.
#[derive(clap::Args, Debug)]
pub(crate) struct PruneArgs {
    /// How long markers are kept; longer than any source redelivers [default: retention.markers of the configuration,
    /// otherwise 7d]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    retention: Option<Duration>,
    /// How long messages are kept after all their handlers have passed them [default: retention.messages of the configuration,
    /// otherwise 1d]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    keep_messages: Option<Duration>,
}

pub(crate) async fn run(common: &CommonArgs, options: &PruneArgs) -> Result<ExitCode> {
    // By the configuration of the programs, because a shorter retention would delete markers that they still need.
    let config = Config::load(common)?;
    let period = options.retention.or(config.keep_markers).unwrap_or(Retention::DEFAULT_PERIOD);
    let keep_messages = options.keep_messages.or(config.keep_messages);
    let opened = config.target.open_ready(OpenPurpose::Act).await?;
    let retention = Retention::new().period(period);
    let operators = opened.operators_keeping(retention, keep_messages).await?;
    prune(&operators, period, common.output()).await?;
    Ok(ExitCode::SUCCESS)
}

async fn prune(operators: &Operators, period: Duration, output: CommandOutput) -> Result<()> {
    let swept = operators.sweep().await?;
    let pruned = operators.prune().await?;
    let before = swept.before_ms.and_then(time_of);
    output.object(&json!({
        "messages": pruned.messages,
        "accept_markers": pruned.markers,
        "markers": swept.deleted,
        "markers_before": before.map(rfc3339),
    }))?;
    output.line(format_args!(
        "Removed {} messages, {} accept markers and {} handler markers",
        pruned.messages, pruned.markers, swept.deleted
    ))?;
    match before {
        Some(time) => output.line(format_args!("Markers from before {} had expired", rfc3339(time))),
        None => output.line(format_args!(
            "No marker has expired: processes have not yet been live for {} in total, and only live time counts",
            rough(period)
        )),
    }
}

fn time_of(ms: i64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(u64::try_from(ms).ok()?))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// The help of `prune` and `doctor` names the library's default.
    #[test]
    fn the_help_names_the_default_retention() {
        assert_eq!(parse_duration("7d"), Ok(Retention::DEFAULT_PERIOD));
        for command in ["prune", "doctor"] {
            let mut cli = crate::cli::Cli::command();
            let help = cli.find_subcommand_mut(command).unwrap().render_long_help().to_string();
            let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(help.contains("retention.markers of the configuration, otherwise 7d]"), "{help}");
        }
    }
}
