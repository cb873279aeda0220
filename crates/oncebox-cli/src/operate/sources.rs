//! `oncebox sources`: what a running gateway takes from brokers.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oncebox_http::delivery::client;
use serde::{Deserialize, Serialize};

use crate::cli::CommonArgs;
use crate::config::Config;
use crate::exit::Usage;
use crate::serve::{SourceReport, reachable};
use crate::table::TextTable;
use crate::times::rough;

/// The time between the two looks that a rate needs.
const RATE_TIME: Duration = Duration::from_secs(1);
/// The time limit for a response of the gateway.
const LIMIT: Duration = Duration::from_secs(5);

/// Options of `sources`.
#[derive(clap::Args, Debug)]
pub(crate) struct SourcesArgs {
    /// The address of the gateway [default: http.listen of the configuration, otherwise 127.0.0.1:8080]
    #[arg(long, value_name = "IP:PORT")]
    gateway: Option<SocketAddr>,
}

/// A source as the gateway reports it, with its rate.
#[derive(Clone, Debug, Serialize)]
struct RatedSource {
    #[serde(flatten)]
    report: SourceReport,
    /// Deliveries per second, over the last second.
    received_per_second: f64,
}

pub(crate) async fn run(common: &CommonArgs, options: &SourcesArgs) -> Result<ExitCode> {
    let config = Config::load(common)?;
    let gateway = reachable(options.gateway.unwrap_or(config.http.listen));
    let before = read(gateway, &config).await?;
    let output = common.output();
    if before.is_empty() {
        output.line(
            "No sources of brokers: add [brokers.NAME] and a source with type = \"rabbitmq\" to the configuration.",
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let looked = Instant::now();
    tokio::time::sleep(RATE_TIME).await;
    let now = read(gateway, &config).await?;
    let rated = |report: SourceReport| {
        let earlier = before.iter().find(|earlier| earlier.name == report.name);
        // A gateway that was restarted counts from 0 again.
        let received = earlier.map_or(0, |earlier| report.received.saturating_sub(earlier.received));
        RatedSource { report, received_per_second: rate(received, looked.elapsed()) }
    };
    let rows: Vec<RatedSource> = now.into_iter().map(rated).collect();
    for row in &rows {
        output.object(row)?;
    }
    output.line(table(&rows))?;
    for SourceReport { name, error, warnings, .. } in rows.iter().map(|row| &row.report) {
        if let Some(error) = error {
            output.line(format_args!("{name}: {error}"))?;
        }
        for warning in warnings {
            output.line(format_args!("{name}: warning: {warning}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn read(gateway: SocketAddr, config: &Config) -> Result<Vec<SourceReport>> {
    #[derive(Deserialize)]
    struct Sources {
        sources: Vec<SourceReport>,
    }

    let mut request = client()?.get(format!("http://{gateway}/sources")).timeout(LIMIT);
    if let Some(token) = &config.http.token {
        request = request.bearer_auth(token);
    }
    let response = request.send().await.map_err(|error| {
        Usage(format!(
            "no gateway responds at {gateway} ({}): start `oncebox serve`, or name another address with --gateway",
            if error.is_timeout() { "time limit reached" } else { "no connection" }
        ))
    })?;
    let status = response.status();
    let body = response.bytes().await.context("reading the gateway's response")?;
    if !status.is_success() {
        bail!("the gateway at {gateway} responded with {status}: check http.token of the configuration");
    }
    let sources: Sources = serde_json::from_slice(&body).with_context(|| {
        format!(
            "the server at {gateway} is no gateway of this version: name the right address with --gateway"
        )
    })?;
    Ok(sources.sources)
}

#[allow(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64().max(0.001)
}

fn table(rows: &[RatedSource]) -> TextTable {
    let names = [
        "source",
        "state",
        "received/s",
        "received",
        "acknowledged",
        "retried",
        "rejected",
        "in flight",
        "oldest",
    ];
    let mut table = TextTable::new(names).right([2, 3, 4, 5, 6, 7, 8]);
    for RatedSource { report, received_per_second } in rows {
        let oldest = report.oldest_unsettled_ms.map(|ms| rough(Duration::from_millis(ms)));
        table.row([
            report.name.clone(),
            report.state.clone(),
            format!("{received_per_second:.1}"),
            report.received.to_string(),
            report.acknowledged.to_string(),
            report.retried.to_string(),
            report.rejected.to_string(),
            report.in_flight.to_string(),
            oldest.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    table
}
