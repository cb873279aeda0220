//! `inline-deadlocks`: two handlers of the same message update the same two rows in opposite order.

use anyhow::Result;

use super::rounds::interleave;
use super::{CALLERS, RATE};
use crate::arena::{Arena, Trial};
use crate::business::HandlerWork;
use crate::contenders::ContenderName;
use crate::feed::FeedKind;
use crate::results::{Comparison, Series};
use crate::stats::{median, spread};
use crate::store::DatabaseKind;

const NAMES: [ContenderName; 2] = [ContenderName::Oncebox, ContenderName::ClaimLoop];
/// The number of rows from which the two are picked, and the names of the rate and of the longest wait.
const ROWS: [(u64, &str, &str); 3] = [
    (20, "inline-deadlocks-20", "inline-deadlocks-20-wait"),
    (2, "inline-deadlocks-2", "inline-deadlocks-2-wait"),
    (1_000, "inline-deadlocks-1000", "inline-deadlocks-1000-wait"),
];

pub(super) async fn run<E: DatabaseKind>(arena: &mut Arena<'_, E>) -> Result<Vec<Comparison>> {
    let mut all = Vec::new();
    for (rows, rate, wait) in ROWS {
        all.extend(compare(arena, rows, rate, wait).await?);
    }
    Ok(all)
}

async fn compare<E: DatabaseKind>(
    arena: &mut Arena<'_, E>,
    rows: u64,
    rate: &'static str,
    wait: &'static str,
) -> Result<[Comparison; 2]> {
    let labels = NAMES.map(ContenderName::as_str);
    let work = HandlerWork::Crossing { rows, backwards: false };
    let task = Trial { work, order: FeedKind::Fresh, callers: CALLERS };
    let title = format!("{}: {rate}", E::STORE);
    let rounds = arena.options.rounds();
    let mut longest = NAMES.map(|name| Series { contender: name.as_str(), figures: Vec::new() });
    let measure = async |n: usize| {
        let measured = arena.throughput(NAMES[n], task).await?;
        longest[n].figures.push(longest_wait(&measured.waits));
        Ok(measured.rate)
    };
    let series = interleave(&title, rounds, &labels, measure).await?;
    let comparison = |bench, unit, series, baselines| Comparison {
        bench,
        store: E::STORE,
        callers: CALLERS,
        unit,
        series,
        baselines,
    };
    Ok([
        comparison(rate, RATE, series, labels[1..].to_vec()),
        comparison(wait, "longest wait ÷ median", longest.into(), labels[1..].to_vec()),
    ])
}

/// The longest wait divided by the median; 1 if only one message was settled.
fn longest_wait(waits: &[f64]) -> f64 {
    spread(waits).1 / median(waits)
}
