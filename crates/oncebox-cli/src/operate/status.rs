//! `oncebox status`: how things stand.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use oncebox::Operators;
use oncebox::store::{HandlerStatus, Peer, UnhandledKind};
use serde::Serialize;

use crate::cli::Common;
use crate::operate::known;
use crate::output::Output;
use crate::store::{For, Target};
use crate::table::Table;
use crate::times::{ago, rfc3339, rough};

/// Nothing but what every command takes.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {}

pub(crate) async fn run(common: &Common, _options: &Options) -> Result<ExitCode> {
    let target = Target::of(common)?;
    let operators = target.operators(For::Looking).await?;
    report(&operators, &target, common.output()).await?;
    Ok(ExitCode::SUCCESS)
}

async fn report(operators: &Operators, target: &Target, output: Output) -> Result<()> {
    let handlers = known::handlers(operators).await?;
    let unhandled = operators.unhandled_kinds().await?;
    let peers = operators.processes().await?;
    output.object(&Status::new(operators, target, &handlers, &unhandled, &peers))?;
    let (store, guarantee) = (operators.store_name(), operators.guarantee());
    output.say(format_args!("{}: {store}, {guarantee}", target.shown()))?;
    output.say("")?;
    match handlers.is_empty() {
        true => output.say("No handlers yet: a program registers them when it starts.")?,
        false => output.say(handler_table(&handlers))?,
    }
    say_unhandled(&unhandled, output)?;
    say_processes(&peers, &handlers, output)
}

/// One line for each handler.
pub(crate) fn handler_table(handlers: &[HandlerStatus]) -> Table {
    let names = ["handler", "state", "mode", "kinds", "lag", "oldest waiting", "tasks", "dead"];
    let mut table = Table::new(names).right([4, 5, 6, 7]);
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

fn say_unhandled(unhandled: &[UnhandledKind], output: Output) -> Result<()> {
    if unhandled.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(["kind that nobody takes", "first accepted"]);
    for kind in unhandled {
        table.row([kind.kind.clone(), ago(kind.since)]);
    }
    output.say("")?;
    output.say(table)
}

fn say_processes(peers: &[Peer], handlers: &[HandlerStatus], output: Output) -> Result<()> {
    output.say("")?;
    if peers.is_empty() {
        return output.say("No process runs handlers now.");
    }
    let mut table = Table::new(["process", "last heard of", "handlers"]);
    for peer in peers {
        let heard = format!("{} ago", rough(peer.silent_for));
        let heard = if is_alive(peer) { heard } else { format!("{heard}, taken for dead") };
        table.row([peer.name.clone(), heard, names_of(peer, handlers).join(", ")]);
    }
    output.say(table)
}

/// Whether it was heard of within its lease.
pub(crate) fn is_alive(peer: &Peer) -> bool {
    peer.silent_for <= peer.lease
}

fn names_of(peer: &Peer, handlers: &[HandlerStatus]) -> Vec<String> {
    let has = |status: &&HandlerStatus| peer.handlers.contains(&status.handler.id);
    handlers.iter().filter(has).map(|status| status.handler.name.clone()).collect()
}

/// A duration for programs.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The whole answer for programs.
#[derive(Debug, Serialize)]
struct Status<'a> {
    store: &'static str,
    url: String,
    guarantee: String,
    handlers: Vec<HandlerField<'a>>,
    unhandled_kinds: Vec<UnhandledField<'a>>,
    processes: Vec<ProcessField<'a>>,
}

impl<'a> Status<'a> {
    fn new(
        operators: &Operators,
        target: &Target,
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
            alive: is_alive(peer),
            silent_for_ms: millis(peer.silent_for),
            lease_ms: millis(peer.lease),
        };
        Self {
            store: operators.store_name(),
            url: target.shown(),
            guarantee: operators.guarantee().to_string(),
            handlers: handlers.iter().map(HandlerField::new).collect(),
            unhandled_kinds: unhandled.collect(),
            processes: peers.iter().map(process).collect(),
        }
    }
}

/// A handler for programs.
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
struct ProcessField<'a> {
    id: String,
    name: &'a str,
    handlers: Vec<String>,
    alive: bool,
    silent_for_ms: u64,
    lease_ms: u64,
}
