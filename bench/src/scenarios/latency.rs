//! `inline-latency`: the time of a message at 30 % of the contender's maximum rate.

use anyhow::{Context, Result};

use super::CALLERS;
use super::rounds::interleave;
use crate::arena::{Arena, Trial};
use crate::contenders::ContenderName;
use crate::feed::Feed;
use crate::measure::latencies;
use crate::report::figure;
use crate::results::{Comparison, Series};
use crate::stats::percentile;
use crate::store::{DatabaseKind, Ground};

const LOAD: f64 = 0.3;
const PERCENTILES: [(&str, f64); 3] =
    [("inline-latency-p50", 0.5), ("inline-latency-p95", 0.95), ("inline-latency-p99", 0.99)];
/// The last one is Oncebox under the load of Vulthil.
const LABELS: [&str; 3] = ["oncebox", "vulthil", "oncebox-same-load"];

pub(super) async fn run<E: DatabaseKind>(arena: &mut Arena<'_, E>) -> Result<Vec<Comparison>> {
    let oncebox = LOAD * arena.rate(ContenderName::Oncebox, Trial::fresh(CALLERS)).await?;
    let vulthil = LOAD * arena.rate(ContenderName::Vulthil, Trial::fresh(CALLERS)).await?;
    eprintln!("{}: 30 % are {}/s for oncebox, {}/s for vulthil", E::STORE, figure(oncebox), figure(vulthil));
    let loads = [
        (ContenderName::Oncebox, oncebox),
        (ContenderName::Vulthil, vulthil),
        // At 30 % of its own rate Oncebox handles more messages than Vulthil: this compares equal loads.
        (ContenderName::Oncebox, vulthil),
    ];
    let title = format!("{}: inline-latency (p50, ms)", E::STORE);
    let rounds = arena.options.rounds();
    let mut figures = LABELS.map(|_| Vec::new());
    let measure = async |n: usize| {
        let (name, load) = loads[n];
        let all = measure(arena, name, load).await.with_context(|| format!("measuring {name}"))?;
        let figures_of_round = PERCENTILES.map(|(_, share)| percentile(&all, share));
        figures[n].push(figures_of_round);
        Ok(figures_of_round[0])
    };
    interleave(&title, rounds, &LABELS, measure).await?;
    Ok(PERCENTILES.iter().enumerate().map(|(p, (bench, _))| comparison::<E>(bench, p, &figures)).collect())
}

fn comparison<E: DatabaseKind>(bench: &'static str, p: usize, figures: &[Vec<[f64; 3]>; 3]) -> Comparison {
    let series = LABELS.iter().zip(figures).map(|(&contender, rounds)| Series {
        contender,
        figures: rounds.iter().map(|percentiles| percentiles[p]).collect(),
    });
    let series = series.collect();
    Comparison { bench, store: E::STORE, callers: CALLERS, unit: "ms", series, baselines: vec!["vulthil"] }
}

async fn measure<E: DatabaseKind>(
    arena: &mut Arena<'_, E>,
    name: ContenderName,
    load: f64,
) -> Result<Vec<f64>> {
    let task = Trial::fresh(CALLERS);
    let ground = arena.fresh().await?;
    let entrant = arena.enter(name, &ground, task).await?;
    let feed = Feed::new(task.order);
    let all = latencies(&entrant.contender, feed, task.callers, load, arena.options.pace()).await;
    entrant.leave().await;
    ground.discard().await?;
    all
}
