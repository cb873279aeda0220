//! `inline-half-duplicates`: every second delivery is a copy of one shortly before it.

use anyhow::Result;

use super::rounds::interleave;
use super::{CALLERS, RATE};
use crate::arena::{Arena, Trial};
use crate::business::HandlerWork;
use crate::contenders::ContenderName;
use crate::feed::FeedKind;
use crate::results::Comparison;
use crate::store::DatabaseKind;

const BENCH: &str = "inline-half-duplicates";
const BASELINES: [ContenderName; 3] =
    [ContenderName::Modulus, ContenderName::TurboMediator, ContenderName::Vulthil];
// Most first copies are settled by then.
const LAG: u64 = 4 * CALLERS as u64;

pub(super) async fn run<E: DatabaseKind>(arena: &mut Arena<'_, E>) -> Result<Comparison> {
    let names: Vec<ContenderName> = [ContenderName::Oncebox].into_iter().chain(BASELINES).collect();
    let labels: Vec<&'static str> = names.iter().map(|name| name.as_str()).collect();
    let task =
        Trial { work: HandlerWork::Insert, order: FeedKind::HalfDuplicates { lag: LAG }, callers: CALLERS };
    let title = format!("{}: {BENCH}", E::STORE);
    let rounds = arena.options.rounds();
    let series =
        interleave(&title, rounds, &labels, async |n: usize| arena.rate(names[n], task).await).await?;
    let baselines = BASELINES.map(ContenderName::as_str).to_vec();
    Ok(Comparison { bench: BENCH, store: E::STORE, callers: CALLERS, unit: RATE, series, baselines })
}
