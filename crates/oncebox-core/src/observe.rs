//! What can be seen from outside: every metric, in one place.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

/// Handler runs that were committed.
pub const PROCESSED: &str = "oncebox_processed_total";
/// Deliveries skipped because the handler had run.
pub const DUPLICATES: &str = "oncebox_duplicates_total";
/// Messages for which no key was found.
pub const MISSING_KEY: &str = "oncebox_missing_key_total";
/// Keys that were reused for another body.
pub const KEY_REUSE: &str = "oncebox_key_reuse_total";
/// Handler runs that failed and were rolled back.
pub const FAILED: &str = "oncebox_failed_total";
/// Messages rejected permanently.
pub const REJECTED: &str = "oncebox_rejected_total";
/// Messages taken into the log.
pub const ACCEPTED: &str = "oncebox_accepted_total";
/// Messages that became dead letters.
pub const DEAD: &str = "oncebox_dead_total";
/// Messages that left the log.
pub const PRUNED: &str = "oncebox_pruned_total";
/// Messages that wait for a handler.
pub const LAG_MESSAGES: &str = "oncebox_lag_messages";
/// How long the oldest of them has waited.
pub const LAG_SECONDS: &str = "oncebox_lag_seconds";
/// Copies that gave up waiting for the first one.
pub const BUSY: &str = "oncebox_busy_total";
/// Commits whose answer was lost.
pub const COMMITS_UNKNOWN: &str = "oncebox_commits_unknown_total";
/// Commits whose answer was lost, and that had happened.
pub const COMMITS_RECOVERED: &str = "oncebox_commits_recovered_total";
/// Runs of detached handlers that did not count.
pub const LEASES_LOST: &str = "oncebox_leases_lost_total";
/// Messages that were to run inline and were set apart.
pub const SPILLED: &str = "oncebox_spilled_total";
/// Messages of an unhandled kind.
pub const UNHANDLED: &str = "oncebox_unhandled_total";
/// Markers removed by sweeps.
pub const SWEPT: &str = "oncebox_swept_total";
/// Seconds from a message's arrival to its commit.
pub const WAIT_SECONDS: &str = "oncebox_wait_seconds";
/// Messages that shared a transaction.
pub const BATCH_SIZE: &str = "oncebox_batch_size";
/// Seconds that a handler ran.
pub const HANDLE_SECONDS: &str = "oncebox_handle_seconds";

/// All metrics: name, type, label, meaning.
pub const METRICS: &[(&str, &str, &str, &str)] = &[
    (PROCESSED, "counter", "handler", "handler runs that were committed"),
    (DUPLICATES, "counter", "handler", "deliveries skipped because the handler had run"),
    (MISSING_KEY, "counter", "handler", "messages for which no key was found"),
    (KEY_REUSE, "counter", "handler", "keys that were reused for another body"),
    (FAILED, "counter", "handler", "handler runs that failed and were rolled back"),
    (REJECTED, "counter", "handler", "messages rejected permanently"),
    (ACCEPTED, "counter", "kind", "messages taken into the log"),
    (DEAD, "counter", "handler", "messages that became dead letters"),
    (BUSY, "counter", "handler", "copies that gave up waiting for the first one"),
    (COMMITS_UNKNOWN, "counter", "handler", "commits whose answer was lost, once for each message in them"),
    (COMMITS_RECOVERED, "counter", "handler", "of these, messages whose commit had happened"),
    (LEASES_LOST, "counter", "handler", "runs of detached handlers whose lease expired meanwhile"),
    (SPILLED, "counter", "handler", "messages that were to run inline and were set apart in the log"),
    (UNHANDLED, "counter", "kind", "messages of an unhandled kind"),
    (SWEPT, "counter", "", "markers removed by sweeps"),
    (PRUNED, "counter", "", "messages that left the log after all handlers had passed them"),
    (LAG_MESSAGES, "gauge", "handler", "positions ahead of a handler's progress, and its tasks"),
    (LAG_SECONDS, "gauge", "handler", "how long the oldest message ahead of a handler's progress has waited"),
    (WAIT_SECONDS, "histogram", "handler", "seconds from a message's arrival to its commit"),
    (HANDLE_SECONDS, "histogram", "handler", "seconds that a handler ran"),
    (BATCH_SIZE, "histogram", "handler", "messages that shared a transaction, where several did"),
];

/// A recorder keeps every label for ever, and senders may choose the kinds: after so many, those that are new have one label.
const KINDS_MAX: usize = 1_000;
const OTHER_KINDS: &str = "(other)";

static KINDS: Kinds = Kinds(RwLock::new(BTreeSet::new()));

/// The kinds that have labels of their own.
struct Kinds(RwLock<BTreeSet<String>>);

impl Kinds {
    fn label<'a>(&self, kind: &'a str) -> &'a str {
        {
            let kinds = self.0.read().unwrap_or_else(PoisonError::into_inner);
            if kinds.contains(kind) {
                return kind;
            }
            if kinds.len() >= KINDS_MAX {
                return OTHER_KINDS;
            }
        }
        self.reserve(kind);
        kind
    }

    fn reserve(&self, kind: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(kind.to_owned());
    }
}

/// Records metrics through the `metrics` facade, or nothing at all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observer {
    pub(crate) enabled: bool,
}

impl Observer {
    /// Kinds that have a label of their own, however many others there are.
    pub(crate) fn expect<'a>(self, kinds: impl IntoIterator<Item = &'a String>) {
        kinds.into_iter().for_each(|kind| KINDS.reserve(kind));
    }

    pub(crate) fn describe(self) {
        if !self.enabled {
            return;
        }
        for &(name, kind, _, meaning) in METRICS {
            match kind {
                "histogram" if name == BATCH_SIZE => {
                    metrics::describe_histogram!(name, metrics::Unit::Count, meaning);
                }
                "histogram" => metrics::describe_histogram!(name, metrics::Unit::Seconds, meaning),
                "gauge" => metrics::describe_gauge!(name, meaning),
                _ => metrics::describe_counter!(name, meaning),
            }
        }
    }

    pub(crate) fn count(self, name: &'static str, handler: &str) {
        if self.enabled {
            metrics::counter!(name, "handler" => handler.to_owned()).increment(1);
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "batches are small")]
    pub(crate) fn batch(self, handler: &str, units: usize) {
        if self.enabled {
            metrics::histogram!(BATCH_SIZE, "handler" => handler.to_owned()).record(units as f64);
        }
    }

    pub(crate) fn unhandled(self, kind: &str) {
        if self.enabled {
            metrics::counter!(UNHANDLED, "kind" => KINDS.label(kind).to_owned()).increment(1);
        }
    }

    pub(crate) fn accepted(self, kind: &str) {
        if self.enabled {
            metrics::counter!(ACCEPTED, "kind" => KINDS.label(kind).to_owned()).increment(1);
        }
    }

    pub(crate) fn pruned(self, messages: u64) {
        if self.enabled {
            metrics::counter!(PRUNED).increment(messages);
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "a gauge")]
    pub(crate) fn lag(self, handler: &str, messages: u64, oldest: Option<Duration>) {
        if self.enabled {
            metrics::gauge!(LAG_MESSAGES, "handler" => handler.to_owned()).set(messages as f64);
            let seconds = oldest.unwrap_or_default().as_secs_f64();
            metrics::gauge!(LAG_SECONDS, "handler" => handler.to_owned()).set(seconds);
        }
    }

    pub(crate) fn swept(self, markers: u64) {
        if self.enabled {
            metrics::counter!(SWEPT).increment(markers);
        }
    }

    pub(crate) fn time(self, name: &'static str, handler: &str, elapsed: Duration) {
        if self.enabled {
            metrics::histogram!(name, "handler" => handler.to_owned()).record(elapsed.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_cannot_make_labels_without_end() {
        let kinds = Kinds(RwLock::new(BTreeSet::new()));
        for n in 0..KINDS_MAX {
            let kind = format!("kind-{n}");
            assert_eq!(kinds.label(&kind), kind);
        }
        assert_eq!(kinds.label("one more"), OTHER_KINDS);
        assert_eq!(kinds.label("kind-7"), "kind-7", "those that have a label keep it");
        assert_eq!(kinds.0.read().unwrap().len(), KINDS_MAX);
        kinds.reserve("a handler's");
        assert_eq!(kinds.label("a handler's"), "a handler's");
    }
}
