//! The results, and a check that they are plausible.

use crate::stats::{median, spread};

/// The figures of one contender, one per round.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) contender: &'static str,
    pub(crate) figures: Vec<f64>,
}

impl Series {
    pub(crate) fn median(&self) -> f64 {
        median(&self.figures)
    }

    pub(crate) fn spread(&self) -> (f64, f64) {
        spread(&self.figures)
    }
}

/// The figures of all contenders in one scenario.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) bench: &'static str,
    pub(crate) store: &'static str,
    pub(crate) callers: usize,
    /// The unit of the figures.
    pub(crate) unit: &'static str,
    pub(crate) series: Vec<Series>,
    /// The contenders with which others are compared.
    pub(crate) baselines: Vec<&'static str>,
}

impl Comparison {
    pub(crate) fn of(&self, contender: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.contender == contender)
    }

    /// The median of one contender divided by that of another.
    pub(crate) fn ratio(&self, contender: &str, baseline: &str) -> Option<f64> {
        Some(self.of(contender)?.median() / self.of(baseline)?.median())
    }

    /// The baselines that a row of this contender is about: all for a contender, and for a baseline the naive
    /// consumer, or itself.
    pub(crate) fn baselines_of(&self, contender: &'static str) -> Vec<&'static str> {
        if !self.baselines.contains(&contender) {
            self.baselines.clone()
        } else if self.baselines.contains(&"bare") {
            vec!["bare"]
        } else {
            vec![contender]
        }
    }
}

const TENTHS: [&str; 10] = [
    "tenth-1", "tenth-2", "tenth-3", "tenth-4", "tenth-5", "tenth-6", "tenth-7", "tenth-8", "tenth-9",
    "tenth-10",
];

/// The rates in each tenth of a backlog, over all rounds.
pub(crate) struct Tenths([Series; 10]);

impl Tenths {
    pub(crate) fn new() -> Self {
        Self(TENTHS.map(|contender| Series { contender, figures: Vec::new() }))
    }

    /// Adds the rates of one round.
    pub(crate) fn add(&mut self, rates: &[f64]) {
        for (series, rate) in self.0.iter_mut().zip(rates) {
            series.figures.push(*rate);
        }
    }

    /// All tenths, compared with the first one.
    pub(crate) fn compare(
        self,
        bench: &'static str,
        store: &'static str,
        callers: usize,
        unit: &'static str,
    ) -> Comparison {
        let series = self.0.into_iter().filter(|tenth| !tenth.figures.is_empty()).collect();
        Comparison { bench, store, callers, unit, series, baselines: vec![TENTHS[0]] }
    }
}

/// A baseline below this share of the naive consumer was not given a fair chance.
const FAIR_SHARES: [(&str, f64); 2] = [("vulthil", 0.3), ("modulus", 0.2)];

/// The reasons why the run is invalid, one line each.
pub(crate) fn doubts(comparisons: &[Comparison]) -> Vec<String> {
    let fresh = comparisons.iter().filter(|comparison| comparison.bench == "inline-fresh");
    let shares = fresh.flat_map(|comparison| {
        FAIR_SHARES.iter().filter_map(move |&(baseline, least)| {
            let share = comparison.ratio(baseline, "bare")?;
            (share < least).then(|| {
                let Comparison { store, callers, .. } = comparison;
                format!("{baseline} on {store} with {callers} callers reached {share:.2}× of bare, less than {least}×")
            })
        })
    });
    shares.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(vulthil: f64) -> Comparison {
        let series = |contender, figure| Series { contender, figures: vec![figure] };
        Comparison {
            bench: "inline-fresh",
            store: "postgres",
            callers: 64,
            unit: "messages/s",
            series: vec![series("oncebox", 900.0), series("vulthil", vulthil), series("bare", 1000.0)],
            baselines: vec!["vulthil", "bare"],
        }
    }

    #[test]
    fn a_baseline_that_is_too_slow_makes_the_run_invalid() {
        assert_eq!(doubts(&[fresh(300.0)]), Vec::<String>::new());
        let doubts = doubts(&[fresh(290.0)]);
        assert!(matches!(&doubts[..], [one] if one.contains("0.29×")), "{doubts:?}");
    }

    #[test]
    fn contenders_are_compared_with_all_baselines_and_those_with_bare() {
        let fresh = fresh(300.0);
        assert_eq!(fresh.baselines_of("oncebox"), ["vulthil", "bare"]);
        assert_eq!(fresh.baselines_of("vulthil"), ["bare"]);
        assert_eq!(fresh.ratio("oncebox", "vulthil"), Some(3.0));
    }
}
