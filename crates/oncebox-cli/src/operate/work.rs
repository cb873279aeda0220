//! `oncebox work`: runs the handlers of the configuration, without the gateway.

use std::process::ExitCode;

use anyhow::Result;
use oncebox::WorkReport;
use serde_json::json;

use crate::cli::CommonArgs;
use crate::config::Config;
use crate::deliver;
use crate::exit::Usage;
use crate::output::CommandOutput;
use crate::serve::{log_to_stderr, stop_signals, stopped};
use crate::store::OpenPurpose;

/// Options of `work`.
#[derive(clap::Args, Debug)]
pub(crate) struct WorkArgs {
    /// Handle all due messages, then exit: for cron
    #[arg(long)]
    once: bool,
}

/// Runs the handlers until a signal, or with `--once` until no message is due.
pub(crate) async fn run(common: &CommonArgs, options: &WorkArgs) -> Result<ExitCode> {
    let mut config = Config::load(common)?;
    if !config.delivers() {
        return Err(Usage(
            "no handler and no relay is configured: add one to oncebox.toml, for example\n\n    [handlers.receipts]\n    kinds = [\"order.paid\"]\n    \
             url = \"https://example.com/receipts\""
                .to_owned(),
        )
        .into());
    }
    config.check_programs()?;
    log_to_stderr();
    let opened = config.target.open_ready(OpenPurpose::Run).await?;
    match deliver::work(opened, &config, options.once, stopped(stop_signals()?)).await? {
        Some(report) => {
            print(common.output(), &report)?;
            Ok(ExitCode::SUCCESS)
        }
        None => {
            common.output().line("Interrupted: unfinished work will be delivered again.")?;
            Ok(ExitCode::from(130))
        }
    }
}

fn print(out: CommandOutput, report: &WorkReport) -> Result<()> {
    let WorkReport { done, failed, dead, .. } = report;
    out.line(format_args!("{done} done, {failed} failed and will be retried, {dead} dead letters"))?;
    out.object(&json!({ "done": done, "failed": failed, "dead": dead }))
}
