//! `inline-duplicates`: every message was processed before, as if by another process. Each measurement has a new
//! inbox and a new pool, and delivers each message once.

use anyhow::{Context, Result, ensure};

use super::rounds::interleave;
use super::{CALLERS, RATE};
use crate::arena::{Arena, Trial};
use crate::business::HandlerWork;
use crate::contenders::ContenderName;
use crate::feed::{Feed, FeedKind};
use crate::measure::{exhaust, throughput};
use crate::results::Comparison;
use crate::store::{DatabaseKind, Ground};

const BENCH: &str = "inline-duplicates";
const NAMES: [ContenderName; 4] =
    [ContenderName::Oncebox, ContenderName::Modulus, ContenderName::TurboMediator, ContenderName::Vulthil];
/// Oncebox with messages that it has not seen.
const FRESH: &str = "fresh";
const FILLING_CALLERS: usize = 256;

pub(super) async fn run<E: DatabaseKind>(arena: &mut Arena<'_, E>) -> Result<Comparison> {
    let order = FeedKind::Known { count: arena.options.known_messages() };
    let task = Trial { work: HandlerWork::Insert, order, callers: CALLERS };
    let mut grounds = Vec::new();
    for name in NAMES {
        eprintln!("{}: {BENCH}: {name} gets to know its messages", E::STORE);
        grounds.push(fill(arena, name, task).await.with_context(|| format!("filling the tables of {name}"))?);
    }
    let labels: Vec<&'static str> = NAMES.iter().map(|name| name.as_str()).chain([FRESH]).collect();
    let title = format!("{}: {BENCH}", E::STORE);
    let rounds = arena.options.rounds();
    let measure = async |n: usize| match grounds.get(n) {
        Some(ground) => read(arena, NAMES[n], ground, task).await,
        None => arena.rate(ContenderName::Oncebox, Trial::fresh(CALLERS)).await,
    };
    let series = interleave(&title, rounds, &labels, measure).await?;
    for ground in grounds {
        ground.discard().await?;
    }
    let baselines = labels[1..].to_vec();
    Ok(Comparison { bench: BENCH, store: E::STORE, callers: CALLERS, unit: RATE, series, baselines })
}

// All rounds share the tables, because duplicates change nothing.
async fn fill<E: DatabaseKind>(
    arena: &mut Arena<'_, E>,
    name: ContenderName,
    task: Trial,
) -> Result<E::Ground> {
    let ground = arena.fresh().await?;
    let entrant = arena.enter(name, &ground, task).await?;
    if !name.remember(&entrant.pool, &Feed::new(task.order)).await? {
        let tally = exhaust(&entrant.contender, Feed::new(task.order), FILLING_CALLERS).await?;
        ensure!(tally.done == tally.settled(), "not all messages were processed: {tally:?}");
    }
    entrant.leave().await;
    Ok(ground)
}

async fn read<E: DatabaseKind>(
    arena: &mut Arena<'_, E>,
    name: ContenderName,
    ground: &E::Ground,
    task: Trial,
) -> Result<f64> {
    let entrant = arena.enter(name, ground, task).await?;
    let feed = Feed::new(task.order);
    let measured = throughput(&entrant.contender, feed, task.callers, arena.options.pace()).await;
    entrant.leave().await;
    let measured = measured.with_context(|| format!("measuring {name}"))?;
    let tally = measured.tally;
    ensure!(tally.duplicates == tally.settled(), "{name} took copies for new messages: {tally:?}");
    Ok(measured.rate)
}
