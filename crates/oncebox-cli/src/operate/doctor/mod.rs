//! `oncebox doctor`: what could lose, repeat or delay messages, and what to do about it.

mod check;
mod log;
mod postgres;
mod sqlite;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use oncebox::Retention;
use serde_json::json;

use check::{Check, Level};

use crate::cli::Common;
use crate::config::Config;
use crate::exit::{NotFound, in_words};
use crate::output::Output;
use crate::store::{For, Opened, Target};
use crate::times::{parse_duration, rough};

/// As long as the patient ones among webhook senders try.
const REDELIVERY: Duration = Duration::from_secs(3 * 24 * 60 * 60);

/// What to compare with.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// How long your programs keep markers [default: retention.markers of the configuration, else 7d]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    retention: Option<Duration>,
    /// How long your sources deliver a message again [default: the longest redelivers_for of the configuration, else 3d]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    redelivery: Option<Duration>,
    /// Also read the whole SQLite database, which takes its time
    #[arg(long)]
    deep: bool,
}

pub(crate) async fn run(common: &Common, options: &Options) -> Result<ExitCode> {
    let config = Config::load(common)?;
    let mut checks = examine(&config.target, options).await?;
    checks.push(retention(
        options.retention.or(config.keep_markers).unwrap_or(Retention::DEFAULT_PERIOD),
        options.redelivery.or(config.redelivery).unwrap_or(REDELIVERY),
    ));
    let has_problem = checks.iter().any(|check| check.level == Level::Problem);
    report(&checks, !has_problem, common.output())?;
    Ok(if has_problem { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// All checks. One that cannot be made is a problem, and no reason to leave out the others.
async fn examine(target: &Target, options: &Options) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    // Before the store is opened, which sets its own mode.
    if let Some(file) = target.file() {
        checks.extend(sqlite::of_the_file(&target.url, file).await);
    }
    match target.open(For::Looking).await {
        Ok(opened) => {
            checks.push(Check::ok("connect", format!("{} answers", target.shown())));
            checks.extend(of_the_database(&opened, target, options).await);
        }
        // The wrong file, or no database at all: there is nothing to examine.
        Err(error) if error.is::<NotFound>() || error.is::<crate::exit::Usage>() => return Err(error),
        Err(error) => {
            let fix = match target.is_sqlite() {
                true => {
                    "see that --store names the right file, and that this user may read and write it and its folder"
                }
                false => {
                    "see that the database runs, and that --store names it with the right user and password"
                }
            };
            checks.push(Check::problem("connect", in_words(&error), fix));
        }
    }
    Ok(checks)
}

async fn of_the_database(opened: &Opened, target: &Target, options: &Options) -> Vec<Check> {
    let mut checks = match opened {
        Opened::Sqlite(store) => sqlite::of_the_store(store.pool(), options.deep).await,
        Opened::Postgres(store) => postgres::of_the_server(store.pool(), target.schema_name()).await,
    };
    let version = log::schema_version(opened.schema_version().await, target.is_sqlite());
    let is_ready = version.level == Level::Ok;
    checks.push(version);
    if is_ready {
        checks.extend(log::of_the_log(opened.operators().await, target.is_sqlite()).await);
    }
    checks
}

/// A copy that comes after its marker is gone takes effect again.
fn retention(kept: Duration, delivered: Duration) -> Check {
    let is_short = kept <= delivered;
    let (kept, delivered) = (rough(kept), rough(delivered));
    match is_short {
        true => Check::warning(
            "retention",
            format!(
                "markers are kept for {kept}, and sources deliver again for {delivered}: a late copy would take effect again"
            ),
            "keep markers longer than any source delivers again",
        ),
        false => Check::ok(
            "retention",
            format!("markers are kept for {kept}, sources deliver again for {delivered}"),
        ),
    }
}

fn report(checks: &[Check], ok: bool, output: Output) -> Result<()> {
    output.object(&json!({ "ok": ok, "checks": checks }))?;
    let width = checks.iter().map(|check| check.id.len()).max().unwrap_or(0);
    for check in checks {
        output.say(format_args!("{:<8} {:<width$}  {}", check.level.name(), check.id, check.message))?;
        if let Some(fix) = &check.fix {
            output.say(format_args!("{:<8} {:<width$}  -> {fix}", "", ""))?;
        }
    }
    let count = |level: Level| checks.iter().filter(|check| check.level == level).count();
    output.say("")?;
    output.say(format_args!("problems: {}, warnings: {}", count(Level::Problem), count(Level::Warning)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_outlive_the_last_copy() {
        let days = |n: u64| Duration::from_secs(n * 86_400);
        let check = |kept, delivered| retention(days(kept), days(delivered)).level;
        assert_eq!(check(7, 3), Level::Ok);
        assert_eq!(check(3, 3), Level::Warning);
        assert_eq!(check(1, 3), Level::Warning);
    }
}
