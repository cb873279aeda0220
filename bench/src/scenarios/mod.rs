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
use crate::options::{Asked, InlineScenario};
use crate::results::Comparison;
use crate::store::DatabaseKind;

/// The usual number of callers.
const CALLERS: usize = 64;
const RATE: &str = "messages/s";

/// Runs the selected scenarios on one database.
pub(crate) async fn run<E: DatabaseKind>(asked: &Asked<InlineScenario>) -> Result<Vec<Comparison>> {
    let mut arena = Arena::<E>::open(&asked.options).await?;
    let mut all = Vec::new();
    if asked.wants(InlineScenario::Fresh) {
        all.extend(fresh::run(&mut arena).await?);
    }
    if asked.wants(InlineScenario::HalfDuplicates) {
        all.push(half_duplicates::run(&mut arena).await?);
    }
    if asked.wants(InlineScenario::Duplicates) {
        all.push(duplicates::run(&mut arena).await?);
    }
    // With one writer no transaction waits for a row.
    if asked.wants(InlineScenario::Deadlocks) && !E::ONE_WRITER {
        all.extend(deadlocks::run(&mut arena).await?);
    }
    for (scenario, contest) in [
        (InlineScenario::HotRows, one_per_tx::HOT_ROWS),
        (InlineScenario::Failing, one_per_tx::FAILING),
        (InlineScenario::Slow, one_per_tx::SLOW),
    ] {
        // With one writer, all callers wait for each other's 20 ms, which takes long and shows little.
        let tells_little = scenario == InlineScenario::Slow && E::ONE_WRITER && asked.options.quick;
        if asked.names(scenario) || asked.wants(scenario) && !tells_little {
            all.push(one_per_tx::run(&mut arena, contest).await?);
        }
    }
    if asked.wants(InlineScenario::Latency) {
        all.extend(latency::run(&mut arena).await?);
    }
    if asked.wants(InlineScenario::Wal) {
        all.extend(wal::run(&mut arena).await?);
    }
    Ok(all)
}
