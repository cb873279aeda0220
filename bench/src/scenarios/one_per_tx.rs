//! `inline-hot-rows`, `inline-failing`, `inline-slow`: what is hard on messages that share a transaction, beside
//! one transaction for each.

use anyhow::Result;

use super::rounds::interleave;
use super::{CALLERS, RATE};
use crate::arena::{Arena, Task};
use crate::business::Work;
use crate::contenders::Name;
use crate::feed::Order;
use crate::results::Comparison;
use crate::store::DatabaseKind;

/// A scenario of this kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contest {
    bench: &'static str,
    work: Work,
}

pub(super) const HOT_ROWS: Contest = Contest { bench: "inline-hot-rows", work: Work::HotRow };
pub(super) const FAILING: Contest = Contest { bench: "inline-failing", work: Work::Failing };
pub(super) const SLOW: Contest = Contest { bench: "inline-slow", work: Work::Slow };

const NAMES: [Name; 3] = [Name::Oncebox, Name::OnePerTx, Name::ClaimLoop];

pub(super) async fn run<E: DatabaseKind>(arena: &mut Arena<'_, E>, contest: Contest) -> Result<Comparison> {
    let Contest { bench, work } = contest;
    let labels = NAMES.map(Name::as_str);
    let task = Task { work, order: Order::Fresh, callers: CALLERS };
    let title = format!("{}: {bench}", E::STORE);
    let rounds = arena.options.rounds();
    let series =
        interleave(&title, rounds, &labels, async |n: usize| arena.rate(NAMES[n], task).await).await?;
    let baselines = labels[1..].to_vec();
    Ok(Comparison { bench, store: E::STORE, callers: CALLERS, unit: RATE, series, baselines })
}
