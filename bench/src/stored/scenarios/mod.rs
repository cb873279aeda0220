//! The scenarios of stored messages.

mod accept;
mod backlog;
mod disk;
mod end_to_end;
mod held_snapshot;
mod three_handlers;
mod work;

use anyhow::Result;

use super::arena::StoredArena;
use super::engine::StoredDatabaseKind;
use crate::options::{Asked, StoredScenario};
use crate::results::Comparison;

const CALLERS: usize = 64;
const RATE: &str = "messages/s";

/// Runs the selected scenarios on one database.
pub(crate) async fn run<E: StoredDatabaseKind>(asked: &Asked<StoredScenario>) -> Result<Vec<Comparison>> {
    let mut arena = StoredArena::<E>::open(&asked.options).await?;
    let mut all = Vec::new();
    if asked.wants(StoredScenario::Accept) {
        all.extend(accept::run(&mut arena).await?);
    }
    if asked.wants(StoredScenario::Work) {
        all.push(work::singles(&mut arena).await?);
    }
    if asked.wants(StoredScenario::WorkSet) {
        all.push(work::sets(&mut arena).await?);
    }
    if asked.wants(StoredScenario::EndToEnd) {
        all.push(end_to_end::run(&mut arena).await?);
    }
    // The other scenarios are about servers: many workers, old snapshots, large tables.
    if E::ONE_WRITER {
        return Ok(all);
    }
    if asked.wants(StoredScenario::ThreeHandlers) {
        all.extend(three_handlers::run(&mut arena).await?);
    }
    if asked.wants(StoredScenario::HeldSnapshot) {
        all.extend(held_snapshot::run(&mut arena).await?);
    }
    if asked.wants(StoredScenario::Backlog) {
        all.extend(backlog::run(&mut arena).await?);
    }
    if asked.wants(StoredScenario::Disk) {
        all.extend(disk::run(&mut arena).await?);
    }
    Ok(all)
}
