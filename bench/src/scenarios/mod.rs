//! The scenarios, each a comparison of contenders under the same load.

mod deadlocks;
mod duplicates;
mod fresh;
mod half_duplicates;
mod latency;
mod one_per_tx;
pub(crate) mod rounds;
mod wal;

use anyhow::Result;

use crate::arena::Arena;
use crate::options::{Asked, Scenario};
use crate::results::Comparison;
use crate::store::DatabaseKind;

/// The usual number of callers.
const CALLERS: usize = 64;
const RATE: &str = "messages/s";

/// Runs all that is asked for on one database.
pub(crate) async fn run<E: DatabaseKind>(asked: &Asked<Scenario>) -> Result<Vec<Comparison>> {
    let mut arena = Arena::<E>::open(&asked.options).await?;
    let mut all = Vec::new();
    if asked.wants(Scenario::Fresh) {
        all.extend(fresh::run(&mut arena).await?);
    }
    if asked.wants(Scenario::HalfDuplicates) {
        all.push(half_duplicates::run(&mut arena).await?);
    }
    if asked.wants(Scenario::Duplicates) {
        all.push(duplicates::run(&mut arena).await?);
    }
    // With one writer no transaction waits for a row.
    if asked.wants(Scenario::Deadlocks) && !E::ONE_WRITER {
        all.extend(deadlocks::run(&mut arena).await?);
    }
    for (scenario, contest) in [
        (Scenario::HotRows, one_per_tx::HOT_ROWS),
        (Scenario::Failing, one_per_tx::FAILING),
        (Scenario::Slow, one_per_tx::SLOW),
    ] {
        // With one writer all wait for each other's 20 ms, which takes long and shows little.
        let tells_little = scenario == Scenario::Slow && E::ONE_WRITER && asked.options.quick;
        if asked.names(scenario) || asked.wants(scenario) && !tells_little {
            all.push(one_per_tx::run(&mut arena, contest).await?);
        }
    }
    if asked.wants(Scenario::Latency) {
        all.extend(latency::run(&mut arena).await?);
    }
    if asked.wants(Scenario::Wal) {
        all.extend(wal::run(&mut arena).await?);
    }
    Ok(all)
}
