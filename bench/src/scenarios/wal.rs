//! `inline-wal`: the bytes per message that the database writes to its log.

use anyhow::{Context, Result};

use super::CALLERS;
use super::rounds::interleave;
use crate::arena::{Arena, Trial};
use crate::contenders::ContenderName;
use crate::feed::Feed;
use crate::measure::throughput;
use crate::results::Comparison;
use crate::store::{DatabaseKind, Ground};

const BENCH: &str = "inline-wal";
const NAMES: [ContenderName; 4] =
    [ContenderName::Oncebox, ContenderName::OnceboxSet, ContenderName::Vulthil, ContenderName::Bare];

pub(super) async fn run<E: DatabaseKind>(arena: &mut Arena<'_, E>) -> Result<Option<Comparison>> {
    let ground = arena.fresh().await?;
    let can_tell = ground.log_bytes().await?.is_some();
    ground.discard().await?;
    if !can_tell {
        return Ok(None);
    }
    let labels = NAMES.map(ContenderName::as_str);
    let title = format!("{}: {BENCH} (bytes per message)", E::STORE);
    let rounds = arena.options.rounds();
    let series = interleave(&title, rounds, &labels, async |n: usize| measure(arena, NAMES[n]).await).await?;
    let baselines = labels[2..].to_vec();
    Ok(Some(Comparison {
        bench: BENCH,
        store: E::STORE,
        callers: CALLERS,
        unit: "bytes/message",
        series,
        baselines,
    }))
}

async fn measure<E: DatabaseKind>(arena: &mut Arena<'_, E>, name: ContenderName) -> Result<f64> {
    let task = Trial::fresh(CALLERS);
    let ground = arena.fresh().await?;
    let entrant = arena.enter(name, &ground, task).await?;
    let before = ground.log_bytes().await?.unwrap_or_default();
    let feed = Feed::new(task.order);
    let measured = throughput(&entrant.contender, feed, task.callers, arena.options.pace()).await;
    let after = ground.log_bytes().await?.unwrap_or_default();
    entrant.leave().await;
    ground.discard().await?;
    // All settled messages, because the bytes too include the warm-up.
    let settled = measured.with_context(|| format!("measuring {name}"))?.tally.settled();
    #[allow(clippy::cast_precision_loss, reason = "bytes and messages are far below 2^52")]
    Ok((after - before) as f64 / settled as f64)
}
