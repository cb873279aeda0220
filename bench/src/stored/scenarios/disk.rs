//! `stored-disk`: the bytes of an accepted and handled message on the disk and in the database's log.

use anyhow::{Context, Result};

use super::super::arena::{LONGEST, StoredArena, StoredEntrant};
use super::super::engine::StoredDatabaseKind;
use super::super::keepers::KeeperName;
use super::super::per_message;
use super::CALLERS;
use crate::feed::{Feed, FeedKind};
use crate::measure::exhaust;
use crate::results::{Comparison, Series};
use crate::scenarios::rounds::interleave;
use crate::store::Ground;

const BENCHES: [&str; 2] = ["stored-disk", "stored-disk-wal"];
const NAMES: [KeeperName; 2] = [KeeperName::Oncebox, KeeperName::Milan];

pub(super) async fn run<E: StoredDatabaseKind>(arena: &mut StoredArena<'_, E>) -> Result<Vec<Comparison>> {
    let Some(ask) = E::DISK_BYTES else { return Ok(Vec::new()) };
    let labels = NAMES.map(KeeperName::as_str);
    let title = format!("{}: {} (bytes per message)", E::STORE, BENCHES[0]);
    let mut logs = labels.map(|contender| Series { contender, figures: Vec::new() });
    let measure = async |n: usize| {
        let (disk, log) = measure(arena, NAMES[n], ask).await?;
        logs[n].figures.push(log);
        Ok(disk)
    };
    // One round, because bytes hardly differ between rounds.
    let disk = interleave(&title, 1, &labels, measure).await?;
    let all = BENCHES.into_iter().zip([disk, logs.to_vec()]);
    let baselines = &labels[1..];
    let comparison = |(bench, series)| {
        let (unit, baselines) = ("bytes/message", baselines.to_vec());
        Comparison { bench, store: E::STORE, callers: CALLERS, unit, series, baselines }
    };
    Ok(all.map(comparison).collect())
}

async fn measure<E: StoredDatabaseKind>(
    arena: &mut StoredArena<'_, E>,
    name: KeeperName,
    ask: &str,
) -> Result<(f64, f64)> {
    let messages = arena.options.waiting_messages();
    let mut entrant = arena.enter_for_callers(name).await?;
    let before = bytes(&entrant, ask).await?;
    let feed = Feed::new(FeedKind::Known { count: messages });
    exhaust(&entrant.caller(), feed, CALLERS).await.with_context(|| format!("measuring {name}"))?;
    entrant.work(messages, LONGEST).await?;
    let after = bytes(&entrant, ask).await?;
    entrant.leave().await?;
    Ok((per_message(after.0 - before.0, messages), per_message(after.1 - before.1, messages)))
}

/// On the disk, and in the log.
async fn bytes<E: StoredDatabaseKind>(entrant: &StoredEntrant<E>, ask: &str) -> Result<(u64, u64)> {
    let pool = entrant.ground.pool(1).await?;
    let disk = E::number(&mut *pool.acquire().await?, ask.into()).await;
    pool.close().await;
    Ok((u64::try_from(disk?)?, entrant.ground.log_bytes().await?.unwrap_or_default()))
}
