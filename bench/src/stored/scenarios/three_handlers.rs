//! `stored-3-handlers`: three handlers of the same messages; and the bytes that a message with one and with
//! three handlers writes to the database's log.

use anyhow::Result;

use super::super::arena::{LONGEST, StoredArena};
use super::super::engine::StoredDatabaseKind;
use super::super::keepers::KeeperName;
use super::super::per_message;
use crate::results::Comparison;
use crate::scenarios::rounds::interleave;
use crate::store::Ground;

const BENCH: &str = "stored-3-handlers";
const HANDLERS: usize = 3;
const NAMES: [KeeperName; 4] =
    [KeeperName::Oncebox, KeeperName::OnceboxSet, KeeperName::RowQueue, KeeperName::RowQueueSet];

const WAL_BENCH: &str = "stored-3-handlers-wal";
/// With the handlers' own writes, and with handlers that write nothing.
const WAL: [(&str, KeeperName, usize); 6] = [
    ("oncebox-3", KeeperName::OnceboxSet, 3),
    ("oncebox-3-idle", KeeperName::OnceboxIdle, 3),
    ("row-queue-3", KeeperName::RowQueue, 3),
    ("oncebox-1", KeeperName::OnceboxSet, 1),
    ("oncebox-1-idle", KeeperName::OnceboxIdle, 1),
    ("row-queue-1", KeeperName::RowQueue, 1),
];

pub(super) async fn run<E: StoredDatabaseKind>(arena: &mut StoredArena<'_, E>) -> Result<[Comparison; 2]> {
    Ok([rates(arena).await?, wal(arena).await?])
}

async fn rates<E: StoredDatabaseKind>(arena: &mut StoredArena<'_, E>) -> Result<Comparison> {
    let labels = NAMES.map(KeeperName::as_str);
    let title = format!("{}: {BENCH}", E::STORE);
    // About as many handler runs as the other scenarios have.
    let (rounds, messages) = (arena.options.rounds(), arena.options.waiting_messages() / 2);
    let measure = async |n: usize| Ok(arena.drains(NAMES[n], HANDLERS, messages).await?.rate);
    let series = interleave(&title, rounds, &labels, measure).await?;
    let (callers, baselines) = (E::INBOX_WORKERS, labels[2..].to_vec());
    Ok(Comparison { bench: BENCH, store: E::STORE, callers, unit: "handled/s", series, baselines })
}

async fn wal<E: StoredDatabaseKind>(arena: &mut StoredArena<'_, E>) -> Result<Comparison> {
    let labels = WAL.map(|(label, ..)| label);
    let title = format!("{}: {WAL_BENCH} (bytes per message)", E::STORE);
    // One round, because bytes hardly differ between rounds.
    let series =
        interleave(&title, 1, &labels, async |n: usize| written(arena, WAL[n].1, WAL[n].2).await).await?;
    let (callers, baselines) = (E::INBOX_WORKERS, labels[3..].to_vec());
    Ok(Comparison { bench: WAL_BENCH, store: E::STORE, callers, unit: "bytes/message", series, baselines })
}

/// From the accept to the last handler.
async fn written<E: StoredDatabaseKind>(
    arena: &mut StoredArena<'_, E>,
    name: KeeperName,
    handlers: usize,
) -> Result<f64> {
    let messages = arena.options.waiting_messages();
    let mut entrant = arena.enter(name, handlers).await?;
    let before = entrant.ground.log_bytes().await?.unwrap_or_default();
    entrant.fill(messages).await?;
    entrant.work(messages * handlers as u64, LONGEST).await?;
    let after = entrant.ground.log_bytes().await?.unwrap_or_default();
    entrant.leave().await?;
    Ok(per_message(after - before, messages))
}
