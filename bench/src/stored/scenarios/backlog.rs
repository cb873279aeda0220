//! `backlog`: working through a large backlog, beside a small one; and whether the rate changes on the way.

use anyhow::Result;

use super::super::arena::StoredArena;
use super::super::engine::StoredDatabaseKind;
use super::super::keepers::KeeperName;
use super::RATE;
use crate::report::figure;
use crate::results::{Comparison, Tenths};
use crate::scenarios::rounds::interleave;

const BENCH: &str = "backlog";
/// A contender, its baseline, and where its tenths are reported.
const CONTESTS: [(KeeperName, [&str; 2], &str); 2] = [
    (KeeperName::OnceboxSet, ["oncebox-set", "oncebox-set-small"], "backlog-tenths-oncebox-set"),
    (KeeperName::Oncebox, ["oncebox", "oncebox-small"], "backlog-tenths-oncebox"),
];

pub(super) async fn run<E: StoredDatabaseKind>(arena: &mut StoredArena<'_, E>) -> Result<Vec<Comparison>> {
    let mut all = Vec::new();
    for (name, labels, bench_of_tenths) in CONTESTS {
        let (large, small) = (arena.options.large_backlog(), arena.options.waiting_messages());
        let title = format!("{}: {BENCH} of {large}", E::STORE);
        let rounds = arena.options.large_rounds();
        let mut tenths = Tenths::new();
        let measure = async |n: usize| {
            let worked = arena.drains(name, 1, if n == 0 { large } else { small }).await?;
            if n == 0 {
                show::<E>(name, &worked.tenths);
                tenths.add(&worked.tenths);
            }
            Ok(worked.rate)
        };
        let series = interleave(&title, rounds, &labels, measure).await?;
        let (store, callers) = (E::STORE, E::INBOX_WORKERS);
        let baselines = labels[1..].to_vec();
        all.push(Comparison { bench: BENCH, store, callers, unit: RATE, series, baselines });
        all.push(tenths.compare(bench_of_tenths, store, callers, RATE));
    }
    Ok(all)
}

fn show<E: StoredDatabaseKind>(name: KeeperName, tenths: &[f64]) {
    let figures: Vec<String> = tenths.iter().map(|rate| figure(*rate)).collect();
    eprintln!(
        "{}: {BENCH}: {name} by tenths: {}; from begin to end {:+.1} %",
        E::STORE,
        figures.join(" "),
        100.0 * trend(tenths)
    );
}

/// By how much the line through the values rises from its begin to its end, as a share of their mean.
#[allow(clippy::cast_precision_loss, reason = "a handful of values")]
fn trend(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let (mean, middle) = (values.iter().sum::<f64>() / count, (count - 1.0) / 2.0);
    let away = |n: usize| n as f64 - middle;
    let over: f64 = values.iter().enumerate().map(|(n, value)| away(n) * (value - mean)).sum();
    let under: f64 = (0..values.len()).map(|n| away(n) * away(n)).sum();
    if under > 0.0 && mean > 0.0 { over / under * (count - 1.0) / mean } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trend_is_a_share_of_the_mean() {
        assert!(trend(&[5.0; 10]).abs() < 1e-9);
        assert!((trend(&[110.0, 100.0, 90.0]) + 0.2).abs() < 1e-9);
        assert!(trend(&[7.0]).abs() < 1e-9);
    }
}
