//! The sums of all seeds, for people and for programs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::database::StoreName;
use crate::seed::SeedSettings;
use crate::verdict::Verdict;

/// The results of all seeds.
#[derive(Debug, Default)]
pub(crate) struct TortureReport {
    stores: BTreeMap<StoreName, Sum>,
    violations: Vec<String>,
    left_out: BTreeSet<String>,
    /// Commands that run the seeds with violations again.
    commands: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
struct Sum {
    #[serde(flatten)]
    verdict: Verdict,
    seeds: Vec<u64>,
    violations: u64,
    /// With 95 % confidence, less than this share of messages is affected by a violation (the rule of three).
    upper_bound: Option<f64>,
}

impl Sum {
    fn add(&mut self, verdict: &Verdict) {
        self.verdict.add(verdict);
        self.violations = self.verdict.violations();
        self.upper_bound = upper_bound(&self.verdict);
    }
}

/// 3/n for n messages without a violation. With violations there is no such bound.
#[allow(clippy::cast_precision_loss, reason = "a bound of three digits")]
fn upper_bound(verdict: &Verdict) -> Option<f64> {
    (verdict.violations() == 0 && verdict.messages > 0).then(|| 3.0 / verdict.messages as f64)
}

/// One line for one seed.
pub(crate) fn line(settings: &SeedSettings, verdict: &Verdict, took: Duration) -> String {
    format!(
        "{:<22} {:>7} messages {:>8} deliveries {:>4} faults {:>3} violations, commits unknown {} recovered {}, {:.0} s",
        settings.name(),
        verdict.messages,
        verdict.deliveries,
        verdict.faults,
        verdict.violations(),
        verdict.commits_unknown,
        verdict.commits_recovered,
        took.as_secs_f64()
    )
}

impl TortureReport {
    pub(crate) fn add(&mut self, settings: &SeedSettings, verdict: &Verdict, violations: &[String]) {
        let sum = self.stores.entry(settings.store).or_default();
        sum.add(verdict);
        sum.seeds.push(settings.seed);
        if !violations.is_empty() {
            let name = settings.name();
            self.violations.extend(violations.iter().map(|violation| format!("{name}: {violation}")));
            self.commands.push(settings.command());
        }
    }

    pub(crate) fn leave_out(&mut self, why: String) {
        self.left_out.insert(why);
    }

    /// Whether there are no violations, and in CI no left-out faults either.
    pub(crate) fn is_good(&self, in_ci: bool) -> bool {
        let is_good = |sum: &Sum| sum.violations == 0 && sum.verdict.messages > 0;
        (self.left_out.is_empty() || !in_ci) && self.stores.values().all(is_good)
    }

    pub(crate) fn print(&self, json: bool) -> Result<()> {
        for (store, sum) in &self.stores {
            println!("\n{}", store.name());
            print_sum(sum);
        }
        for violation in &self.violations {
            println!("VIOLATION {violation}");
        }
        for command in &self.commands {
            println!("The same again, leaving history and database to look at: {command}");
        }
        for why in &self.left_out {
            println!("LEFT OUT {why}");
        }
        if json {
            println!("{}", self.json()?);
        }
        Ok(())
    }

    fn json(&self) -> Result<String> {
        #[derive(Serialize)]
        struct Whole<'a> {
            #[serde(flatten)]
            sum: Sum,
            stores: &'a BTreeMap<StoreName, Sum>,
            left_out: &'a BTreeSet<String>,
        }
        let mut sum = Sum::default();
        for of_store in self.stores.values() {
            sum.add(&of_store.verdict);
            sum.seeds.extend(&of_store.seeds);
        }
        Ok(serde_json::to_string(&Whole { sum, stores: &self.stores, left_out: &self.left_out })?)
    }
}

fn print_sum(sum: &Sum) {
    let verdict = &sum.verdict;
    println!("  messages {}, copies delivered {}", verdict.messages, verdict.deliveries);
    println!("  effects {}", verdict.effects);
    println!(
        "  lost {}, duplicated {}, overlap {}, inversion {}, ghost {}, stuck {}, dead {}",
        verdict.lost,
        verdict.duplicated,
        verdict.overlap,
        verdict.inversion,
        verdict.ghost,
        verdict.stuck,
        verdict.dead
    );
    println!("  commits unknown {}, recovered {}", verdict.commits_unknown, verdict.commits_recovered);
    println!("  faults {}", verdict.faults);
    for (fault, times) in &verdict.by_fault {
        println!("    {times:>5} {fault}");
    }
    if let Some(bound) = sum.upper_bound {
        println!("  with 95 % certainty fewer than {bound:.1e} of all messages are harmed (3/n)");
    }
}

#[cfg(test)]
mod tests {
    use oncebox_torture::scenario::TortureMode;

    use super::*;
    use crate::seed::tests::settings;

    fn inline(store: StoreName, seed: u64) -> SeedSettings {
        settings(store, TortureMode::Inline, seed)
    }

    #[test]
    fn the_sum_has_every_number_that_programs_read() {
        let mut report = TortureReport::default();
        let verdict =
            Verdict { messages: 300, faults: 2, effects: 600, commits_unknown: 1, ..Verdict::default() };
        report.add(&inline(StoreName::Sqlite, 1), &verdict, &[]);
        report.add(&inline(StoreName::Postgres, 1), &verdict, &[]);
        report.add(&inline(StoreName::Postgres, 2), &verdict, &[]);
        let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        for name in [
            "messages",
            "faults",
            "effects",
            "lost",
            "duplicated",
            "overlap",
            "inversion",
            "ghost",
            "stuck",
            "dead",
            "commits_unknown",
            "commits_recovered",
        ] {
            assert!(json[name].is_u64(), "{name} in {json}");
        }
        assert_eq!((&json["messages"], &json["stores"]["postgres"]["messages"]), (&900.into(), &600.into()));
        assert_eq!(json["stores"]["postgres"]["upper_bound"], 0.005);
        assert!(report.is_good(true));
    }

    #[test]
    fn a_violation_or_in_ci_a_left_out_fault_is_a_failure() {
        let mut report = TortureReport::default();
        report.add(&inline(StoreName::Sqlite, 1), &Verdict { messages: 1, ..Verdict::default() }, &[]);
        report.leave_out("disk_full: no".into());
        assert!(report.is_good(false) && !report.is_good(true));
        report.add(
            &inline(StoreName::Sqlite, 2),
            &Verdict { messages: 1, lost: 1, ..Verdict::default() },
            &[],
        );
        assert!(!report.is_good(false));
    }
}
