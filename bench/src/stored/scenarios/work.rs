//! `stored-work` and `stored-work-set`: the rate of working through a backlog.

use anyhow::Result;

use super::super::arena::StoredArena;
use super::super::engine::StoredDatabaseKind;
use super::super::keepers::KeeperName;
use super::{CALLERS, RATE};
use crate::arena::Trial;
use crate::contenders;
use crate::results::Comparison;
use crate::scenarios::rounds::interleave;

const NAMES: [KeeperName; 4] =
    [KeeperName::Oncebox, KeeperName::Milan, KeeperName::MilanInTx, KeeperName::RowQueue];
const NAMES_OF_SETS: [KeeperName; 4] =
    [KeeperName::OnceboxSet, KeeperName::Milan, KeeperName::MilanInTx, KeeperName::RowQueueSet];
/// No inbox: a hundred rows with one insert.
const BULK: contenders::ContenderName = contenders::ContenderName::Bulk;

pub(super) async fn singles<E: StoredDatabaseKind>(arena: &mut StoredArena<'_, E>) -> Result<Comparison> {
    compare(arena, "stored-work", &NAMES, false).await
}

pub(super) async fn sets<E: StoredDatabaseKind>(arena: &mut StoredArena<'_, E>) -> Result<Comparison> {
    compare(arena, "stored-work-set", &NAMES_OF_SETS, true).await
}

async fn compare<E: StoredDatabaseKind>(
    arena: &mut StoredArena<'_, E>,
    bench: &'static str,
    names: &[KeeperName],
    with_bulk: bool,
) -> Result<Comparison> {
    let mut labels: Vec<&'static str> = names.iter().map(|name| name.as_str()).collect();
    if with_bulk {
        labels.push(BULK.as_str());
    }
    let title = format!("{}: {bench}", E::STORE);
    let (rounds, messages) = (arena.options.rounds(), arena.options.waiting_messages());
    let measure = async |n: usize| match names.get(n) {
        Some(&name) => Ok(arena.drains(name, 1, messages).await?.rate),
        None => arena.inline.rate(BULK, Trial::fresh(CALLERS)).await,
    };
    let series = interleave(&title, rounds, &labels, measure).await?;
    let (callers, baselines) = (E::INBOX_WORKERS, labels[1..].to_vec());
    Ok(Comparison { bench, store: E::STORE, callers, unit: RATE, series, baselines })
}
