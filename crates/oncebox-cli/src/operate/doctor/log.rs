//! What is checked on every database: the tables, the clocks, and how handlers are doing.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use oncebox::Operators;
use oncebox::store::{HandlerState, HandlerStatus, Peer, UnhandledKind};

use super::check::Check;
use crate::exit::in_words;
use crate::operate::known;
use crate::operate::status::is_alive;
use crate::times::rough;

/// A difference of clocks that nobody needs to hear of.
const CLOCKS_MAY_DIFFER: Duration = Duration::from_secs(5);

/// What to see to where tables cannot be read.
fn may_read(is_sqlite: bool) -> &'static str {
    match is_sqlite {
        true => {
            "see that this user may read the file, and that it is whole: `oncebox doctor --deep` reads all of it"
        }
        false => "see that the role may read the tables",
    }
}

pub(super) fn schema_version(version: Result<(i64, i64)>, is_sqlite: bool) -> Check {
    let id = "schema_version";
    match version {
        Ok((there, needed)) if there == needed => Check::ok(id, format!("version {there}, as needed")),
        Ok((0, needed)) => {
            Check::problem(id, format!("there are no Oncebox tables, version {needed} is needed"), UP)
        }
        Ok((there, needed)) if there < needed => {
            Check::problem(id, format!("version {there}, and {needed} is needed"), UP)
        }
        Ok((there, needed)) => Check::problem(
            id,
            format!("version {there}, and this program knows {needed}"),
            "update this program",
        ),
        Err(error) => Check::problem(id, in_words(&error), may_read(is_sqlite)),
    }
}

const UP: &str = "run `oncebox migrate up`";

pub(super) async fn of_the_log(operators: Result<Operators>, is_sqlite: bool) -> Vec<Check> {
    let unreadable = |error| Check::problem("handlers", in_words(&error), may_read(is_sqlite));
    let operators = match operators {
        Ok(operators) => operators,
        Err(error) => return vec![Check::unknown("clock", in_words(&error)), unreadable(error)],
    };
    let mut checks = vec![Check::from_result("clock", clock(&operators).await)];
    match seen(&operators).await {
        Ok((handlers, peers, unhandled)) => {
            checks.push(at_work(&handlers, &peers));
            checks.push(processes(&peers));
            checks.push(paused(&handlers));
            checks.push(dead_letters(&handlers));
            checks.push(unhandled_kinds(&unhandled));
        }
        Err(error) => checks.push(unreadable(error)),
    }
    checks
}

async fn seen(operators: &Operators) -> Result<(Vec<HandlerStatus>, Vec<Peer>, Vec<UnhandledKind>)> {
    let handlers = known::handlers(operators).await?;
    Ok((handlers, operators.processes().await?, operators.unhandled_kinds().await?))
}

/// The database's clock decides about markers, tasks and leases; this machine's is compared with it.
async fn clock(operators: &Operators) -> Result<Check> {
    let before = SystemTime::now();
    let there = operators.database_time().await?;
    let asked_for = before.elapsed().unwrap_or_default();
    let here = before + asked_for / 2;
    let (apart, ahead) = match there.duration_since(here) {
        Ok(apart) => (apart, "ahead of"),
        Err(error) => (error.duration(), "behind"),
    };
    // It was read at some moment of the question.
    let apart = apart.saturating_sub(asked_for / 2);
    Ok(match apart > CLOCKS_MAY_DIFFER {
        true => Check::warning(
            "clock",
            format!("the database's clock is {} {ahead} this machine's", rough(apart)),
            "synchronise both by NTP: times in answers, and those that senders set, mean what they say only then",
        ),
        false => {
            Check::ok("clock", format!("the database's clock and this machine's are {} apart", rough(apart)))
        }
    })
}

/// Handlers with work that nobody does.
fn at_work(handlers: &[HandlerStatus], peers: &[Peer]) -> Check {
    let has = |status: &HandlerStatus| {
        peers.iter().any(|peer| is_alive(peer) && peer.handlers.contains(&status.handler.id))
    };
    let needs_one = |status: &&HandlerStatus| {
        status.handler.state == HandlerState::Active && status.handler.mode.has_tasks() && !has(status)
    };
    let alone: Vec<&HandlerStatus> = handlers.iter().filter(needs_one).collect();
    let id = "handlers_at_work";
    if alone.is_empty() {
        return Check::ok(id, "every active handler of the log has a process at work");
    }
    let message = format!("no process is at work for {}", names(&alone));
    let fix = "start `oncebox serve` or `oncebox work` with its configuration, or the program that has it, with run(); or pause or \
         remove it: `oncebox handlers remove NAME`";
    match alone.iter().any(|status| status.lag + status.tasks > 0) {
        true => Check::problem(id, format!("{message}, and messages wait"), fix),
        false => Check::warning(id, message, fix),
    }
}

/// Processes that nobody has taken over from yet.
fn processes(peers: &[Peer]) -> Check {
    let silent: Vec<&str> = peers.iter().filter(|peer| !is_alive(peer)).map(|peer| &*peer.name).collect();
    match silent.is_empty() {
        true => Check::ok("processes", format!("{} at work", peers.len())),
        false => Check::warning(
            "processes",
            format!("silent for longer than their lease: {}", silent.join(", ")),
            "the next process at work takes over what they had in hand: see that one runs",
        ),
    }
}

fn paused(handlers: &[HandlerStatus]) -> Check {
    let paused: Vec<&HandlerStatus> =
        handlers.iter().filter(|status| status.handler.state == HandlerState::Paused).collect();
    match paused.is_empty() {
        true => Check::ok("paused", "no handler is paused"),
        false => Check::warning(
            "paused",
            format!("an operator has paused {}", names(&paused)),
            "`oncebox handlers resume NAME` lets it go on",
        ),
    }
}

fn dead_letters(handlers: &[HandlerStatus]) -> Check {
    let with_dead: Vec<&HandlerStatus> = handlers.iter().filter(|status| status.dead > 0).collect();
    let dead: u64 = with_dead.iter().map(|status| status.dead).sum();
    match dead {
        0 => Check::ok("dead_letters", "none"),
        dead => Check::warning(
            "dead_letters",
            format!("{dead}, of {}", names(&with_dead)),
            "`oncebox dead list` shows them, `oncebox dead show LANE/POSITION` what can be done",
        ),
    }
}

fn unhandled_kinds(unhandled: &[UnhandledKind]) -> Check {
    let kinds: Vec<&str> = unhandled.iter().map(|kind| &*kind.kind).collect();
    match kinds.is_empty() {
        true => Check::ok("unhandled_kinds", "every kind that was accepted has a handler"),
        false => Check::warning(
            "unhandled_kinds",
            format!("accepted, and nobody takes them: {}", kinds.join(", ")),
            "start a program with a handler for them, or stop sending them: they are never pruned",
        ),
    }
}

fn names(handlers: &[&HandlerStatus]) -> String {
    handlers.iter().map(|status| &*status.handler.name).collect::<Vec<_>>().join(", ")
}
