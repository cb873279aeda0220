//! `inline-fresh`: each message once.

use anyhow::Result;

use super::RATE;
use super::rounds::interleave;
use crate::arena::{Arena, Trial};
use crate::contenders::ContenderName;
use crate::results::Comparison;
use crate::store::DatabaseKind;

const BENCH: &str = "inline-fresh";
const CALLERS: [usize; 4] = [1, 16, 64, 256];
// With one writer, the other numbers of callers show nothing new.
const CALLERS_OF_ONE_WRITER: [usize; 2] = [1, 64];
const BASELINES: [ContenderName; 5] = [
    ContenderName::Modulus,
    ContenderName::TurboMediator,
    ContenderName::Vulthil,
    ContenderName::Bare,
    ContenderName::Bulk,
];

pub(super) async fn run<E: DatabaseKind>(arena: &mut Arena<'_, E>) -> Result<Vec<Comparison>> {
    let mut all = Vec::new();
    for callers in CALLERS {
        if !arena.options.wants_callers(callers) {
            continue;
        }
        if !arena.options.quick || !E::ONE_WRITER || CALLERS_OF_ONE_WRITER.contains(&callers) {
            all.push(compare(arena, callers).await?);
        }
    }
    Ok(all)
}

async fn compare<E: DatabaseKind>(arena: &mut Arena<'_, E>, callers: usize) -> Result<Comparison> {
    let names: Vec<ContenderName> =
        [ContenderName::Oncebox, ContenderName::OnceboxSet].into_iter().chain(BASELINES).collect();
    let labels: Vec<&'static str> = names.iter().map(|name| name.as_str()).collect();
    let title = format!("{}: {BENCH}, {callers} callers", E::STORE);
    let rounds = arena.options.rounds();
    let measure = async |n: usize| arena.rate(names[n], Trial::fresh(callers)).await;
    let series = interleave(&title, rounds, &labels, measure).await?;
    let baselines = BASELINES.map(ContenderName::as_str).to_vec();
    Ok(Comparison { bench: BENCH, store: E::STORE, callers, unit: RATE, series, baselines })
}
