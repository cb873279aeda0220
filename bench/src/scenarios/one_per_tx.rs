//! `inline-hot-rows`, `inline-failing`, `inline-slow`: hard cases for messages that share a transaction,
//! compared with one transaction for each.

use anyhow::Result;

use super::rounds::interleave;
use super::{CALLERS, RATE};
use crate::arena::{Arena, Trial};
use crate::business::HandlerWork;
use crate::contenders::ContenderName;
use crate::feed::FeedKind;
use crate::results::Comparison;
use crate::store::DatabaseKind;

/// A scenario of this kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contest {
    bench: &'static str,
    work: HandlerWork,
}

pub(super) const HOT_ROWS: Contest = Contest { bench: "inline-hot-rows", work: HandlerWork::HotRow };
pub(super) const FAILING: Contest = Contest { bench: "inline-failing", work: HandlerWork::Failing };
pub(super) const SLOW: Contest = Contest { bench: "inline-slow", work: HandlerWork::Slow };

const NAMES: [ContenderName; 3] = [ContenderName::Oncebox, ContenderName::OnePerTx, ContenderName::ClaimLoop];

pub(super) async fn run<E: DatabaseKind>(arena: &mut Arena<'_, E>, contest: Contest) -> Result<Comparison> {
    let Contest { bench, work } = contest;
    let labels = NAMES.map(ContenderName::as_str);
    let task = Trial { work, order: FeedKind::Fresh, callers: CALLERS };
    let title = format!("{}: {bench}", E::STORE);
    let rounds = arena.options.rounds();
    let series =
        interleave(&title, rounds, &labels, async |n: usize| arena.rate(NAMES[n], task).await).await?;
    let baselines = labels[1..].to_vec();
    Ok(Comparison { bench, store: E::STORE, callers: CALLERS, unit: RATE, series, baselines })
}
