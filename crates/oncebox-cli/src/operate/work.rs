//! `oncebox work`: runs the handlers of the configuration, without the gateway.

use std::process::ExitCode;

use anyhow::Result;
use oncebox::WorkReport;
use serde_json::json;

use crate::cli::Common;
use crate::config::Config;
use crate::exit::Usage;
use crate::output::Output;
use crate::serve::{inbox, log_to_stderr, stop_signals, stopped};
use crate::store::{For, with_store};

/// How long to work.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Do what is due now, and end; for cron
    #[arg(long)]
    once: bool,
}

/// Works until told to stop, or until nothing is left to do.
pub(crate) async fn run(common: &Common, options: &Options) -> Result<ExitCode> {
    let mut config = Config::load(common)?;
    if config.handlers.is_empty() {
        return Err(Usage(
            "there is no handler to run: describe one in oncebox.toml, as in\n\n    [handlers.receipts]\n    kinds = [\"order.paid\"]\n    \
             url = \"https://example.com/receipts\""
                .to_owned(),
        )
        .into());
    }
    config.check_programs()?;
    log_to_stderr();
    let opened = config.target.open_ready(For::Working).await?;
    let report = with_store!(opened, store => {
        let inbox = inbox(store, &config, true).await?;
        let stop = stopped(stop_signals()?);
        let report = if options.once {
            tokio::select! {
                report = inbox.work_until_idle() => report?,
                () = stop => {
                    common.output().say("interrupted: what was in hand is delivered again")?;
                    return Ok(ExitCode::from(130));
                }
            }
        } else {
            inbox.run(stop).await?
        };
        inbox.close().await;
        report
    });
    say(common.output(), &report)?;
    Ok(ExitCode::SUCCESS)
}

fn say(out: Output, report: &WorkReport) -> Result<()> {
    let WorkReport { done, failed, dead, .. } = report;
    out.say(format_args!("{done} done, {failed} failed and will be tried again, {dead} dead letters"))?;
    out.object(&json!({ "done": done, "failed": failed, "dead": dead }))
}
