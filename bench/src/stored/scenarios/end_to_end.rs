//! `stored-end-to-end`: callers bring messages while workers run, until all is handled.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::super::arena::{LONGEST, StoredArena};
use super::super::engine::StoredDatabaseKind;
use super::super::keepers::KeeperName;
use super::super::per_second;
use super::{CALLERS, RATE};
use crate::feed::{Feed, FeedKind};
use crate::measure::exhaust;
use crate::results::Comparison;
use crate::scenarios::rounds::interleave;

const BENCH: &str = "stored-end-to-end";
const NAMES: [KeeperName; 4] =
    [KeeperName::Oncebox, KeeperName::OnceboxSet, KeeperName::Milan, KeeperName::RowQueue];

pub(super) async fn run<E: StoredDatabaseKind>(arena: &mut StoredArena<'_, E>) -> Result<Comparison> {
    let labels = NAMES.map(KeeperName::as_str);
    let title = format!("{}: {BENCH}", E::STORE);
    let rounds = arena.options.rounds();
    let series = interleave(&title, rounds, &labels, async |n: usize| measure(arena, NAMES[n]).await).await?;
    let baselines = labels[2..].to_vec();
    Ok(Comparison { bench: BENCH, store: E::STORE, callers: CALLERS, unit: RATE, series, baselines })
}

async fn measure<E: StoredDatabaseKind>(arena: &mut StoredArena<'_, E>, name: KeeperName) -> Result<f64> {
    // With one writer, a baseline is slow: it commits once for each accepted message.
    let messages = arena.options.waiting_messages() / if E::ONE_WRITER { 4 } else { 1 };
    let mut entrant = arena.enter_for_callers(name).await?;
    let caller = entrant.caller();
    entrant.meter.ask_for(messages, 10);
    let begin = Instant::now();
    let bring = exhaust(&caller, Feed::new(FeedKind::Known { count: messages }), CALLERS);
    let (done, brought) = tokio::try_join!(entrant.work_until_enough(LONGEST), bring)
        .with_context(|| format!("measuring {name}"))?;
    let took = begin.elapsed();
    drop(caller);
    ensure!(done == messages && brought.done == messages, "{name} handled {done} of {messages} messages");
    entrant.leave().await?;
    Ok(per_second(messages, took))
}
