//! `oncebox status`: handlers, unhandled kinds, the outbox and processes.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use oncebox::store::{HandlerStatus, Peer, UnhandledKind};
use oncebox::{Operators, OutboxStatus};
use serde::Serialize;

use crate::cli::CommonArgs;
use crate::operate::known;
use crate::output::CommandOutput;
use crate::store::{DatabaseTarget, OpenPurpose};
use crate::table::TextTable;
use crate::times::{ago, rfc3339, rough};

/// Options of `status`: only the common ones.
#[derive(clap::Args, Debug)]
pub(crate) struct StatusArgs {}

pub(crate) async fn run(common: &CommonArgs, _options: &StatusArgs) -> Result<ExitCode> {
    let target = DatabaseTarget::of(common)?;
    let opened = target.open_ready(OpenPurpose::Read).await?;
    let operators = opened.operators().await?;
    report(&operators, opened.outbox_status().await?, &target, common.output()).await?;
    Ok(ExitCode::SUCCESS)
}

async fn report(
    operators: &Operators,
    outbox: OutboxStatus,
    target: &DatabaseTarget,
    output: CommandOutput,
) -> Result<()> {
    let handlers = known::handlers(operators).await?;
    let unhandled = operators.unhandled_kinds().await?;
    let peers = operators.processes().await?;
    output.object(&StatusReport::new(operators, outbox, target, &handlers, &unhandled, &peers))?;
    let (store, guarantee) = (operators.store_name(), operators.guarantee());
    output.line(format_args!("{}: {store}, {guarantee}", target.redacted_url()))?;
    output.line("")?;
    match handlers.is_empty() {
        true => output.line("No handlers yet: programs register them when they start.")?,
        false => output.line(handler_table(&handlers))?,
    }
    print_unhandled(&unhandled, output)?;
    if outbox.waiting > 0 {
        output.line("")?;
        output.line(format_args!("outbox: {}", outbox_text(outbox)))?;
    }
    print_processes(&peers, &handlers, output)
}

/// A row for each handler.
pub(crate) fn handler_table(handlers: &[HandlerStatus]) -> TextTable {
    let names = ["handler", "state", "mode", "kinds", "lag", "oldest waiting", "tasks", "dead"];
    let mut table = TextTable::new(names).right([4, 5, 6, 7]);
    for status in handlers {
        let handler = &status.handler;
        table.row([
            handler.name.clone(),
            known::state_name(handler.state).to_owned(),
            handler.mode.name().to_owned(),
            handler.kinds.join(", "),
            status.lag.to_string(),
            status.oldest_waiting.map_or_else(|| "-".to_owned(), rough),
            status.tasks.to_string(),
            status.dead.to_string(),
        ]);
    }
    table
}

fn print_unhandled(unhandled: &[UnhandledKind], output: CommandOutput) -> Result<()> {
    if unhandled.is_empty() {
        return Ok(());
    }
    let mut table = TextTable::new(["unhandled kind", "first accepted"]);
    for kind in unhandled {
        table.row([kind.kind.clone(), ago(kind.since)]);
    }
    output.line("")?;
    output.line(table)
}

fn print_processes(peers: &[Peer], handlers: &[HandlerStatus], output: CommandOutput) -> Result<()> {
    output.line("")?;
    if peers.is_empty() {
        return output.line("No process is at work.");
    }
    let mut table = TextTable::new(["process", "last heartbeat", "moves outbox", "handlers and relays"]);
    for peer in peers {
        let heartbeat = format!("{} ago", rough(peer.silent_for));
        let heartbeat = if is_alive(peer) { heartbeat } else { format!("{heartbeat}, lease expired") };
        let moves = if peer.moves { "yes" } else { "no" };
        table.row([peer.name.clone(), heartbeat, moves.to_owned(), names_of(peer, handlers).join(", ")]);
    }
    output.line(table)
}

/// The state of the outbox in words.
pub(crate) fn outbox_text(outbox: OutboxStatus) -> String {
    let messages = match outbox.waiting {
        0 => return "no message waits for the mover".to_owned(),
        1 => "1 message waits".to_owned(),
        waiting => format!("{waiting} messages wait"),
    };
    let oldest =
        outbox.oldest.map(|oldest| format!(", the oldest for {}", rough(oldest))).unwrap_or_default();
    format!("{messages} for the mover{oldest}")
}

/// Whether the last heartbeat is within the lease.
pub(crate) fn is_alive(peer: &Peer) -> bool {
    peer.silent_for <= peer.lease
}

fn names_of(peer: &Peer, handlers: &[HandlerStatus]) -> Vec<String> {
    let has = |status: &&HandlerStatus| peer.handlers.contains(&status.handler.id);
    handlers.iter().filter(has).map(|status| status.handler.name.clone()).collect()
}

/// A duration in JSON.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The status in JSON.
#[derive(Debug, Serialize)]
struct StatusReport<'a> {
    store: &'static str,
    url: String,
    guarantee: String,
    handlers: Vec<HandlerField<'a>>,
    unhandled_kinds: Vec<UnhandledField<'a>>,
    outbox: OutboxField,
    processes: Vec<ProcessField<'a>>,
}

impl<'a> StatusReport<'a> {
    fn new(
        operators: &Operators,
        outbox: OutboxStatus,
        target: &DatabaseTarget,
        handlers: &'a [HandlerStatus],
        unhandled: &'a [UnhandledKind],
        peers: &'a [Peer],
    ) -> Self {
        let unhandled =
            unhandled.iter().map(|kind| UnhandledField { kind: &kind.kind, since: rfc3339(kind.since) });
        let process = |peer: &'a Peer| ProcessField {
            id: peer.id.0.to_string(),
            name: &peer.name,
            handlers: names_of(peer, handlers),
            moves_outbox: peer.moves,
            alive: is_alive(peer),
            silent_for_ms: millis(peer.silent_for),
            lease_ms: millis(peer.lease),
        };
        Self {
            store: operators.store_name(),
            url: target.redacted_url(),
            guarantee: operators.guarantee().to_string(),
            handlers: handlers.iter().map(HandlerField::new).collect(),
            unhandled_kinds: unhandled.collect(),
            outbox: OutboxField { waiting: outbox.waiting, oldest_ms: outbox.oldest.map(millis) },
            processes: peers.iter().map(process).collect(),
        }
    }
}

/// A handler in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct HandlerField<'a> {
    name: &'a str,
    state: &'static str,
    mode: &'static str,
    kinds: &'a [String],
    ordered: bool,
    lag: u64,
    passed: u64,
    oldest_waiting_ms: Option<u64>,
    tasks: u64,
    dead: u64,
}

impl<'a> HandlerField<'a> {
    pub(crate) fn new(status: &'a HandlerStatus) -> Self {
        let handler = &status.handler;
        Self {
            name: &handler.name,
            state: known::state_name(handler.state),
            mode: handler.mode.name(),
            kinds: &handler.kinds,
            ordered: handler.ordered.is_some(),
            lag: status.lag,
            passed: status.passed,
            oldest_waiting_ms: status.oldest_waiting.map(millis),
            tasks: status.tasks,
            dead: status.dead,
        }
    }
}

#[derive(Debug, Serialize)]
struct UnhandledField<'a> {
    kind: &'a str,
    since: String,
}

#[derive(Debug, Serialize)]
struct OutboxField {
    waiting: u64,
    oldest_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct ProcessField<'a> {
    id: String,
    name: &'a str,
    handlers: Vec<String>,
    moves_outbox: bool,
    alive: bool,
    silent_for_ms: u64,
    lease_ms: u64,
}
