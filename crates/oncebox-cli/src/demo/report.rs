//! The result of the demo: a table and a sentence for people, a JSON object for programs.

use serde::Serialize;

use crate::demo::audit::Audit;
use crate::demo::history::DemoCounts;
use crate::table::TextTable;

/// The result in JSON.
#[derive(Debug, Serialize)]
struct Object<'a> {
    sent: usize,
    delivered: u64,
    duplicates: u64,
    crashes: usize,
    effects: u64,
    lost: u64,
    double: u64,
    foreign: u64,
    open: u64,
    exact: bool,
    finished: bool,
    recognised: u64,
    acks_dropped: u64,
    cut_off: usize,
    revived: u64,
    amount_expected: i64,
    amount_found: i64,
    seed: u64,
    messages: u64,
    seconds: f64,
    store: &'a str,
    schema: Option<&'a str>,
}

/// The counts of the history, and the audit of the ledger.
#[derive(Debug)]
pub(super) struct DemoReport {
    pub(super) counts: DemoCounts,
    pub(super) audit: Audit,
}

impl DemoReport {
    /// Whether the demo ran to its end, the ledger is exact, and all kills have happened.
    pub(super) fn is_proof(&self) -> bool {
        self.counts.is_worked_off && self.audit.is_exact() && self.counts.crashes >= self.counts.kills_wanted
    }

    pub(super) fn object(&self) -> impl Serialize {
        let Self { counts, audit } = self;
        Object {
            sent: counts.deliveries.sent.len(),
            delivered: counts.deliveries.delivered,
            duplicates: counts.deliveries.duplicates(),
            crashes: counts.crashes,
            effects: audit.effects,
            lost: audit.lost,
            double: audit.double,
            foreign: audit.foreign,
            open: audit.open,
            exact: audit.is_exact(),
            finished: counts.is_worked_off,
            recognised: counts.recognised,
            acks_dropped: counts.deliveries.acks_dropped,
            cut_off: counts.cut_off,
            revived: counts.revived,
            amount_expected: audit.amount_expected,
            amount_found: audit.amount_found,
            seed: counts.seed,
            messages: counts.messages,
            seconds: self.seconds(),
            store: &counts.store,
            schema: counts.schema.as_deref(),
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "a run of that many milliseconds does not occur")]
    fn seconds(&self) -> f64 {
        self.counts.ms as f64 / 1_000.0
    }

    pub(super) fn table(&self) -> TextTable {
        let Self { counts, audit } = self;
        let mut table = TextTable::new(["audit", ""]).right([1]);
        let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
        row("messages sent", counts.deliveries.sent.len().to_string());
        row("deliveries made", counts.deliveries.delivered.to_string());
        row("duplicates among them", counts.deliveries.duplicates().to_string());
        row("deliveries cut off by a kill", counts.cut_off.to_string());
        row("acknowledgements dropped", counts.deliveries.acks_dropped.to_string());
        row("workers killed", counts.crashes.to_string());
        if counts.revived > 0 {
            row("dead letters retried", counts.revived.to_string());
        }
        row("ledger rows", audit.effects.to_string());
        row("lost", audit.lost.to_string());
        row("double", audit.double.to_string());
        if audit.foreign > 0 {
            row("rows of no message that was sent", audit.foreign.to_string());
        }
        if audit.open > 0 {
            row("still to come", audit.open.to_string());
        }
        row("sum of amounts expected", audit.amount_expected.to_string());
        row("sum of amounts found", audit.amount_found.to_string());
        table
    }

    /// The conclusion.
    pub(super) fn sentence(&self) -> String {
        let Self { counts, audit } = self;
        let seconds = self.seconds();
        match (audit.is_exact(), counts.is_worked_off) {
            (true, true) if !self.is_proof() => format!(
                "Exact, but no proof: only {} of {} kills happened.",
                counts.crashes, counts.kills_wanted
            ),
            (true, true) => format!(
                "Exact: each of {} messages took effect once, through {} duplicates, {} dropped acknowledgements and {} {}, \
                 in {seconds:.1} s.",
                counts.deliveries.sent.len(),
                counts.deliveries.duplicates(),
                counts.deliveries.acks_dropped,
                counts.crashes,
                if counts.crashes == 1 { "kill" } else { "kills" }
            ),
            (true, false) => format!(
                "Interrupted after {seconds:.1} s: {} of {} messages sent, exact so far.",
                counts.deliveries.sent.len(),
                counts.messages
            ),
            (false, _) => format!(
                "NOT exact: {} lost, {} double, {} of no message. That is a defect: please report it, with what \
                 `oncebox demo --seed {} --keep DIR` leaves.",
                audit.lost, audit.double, audit.foreign, counts.seed
            ),
        }
    }
}
