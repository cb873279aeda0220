//! `stored-accept`: the rate of accepts, without workers.

use anyhow::Result;

use super::super::arena::StoredArena;
use super::super::engine::StoredDatabaseKind;
use super::super::keepers::KeeperName;
use crate::results::Comparison;
use crate::scenarios::rounds::interleave;

const BENCH: &str = "stored-accept";
const CALLERS: [usize; 2] = [64, 256];
const NAMES: [KeeperName; 2] = [KeeperName::Oncebox, KeeperName::Milan];

pub(super) async fn run<E: StoredDatabaseKind>(arena: &mut StoredArena<'_, E>) -> Result<Vec<Comparison>> {
    let mut all = Vec::new();
    for callers in CALLERS {
        if arena.options.wants_callers(callers) {
            all.push(compare(arena, callers).await?);
        }
    }
    Ok(all)
}

async fn compare<E: StoredDatabaseKind>(
    arena: &mut StoredArena<'_, E>,
    callers: usize,
) -> Result<Comparison> {
    let labels = NAMES.map(KeeperName::as_str);
    let title = format!("{}: {BENCH}, {callers} callers", E::STORE);
    let rounds = arena.options.rounds();
    let series =
        interleave(&title, rounds, &labels, async |n: usize| arena.accepts(NAMES[n], callers).await).await?;
    let baselines = labels[1..].to_vec();
    Ok(Comparison { bench: BENCH, store: E::STORE, callers, unit: "accepts/s", series, baselines })
}
