//! `oncebox outbox status`: waiting messages, who moves them, disk space, and the relays.

use anyhow::Result;
use oncebox::store::{HandlerStatus, OutboxSize, Peer};
use oncebox::{Operators, OutboxStatus};
use serde::Serialize;

use crate::operate::known;
use crate::operate::status::{is_alive, millis, outbox_text};
use crate::output::CommandOutput;
use crate::store::Opened;
use crate::table::TextTable;
use crate::times::rough;

pub(super) async fn run(opened: &Opened, operators: &Operators, output: CommandOutput) -> Result<()> {
    let (outbox, size) = (opened.outbox_status().await?, opened.outbox_size().await?);
    let relays = known::relays(operators).await?;
    let peers = operators.processes().await?;
    let movers: Vec<&str> = movers(&peers).map(|peer| &*peer.name).collect();
    output.object(&OutboxReport::new(outbox, size, &movers, &relays))?;
    output.line(outbox_text(outbox))?;
    match movers.is_empty() {
        true => output.line(NO_MOVER)?,
        false => output.line(format_args!("moved by: {}", movers.join(", ")))?,
    }
    let sizes = size_text(size);
    if !sizes.is_empty() {
        output.line(format_args!("disk space: {sizes}"))?;
    }
    output.line("")?;
    match relays.is_empty() {
        true => output.line("No relays: published messages go to the handlers of this database."),
        false => output.line(relay_table(&relays)),
    }
}

const NO_MOVER: &str = "No process moves messages: start `oncebox serve` or `oncebox work`, or a program that calls run() on the \
                        outbox or on an inbox with .outbox(&outbox).";

/// The live processes that have an outbox.
pub(crate) fn movers(peers: &[Peer]) -> impl Iterator<Item = &Peer> {
    peers.iter().filter(|peer| peer.moves && is_alive(peer))
}

fn relay_table(relays: &[HandlerStatus]) -> TextTable {
    let names = ["relay", "state", "kinds", "lag", "oldest waiting", "retries", "parked", "keep sent"];
    let mut table = TextTable::new(names).right([3, 4, 5, 6, 7]);
    for status in relays {
        let relay = &status.handler;
        let time = |time: Option<std::time::Duration>| time.map_or_else(|| "-".to_owned(), rough);
        table.row([
            relay.name.clone(),
            known::state_name(relay.state).to_owned(),
            relay.kinds.join(", "),
            status.lag.to_string(),
            time(status.oldest_waiting),
            status.tasks.to_string(),
            status.dead.to_string(),
            time(relay.keep),
        ]);
    }
    table
}

fn size_text(size: OutboxSize) -> String {
    let sizes = [("outbox", size.outbox), ("log", size.log), ("database", size.database)];
    let sizes = sizes.into_iter().filter_map(|(name, size)| Some(format!("{name} {}", bytes_text(size?))));
    sizes.collect::<Vec<_>>().join(", ")
}

/// `17 KiB`, `3 MiB`: rounded up, so that nothing looks empty.
fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut size, mut unit) = (bytes, 0);
    while size >= 10 * 1024 && unit + 1 < UNITS.len() {
        size = size.div_ceil(1024);
        unit += 1;
    }
    format!("{size} {}", UNITS[unit])
}

/// The status in JSON.
#[derive(Debug, Serialize)]
struct OutboxReport<'a> {
    waiting: u64,
    oldest_ms: Option<u64>,
    moved_by: &'a [&'a str],
    bytes: SizeField,
    relays: Vec<RelayField<'a>>,
}

#[derive(Debug, Serialize)]
struct SizeField {
    outbox: Option<u64>,
    log: Option<u64>,
    database: Option<u64>,
}

#[derive(Debug, Serialize)]
struct RelayField<'a> {
    name: &'a str,
    state: &'static str,
    kinds: &'a [String],
    ordered: bool,
    lag: u64,
    oldest_waiting_ms: Option<u64>,
    retries: u64,
    parked: u64,
    keep_sent_ms: Option<u64>,
}

impl<'a> OutboxReport<'a> {
    fn new(
        outbox: OutboxStatus,
        size: OutboxSize,
        movers: &'a [&'a str],
        relays: &'a [HandlerStatus],
    ) -> Self {
        let relay = |status: &'a HandlerStatus| RelayField {
            name: &status.handler.name,
            state: known::state_name(status.handler.state),
            kinds: &status.handler.kinds,
            ordered: status.handler.ordered.is_some(),
            lag: status.lag,
            oldest_waiting_ms: status.oldest_waiting.map(millis),
            retries: status.tasks,
            parked: status.dead,
            keep_sent_ms: status.handler.keep.map(millis),
        };
        Self {
            waiting: outbox.waiting,
            oldest_ms: outbox.oldest.map(millis),
            moved_by: movers,
            bytes: SizeField { outbox: size.outbox, log: size.log, database: size.database },
            relays: relays.iter().map(relay).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_at_a_glance() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (8_192, "8192 bytes"),
            (16_384, "16 KiB"),
            (10 * 1024 * 1024 - 1, "10 MiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(bytes_text(bytes), text);
        }
    }
}
