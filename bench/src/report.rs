//! The results, for people and for programs.

use std::fmt::Write;

use anyhow::Result;
use serde::Serialize;

use crate::results::Comparison;

#[derive(Serialize)]
struct ReportLine<'a> {
    bench: &'a str,
    store: &'a str,
    contender: &'a str,
    baseline: &'a str,
    rate: f64,
    ratio: Option<f64>,
    concurrency: usize,
    rounds: usize,
}

/// One JSON object a line: one for each contender and baseline.
pub(crate) fn json(comparisons: &[Comparison]) -> Result<String> {
    let mut lines = String::new();
    for comparison in comparisons {
        for series in &comparison.series {
            for baseline in comparison.baselines_of(series.contender) {
                let line = ReportLine {
                    bench: comparison.bench,
                    store: comparison.store,
                    contender: series.contender,
                    baseline,
                    rate: rounded(series.median()),
                    ratio: comparison.ratio(series.contender, baseline).map(rounded),
                    concurrency: comparison.callers,
                    rounds: series.figures.len(),
                };
                lines.push_str(&serde_json::to_string(&line)?);
                lines.push('\n');
            }
        }
    }
    Ok(lines)
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// A table for each comparison, with its ratios.
pub(crate) fn tables(comparisons: &[Comparison]) -> String {
    comparisons.iter().map(table).collect::<Vec<_>>().join("\n")
}

fn table(comparison: &Comparison) -> String {
    let Comparison { bench, store, callers, unit, series, baselines } = comparison;
    let mut table = format!("{bench} · {store} · callers: {callers} · {unit}\n");
    let mut line = |first: &str, figures: [&str; 3], ratios: &mut dyn Iterator<Item = String>| {
        let [median, min, max] = figures;
        // Writing to a `String` cannot fail.
        let _ = write!(table, "  {first:<18}{median:>10}{min:>10}{max:>10}");
        for ratio in ratios {
            let _ = write!(table, "{ratio:>21}");
        }
        table.push('\n');
    };
    line("", ["median", "min", "max"], &mut baselines.iter().map(|baseline| format!("÷ {baseline}")));
    for one in series {
        let (min, max) = one.spread();
        let figures = [one.median(), min, max].map(figure);
        let ratios = baselines.iter().map(|baseline| match comparison.ratio(one.contender, baseline) {
            Some(ratio) if *baseline == one.contender || !ratio.is_finite() => String::new(),
            Some(ratio) if ratio < 0.1 => format!("{ratio:.3}×"),
            Some(ratio) => format!("{ratio:.2}×"),
            None => String::new(),
        });
        line(one.contender, figures.each_ref().map(String::as_str), &mut ratios.into_iter());
    }
    table
}

/// A figure with as many decimals as matter.
pub(crate) fn figure(value: f64) -> String {
    if value < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Series;

    fn comparison() -> Comparison {
        let series = |contender, figures: [f64; 3]| Series { contender, figures: figures.into() };
        Comparison {
            bench: "inline-failing",
            store: "sqlite",
            callers: 64,
            unit: "messages/s",
            series: vec![
                series("oncebox", [900.0, 1000.0, 1200.0]),
                series("one-per-tx", [400.0, 500.0, 600.0]),
            ],
            baselines: vec!["one-per-tx"],
        }
    }

    #[test]
    fn a_line_for_each_contender_and_baseline() {
        let json = json(&[comparison()]).unwrap();
        let expected = r#"{"bench":"inline-failing","store":"sqlite","contender":"oncebox","baseline":"one-per-tx","rate":1000.0,"ratio":2.0,"concurrency":64,"rounds":3}"#;
        assert_eq!(json.lines().next(), Some(expected));
        assert_eq!(json.lines().count(), 2);
    }

    #[test]
    fn a_table_shows_median_spread_and_ratio() {
        let table = tables(&[comparison()]);
        let row = table.lines().find(|line| line.contains("oncebox")).unwrap();
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(cells, ["oncebox", "1000", "900", "1200", "2.00×"]);
    }
}
