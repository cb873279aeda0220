//! Checks on every database: schema version, clocks, handlers and processes.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use oncebox::store::{HandlerState, HandlerStatus, Peer, UnhandledKind};
use oncebox::{Operators, OutboxStatus};

use super::check::DoctorCheck;
use crate::exit::error_text;
use crate::operate::known::{self, is_relay};
use crate::operate::outbox::movers;
use crate::operate::status::{is_alive, outbox_text};
use crate::times::rough;

/// The maximum difference of clocks without a warning.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(5);

/// The maximum time for which a published message waits while a mover runs, on a busy machine.
const OUTBOX_WAIT_MAX: Duration = Duration::from_secs(30);

/// The advice for unreadable tables.
fn read_advice(is_sqlite: bool) -> &'static str {
    match is_sqlite {
        true => {
            "check that this user may read the file, and that it is not damaged: `oncebox doctor --deep` reads all of it"
        }
        false => "check that the role may read the tables",
    }
}

pub(super) fn schema_version(version: Result<(i64, i64)>, is_sqlite: bool) -> DoctorCheck {
    let id = "schema_version";
    match version {
        Ok((found, required)) if found == required => {
            DoctorCheck::ok(id, format!("version {found}, as required"))
        }
        Ok((0, required)) => {
            DoctorCheck::problem(id, format!("no Oncebox tables; version {required} is required"), UP)
        }
        Ok((found, required)) if found < required => {
            DoctorCheck::problem(id, format!("version {found}, but {required} is required"), UP)
        }
        Ok((found, required)) => DoctorCheck::problem(
            id,
            format!("version {found}, but this program supports {required}"),
            "update this program",
        ),
        Err(error) => DoctorCheck::problem(id, error_text(&error), read_advice(is_sqlite)),
    }
}

const UP: &str = "run `oncebox migrate up`";

pub(super) async fn of_the_log(
    operators: Result<Operators>,
    status: Result<OutboxStatus>,
    is_sqlite: bool,
) -> Vec<DoctorCheck> {
    let unreadable = |error| DoctorCheck::problem("handlers", error_text(&error), read_advice(is_sqlite));
    let operators = match operators {
        Ok(operators) => operators,
        Err(error) => return vec![DoctorCheck::unknown("clock", error_text(&error)), unreadable(error)],
    };
    let mut checks = vec![DoctorCheck::from_result("clock", clock(&operators).await)];
    match read_all(&operators).await {
        Ok((handlers, peers, unhandled)) => {
            let (relays, others): (Vec<_>, Vec<_>) = handlers.iter().partition(|status| is_relay(status));
            checks.push(at_work(&HANDLERS, &others, &peers));
            checks.push(at_work(&RELAYS, &relays, &peers));
            checks.push(processes(&peers));
            checks.push(paused(&handlers));
            checks.push(with_dead(&HANDLERS, &others));
            checks.push(with_dead(&RELAYS, &relays));
            checks.push(unhandled_kinds(&unhandled));
            checks.push(DoctorCheck::from_result("outbox", status.map(|status| outbox(status, &peers))));
        }
        Err(error) => checks.push(unreadable(error)),
    }
    checks
}

async fn read_all(operators: &Operators) -> Result<(Vec<HandlerStatus>, Vec<Peer>, Vec<UnhandledKind>)> {
    let handlers = known::handlers(operators).await?;
    Ok((handlers, operators.processes().await?, operators.unhandled_kinds().await?))
}

/// Compares the clocks. The database's clock decides about markers, tasks and leases.
async fn clock(operators: &Operators) -> Result<DoctorCheck> {
    let before = SystemTime::now();
    let there = operators.database_time().await?;
    let round_trip = before.elapsed().unwrap_or_default();
    let here = before + round_trip / 2;
    let (difference, direction) = match there.duration_since(here) {
        Ok(difference) => (difference, "ahead of"),
        Err(error) => (error.duration(), "behind"),
    };
    // The database read its clock at some moment of the round trip.
    let difference = difference.saturating_sub(round_trip / 2);
    Ok(match difference > CLOCK_DIFFERENCE_MAX {
        true => DoctorCheck::warning(
            "clock",
            format!("the database's clock is {} {direction} this machine's", rough(difference)),
            "synchronise both clocks by NTP: due times and the times in reports are wrong by this difference",
        ),
        false => DoctorCheck::ok(
            "clock",
            format!("the clocks of the database and this machine differ by {}", rough(difference)),
        ),
    })
}

/// The words for handlers or for relays.
struct Role {
    at_work: &'static str,
    all_run: &'static str,
    start: &'static str,
    dead: &'static str,
    dead_fix: &'static str,
}

const HANDLERS: Role = Role {
    at_work: "handlers_at_work",
    all_run: "a process runs each active handler of the log",
    start: "start `oncebox serve` or `oncebox work` with its configuration, or the program that has it, with run(); or pause or \
            remove it: `oncebox handlers remove NAME`",
    dead: "dead_letters",
    dead_fix: "list them: `oncebox dead list`; see the next steps: `oncebox dead show LANE/POSITION`",
};

const RELAYS: Role = Role {
    at_work: "relays_at_work",
    all_run: "a process runs each active relay",
    start: "start `oncebox serve` or `oncebox work` with its configuration, or the program that has it, with run() on its outbox; \
            or pause or remove it: `oncebox handlers remove NAME`",
    dead: "parked_messages",
    dead_fix: "list them: `oncebox outbox parked`; correct the cause, then `oncebox outbox retry` or `oncebox outbox discard`",
};

/// Handlers or relays that no process runs.
fn at_work(role: &Role, handlers: &[&HandlerStatus], peers: &[Peer]) -> DoctorCheck {
    let is_running = |status: &HandlerStatus| {
        peers.iter().any(|peer| is_alive(peer) && peer.handlers.contains(&status.handler.id))
    };
    let is_idle = |status: &&&HandlerStatus| {
        // Inline handlers need no worker: they run with their deliveries.
        status.handler.state == HandlerState::Active && status.handler.mode.has_tasks() && !is_running(status)
    };
    let idle: Vec<&HandlerStatus> = handlers.iter().filter(is_idle).copied().collect();
    let (id, fix) = (role.at_work, role.start);
    if idle.is_empty() {
        return DoctorCheck::ok(id, role.all_run);
    }
    let message = format!("no process runs {}", names(&idle));
    match idle.iter().any(|status| status.lag + status.tasks > 0) {
        true => DoctorCheck::problem(id, format!("{message}, and messages wait"), fix),
        false => DoctorCheck::warning(id, message, fix),
    }
}

/// Published messages that no process moves. While a mover runs, they wait for milliseconds.
fn outbox(status: OutboxStatus, peers: &[Peer]) -> DoctorCheck {
    let id = "outbox";
    let is_late = status.oldest.is_some_and(|oldest| oldest > OUTBOX_WAIT_MAX);
    let has_mover = movers(peers).next().is_some();
    let text = match has_mover {
        true => outbox_text(status),
        false => format!("{}, and no process moves them", outbox_text(status)),
    };
    match (status.waiting > 0, is_late, has_mover) {
        (false, ..) | (true, false, true) => DoctorCheck::ok(id, outbox_text(status)),
        (true, true, true) => DoctorCheck::problem(
            id,
            text,
            "look at the log of the processes that `oncebox outbox status` names: the mover reports there why it waits",
        ),
        // Between two runs of a scheduler messages wait too.
        (true, false, false) => DoctorCheck::warning(id, text, START_MOVER),
        (true, true, false) => DoctorCheck::problem(id, text, START_MOVER),
    }
}

const START_MOVER: &str = "start `oncebox serve` or `oncebox work`, or a program that calls run() on the outbox or on an inbox with \
                           .outbox(&outbox)";

/// Processes whose work no other process has taken over yet.
fn processes(peers: &[Peer]) -> DoctorCheck {
    let expired: Vec<&str> = peers.iter().filter(|peer| !is_alive(peer)).map(|peer| &*peer.name).collect();
    match expired.is_empty() {
        true => DoctorCheck::ok("processes", format!("{} running", peers.len())),
        false => DoctorCheck::warning(
            "processes",
            format!("lease expired: {}", expired.join(", ")),
            "start a process with the same handlers: it takes over their in-flight work",
        ),
    }
}

fn paused(handlers: &[HandlerStatus]) -> DoctorCheck {
    let paused: Vec<&HandlerStatus> =
        handlers.iter().filter(|status| status.handler.state == HandlerState::Paused).collect();
    match paused.is_empty() {
        true => DoctorCheck::ok("paused", "no handler or relay is paused"),
        false => DoctorCheck::warning(
            "paused",
            format!("paused by an operator: {}", names(&paused)),
            "resume it: `oncebox handlers resume NAME`",
        ),
    }
}

fn with_dead(role: &Role, handlers: &[&HandlerStatus]) -> DoctorCheck {
    let with_dead: Vec<&HandlerStatus> = handlers.iter().filter(|status| status.dead > 0).copied().collect();
    let dead: u64 = with_dead.iter().map(|status| status.dead).sum();
    match dead {
        0 => DoctorCheck::ok(role.dead, "none"),
        dead => DoctorCheck::warning(role.dead, format!("{dead}, of {}", names(&with_dead)), role.dead_fix),
    }
}

fn unhandled_kinds(unhandled: &[UnhandledKind]) -> DoctorCheck {
    let kinds: Vec<&str> = unhandled.iter().map(|kind| &*kind.kind).collect();
    match kinds.is_empty() {
        true => DoctorCheck::ok("unhandled_kinds", "every accepted kind has a handler"),
        false => DoctorCheck::warning(
            "unhandled_kinds",
            format!("accepted kinds without a handler: {}", kinds.join(", ")),
            "start a program with a handler for them, or stop sending them: they are never pruned",
        ),
    }
}

fn names(handlers: &[&HandlerStatus]) -> String {
    handlers.iter().map(|status| &*status.handler.name).collect::<Vec<_>>().join(", ")
}
