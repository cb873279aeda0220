//! `oncebox doctor`: checks for risks that lose, repeat or delay messages, and says what to do.

mod brokers;
mod check;
mod log;
mod postgres;
mod sqlite;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use oncebox::Retention;
use serde_json::json;

use check::{CheckLevel, DoctorCheck};

use crate::cli::CommonArgs;
use crate::config::Config;
use crate::exit::{NotFound, error_text};
use crate::output::CommandOutput;
use crate::store::{DatabaseTarget, OpenPurpose, Opened};
use crate::times::{parse_duration, rough};

/// The default for `--redelivery`: many webhook senders redeliver for up to three days.
const REDELIVERY: Duration = Duration::from_secs(3 * 24 * 60 * 60);

/// Options of `doctor`.
#[derive(clap::Args, Debug)]
pub(crate) struct DoctorArgs {
    /// How long your programs keep markers [default: retention.markers of the configuration, otherwise 7d]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    retention: Option<Duration>,
    /// How long your sources redeliver a message [default: the longest redelivers_for of the configuration, otherwise 3d]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    redelivery: Option<Duration>,
    /// Also read the whole SQLite file, which takes time
    #[arg(long)]
    deep: bool,
}

pub(crate) async fn run(common: &CommonArgs, options: &DoctorArgs) -> Result<ExitCode> {
    let config = Config::load(common)?;
    let mut checks = examine(&config.target, options).await?;
    checks.extend(brokers::of_the_brokers(&config).await);
    checks.push(retention(
        options.retention.or(config.keep_markers).unwrap_or(Retention::DEFAULT_PERIOD),
        options.redelivery.or(config.redelivery).unwrap_or(REDELIVERY),
    ));
    let has_problem = checks.iter().any(|check| check.level == CheckLevel::Problem);
    report(&checks, !has_problem, common.output())?;
    Ok(if has_problem { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs all checks. One that fails does not stop the others.
async fn examine(target: &DatabaseTarget, options: &DoctorArgs) -> Result<Vec<DoctorCheck>> {
    let mut checks = Vec::new();
    // Before the store is opened, because that sets the journal mode.
    if let Some(file) = target.file() {
        checks.extend(sqlite::of_the_file(&target.url, file).await);
    }
    match target.open(OpenPurpose::Read).await {
        Ok(opened) => {
            checks.push(DoctorCheck::ok("connect", format!("{} responds", target.redacted_url())));
            checks.extend(of_the_database(&opened, target, options).await);
        }
        // Without a database there is nothing to check.
        Err(error) if error.is::<NotFound>() || error.is::<crate::exit::Usage>() => return Err(error),
        Err(error) => {
            let fix = match target.is_sqlite() {
                true => {
                    "check that --store names the right file, and that this user may read and write it and its folder"
                }
                false => {
                    "check that the database runs, and that --store has the right host, user and password"
                }
            };
            checks.push(DoctorCheck::problem("connect", error_text(&error), fix));
        }
    }
    Ok(checks)
}

async fn of_the_database(opened: &Opened, target: &DatabaseTarget, options: &DoctorArgs) -> Vec<DoctorCheck> {
    let mut checks = match opened {
        Opened::Sqlite(store) => sqlite::of_the_store(store.pool(), options.deep).await,
        Opened::Postgres(store) => postgres::of_the_server(store.pool(), target.schema_name()).await,
    };
    let version = log::schema_version(opened.schema_version().await, target.is_sqlite());
    // Queries on tables of another version would fail, and hide the cause.
    let is_ready = version.level == CheckLevel::Ok;
    checks.push(version);
    if is_ready {
        let (operators, outbox) = (opened.operators().await, opened.outbox_status().await);
        checks.extend(log::of_the_log(operators, outbox, target.is_sqlite()).await);
    }
    checks
}

/// A duplicate that arrives after its marker was deleted takes effect again.
fn retention(kept: Duration, redelivered: Duration) -> DoctorCheck {
    let is_short = kept <= redelivered;
    let (kept, redelivered) = (rough(kept), rough(redelivered));
    match is_short {
        true => DoctorCheck::warning(
            "retention",
            format!(
                "markers are kept for {kept}, and sources redeliver for {redelivered}: a late duplicate would take effect again"
            ),
            "keep markers longer than any source redelivers",
        ),
        false => DoctorCheck::ok(
            "retention",
            format!("markers are kept for {kept}, and sources redeliver for {redelivered}"),
        ),
    }
}

fn report(checks: &[DoctorCheck], ok: bool, output: CommandOutput) -> Result<()> {
    output.object(&json!({ "ok": ok, "checks": checks }))?;
    let width = checks.iter().map(|check| check.id.len()).max().unwrap_or(0);
    for check in checks {
        output.line(format_args!("{:<8} {:<width$}  {}", check.level.name(), check.id, check.message))?;
        if let Some(fix) = &check.fix {
            output.line(format_args!("{:<8} {:<width$}  -> {fix}", "", ""))?;
        }
    }
    let count = |level: CheckLevel| checks.iter().filter(|check| check.level == level).count();
    output.line("")?;
    output.line(format_args!(
        "problems: {}, warnings: {}",
        count(CheckLevel::Problem),
        count(CheckLevel::Warning)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_must_be_kept_longer_than_sources_redeliver() {
        let days = |n: u64| Duration::from_secs(n * 86_400);
        let check = |kept, delivered| retention(days(kept), days(delivered)).level;
        assert_eq!(check(7, 3), CheckLevel::Ok);
        assert_eq!(check(3, 3), CheckLevel::Warning);
        assert_eq!(check(1, 3), CheckLevel::Warning);
    }
}
