//! The outbox: what publishing costs a business transaction, how fast messages move to the log, and the way from one module to
//! another or to a sink.

mod backlog;
mod capture;
pub(crate) mod engine;
mod local;
mod moving;
mod publishers;
mod relaying;

use anyhow::Result;

use crate::options::{Asked, OutboxScenario};
use crate::results::Comparison;
use crate::stored::arena::StoredArena;
use engine::OutboxDatabaseKind;
pub(crate) use publishers::make_tables;
pub(crate) use relaying::fill;

/// The unit of all figures.
const RATE: &str = "messages/s";
/// The number of callers, and of connections that they share.
const CALLERS: usize = 64;
const CONNECTIONS: u32 = 16;

pub(crate) async fn run<E: OutboxDatabaseKind>(asked: &Asked<OutboxScenario>) -> Result<Vec<Comparison>> {
    let mut arena = StoredArena::<E>::open(&asked.options).await?;
    let mut all = Vec::new();
    if asked.wants(OutboxScenario::Capture) {
        all.push(capture::run(&arena).await?);
    }
    if asked.wants(OutboxScenario::Move) {
        all.push(moving::run(&arena).await?);
    }
    if asked.wants(OutboxScenario::Local) {
        all.push(local::run(&mut arena).await?);
    }
    for (scenario, comparison) in
        [(OutboxScenario::Relay, relaying::FREE), (OutboxScenario::RelayHeld, relaying::HELD)]
    {
        if asked.wants(scenario) {
            all.push(relaying::run(&arena, &comparison).await?);
        }
    }
    if asked.wants(OutboxScenario::Backlog) {
        all.extend(backlog::run(&arena).await?);
    }
    Ok(all)
}
