//! Clients with kept connections: `wrk`, with a different key for each request.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tokio::process::Command;

const SCRIPT: &str = include_str!("load.lua");

/// The result of one round.
#[derive(Debug, Deserialize)]
pub(super) struct Load {
    pub(super) requests: u64,
    micros: u64,
    errors: u64,
}

impl Load {
    /// Requests per second.
    pub(super) fn rate(&self) -> f64 {
        self.requests as f64 * 1e6 / self.micros as f64
    }
}

/// Runs one round. Its keys begin with `keys`, so that they differ from those of other rounds.
pub(super) async fn run(url: &str, keys: &str, connections: u32, seconds: u32) -> Result<Load> {
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("load.lua");
    std::fs::write(&script, SCRIPT)?;
    let mut wrk = Command::new("wrk");
    wrk.args(["-t2", &format!("-c{connections}"), &format!("-d{seconds}s"), "-s"]).arg(&script);
    let output = wrk.args([url, "--", keys]).output().await;
    let output = output.context("running wrk: install it, as in `apt-get install wrk`")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    let load: Load = serde_json::from_str(last).with_context(|| format!("reading what wrk says: {text}"))?;
    // A refused request costs less than a stored one: with errors, the rate would be too high.
    ensure!(load.errors == 0, "{} of {} requests failed", load.errors, load.requests);
    Ok(load)
}
