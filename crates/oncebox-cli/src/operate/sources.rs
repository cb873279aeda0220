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
use crate::serve::reachable;
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

/// A source as the gateway reports it.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct SourceRow {
    name: String,
    state: String,
    for_ms: u64,
    sessions: u64,
    received: u64,
    acknowledged: u64,
    retried: u64,
    rejected: u64,
    in_flight: u64,
    oldest_unsettled_ms: Option<u64>,
    error: Option<String>,
    warnings: Vec<String>,
    /// Deliveries per second, over the last second.
    #[serde(default)]
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
    let mut rows = read(gateway, &config).await?;
    for row in &mut rows {
        let earlier = before.iter().find(|earlier| earlier.name == row.name);
        let received = row.received.saturating_sub(earlier.map_or(row.received, |earlier| earlier.received));
        row.received_per_second = rate(received, looked.elapsed());
    }
    for row in &rows {
        output.object(row)?;
    }
    output.line(table(&rows))?;
    for row in &rows {
        if let Some(error) = &row.error {
            output.line(format_args!("{}: {error}", row.name))?;
        }
        for warning in &row.warnings {
            output.line(format_args!("{}: warning: {warning}", row.name))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn read(gateway: SocketAddr, config: &Config) -> Result<Vec<SourceRow>> {
    #[derive(Deserialize)]
    struct Sources {
        sources: Vec<SourceRow>,
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

fn table(rows: &[SourceRow]) -> TextTable {
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
    for row in rows {
        let oldest =
            row.oldest_unsettled_ms.map_or_else(|| "-".to_owned(), |ms| rough(Duration::from_millis(ms)));
        table.row([
            row.name.clone(),
            row.state.clone(),
            format!("{:.1}", row.received_per_second),
            row.received.to_string(),
            row.acknowledged.to_string(),
            row.retried.to_string(),
            row.rejected.to_string(),
            row.in_flight.to_string(),
            oldest,
        ]);
    }
    table
}
