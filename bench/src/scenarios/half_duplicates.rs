//! `inline-half-duplicates`: every second delivery is a copy of one shortly before it.

use anyhow::Result;

use super::rounds::interleave;
use super::{CALLERS, RATE};
use crate::arena::{Arena, Task};
use crate::business::Work;
use crate::contenders::Name;
use crate::feed::Order;
use crate::results::Comparison;
use crate::store::DatabaseKind;

const BENCH: &str = "inline-half-duplicates";
const BASELINES: [Name; 3] = [Name::Modulus, Name::TurboMediator, Name::Vulthil];
// Most first copies are settled by then.
const LAG: u64 = 4 * CALLERS as u64;

pub(super) async fn run<E: DatabaseKind>(arena: &mut Arena<'_, E>) -> Result<Comparison> {
    let names: Vec<Name> = [Name::Oncebox].into_iter().chain(BASELINES).collect();
    let labels: Vec<&'static str> = names.iter().map(|name| name.as_str()).collect();
    let task = Task { work: Work::Insert, order: Order::HalfDuplicates { lag: LAG }, callers: CALLERS };
    let title = format!("{}: {BENCH}", E::STORE);
    let rounds = arena.options.rounds();
    let series =
        interleave(&title, rounds, &labels, async |n: usize| arena.rate(names[n], task).await).await?;
    let baselines = BASELINES.map(Name::as_str).to_vec();
    Ok(Comparison { bench: BENCH, store: E::STORE, callers: CALLERS, unit: RATE, series, baselines })
}
