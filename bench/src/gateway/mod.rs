//! `bench gateway`: the rate of the program for messages over HTTP, compared with a handler that inserts one row per
//! request; and its memory with a slow receiver.

mod backlog;
mod bare;
mod load;
mod program;

use std::process::ExitCode;

use anyhow::{Result, bail};
use oncebox_servers::postgres::{PostgresOptions, PostgresServer};
use tempfile::TempDir;

use crate::gateway::bare::BareGateway;
use crate::gateway::program::Program;
use crate::options::StoreName;
use crate::stats::median;

/// What to measure.
#[derive(clap::Args, Debug)]
pub(crate) struct GatewayOptions {
    /// Only on this database
    #[arg(long)]
    store: Option<StoreName>,
    /// How many clients send, each on a connection that it keeps; one measurement for each of these numbers
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [64, 128, 256])]
    connections: Vec<u32>,
    /// How long each round takes
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// How often each side is measured
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Instead: how much memory it needs with this many messages for a slow receiver
    #[arg(long, value_name = "MESSAGES")]
    backlog: Option<u64>,
    /// Print one JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

/// A database for both sides.
pub(crate) enum GatewayGround {
    Sqlite(TempDir),
    Postgres(PostgresServer),
}

impl GatewayGround {
    async fn new(store: StoreName) -> Result<Self> {
        Ok(match store {
            StoreName::Sqlite => Self::Sqlite(tempfile::tempdir()?),
            StoreName::Postgres => Self::Postgres(PostgresServer::start(PostgresOptions::default()).await?),
        })
    }

    /// The database of one of the two sides.
    pub(crate) fn url(&self, name: &str) -> String {
        match self {
            Self::Sqlite(folder) => {
                format!("sqlite://{}", folder.path().join(format!("{name}.db")).display())
            }
            Self::Postgres(server) => server.url(),
        }
    }
}

pub(crate) async fn run(options: &GatewayOptions) -> Result<ExitCode> {
    let stores = match options.store {
        Some(only) => vec![only],
        None => vec![StoreName::Sqlite, StoreName::Postgres],
    };
    for store in stores {
        let name = if store == StoreName::Sqlite { "sqlite" } else { "postgres" };
        match options.backlog {
            Some(messages) => {
                backlog::measure(name, &GatewayGround::new(store).await?, messages, options).await?;
            }
            None => {
                for &connections in &options.connections {
                    // An empty database each time: the clients send the same keys for every number of connections.
                    compare(name, &GatewayGround::new(store).await?, connections, options).await?;
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures both sides in turn, round after round.
async fn compare(
    store: &str,
    ground: &GatewayGround,
    connections: u32,
    options: &GatewayOptions,
) -> Result<()> {
    let bare = BareGateway::start(&ground.url("bare")).await?;
    let program = Program::start(&ground.url("oncebox"), "").await?;
    let (mut of_bare, mut of_program) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        eprintln!("{store}, {connections} connections: round {} of {}", round + 1, options.rounds);
        let keys = format!("r{round}");
        of_bare.push(load::run(&bare.url(), &keys, connections, options.seconds).await?);
        of_program.push(load::run(&program.url(), &keys, connections, options.seconds).await?);
    }
    let (kept, sent) = (program.accepted().await?, of_program.iter().map(|load| load.requests).sum::<u64>());
    // More is fine: `wrk` does not count requests that are in flight when a round ends.
    if kept < sent {
        bail!(
            "the program answered {sent} requests and has accepted {kept}: the measurement is worth nothing"
        );
    }
    program.stop().await?;
    let rate = |loads: &[load::Load]| median(&loads.iter().map(load::Load::rate).collect::<Vec<_>>());
    let (bare, program) = (rate(&of_bare), rate(&of_program));
    let ratio = program / bare;
    match options.json {
        true => println!(
            "{}",
            serde_json::json!({
                "scenario": "gateway", "store": store, "connections": connections,
                "bare_per_s": bare, "oncebox_per_s": program, "ratio": ratio,
            })
        ),
        false => println!(
            "{store}, {connections} connections: bare {bare:.0}/s, oncebox {program:.0}/s, {ratio:.2} times as many"
        ),
    }
    Ok(())
}
