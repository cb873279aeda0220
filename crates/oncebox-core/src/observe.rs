//! All metrics: names, types, labels and meanings.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use crate::store::Captured;

/// Handler runs that were committed.
pub const PROCESSED: &str = "oncebox_processed_total";
/// Deliveries skipped because the handler had already run.
pub const DUPLICATES: &str = "oncebox_duplicates_total";
/// Messages without a key.
pub const MISSING_KEY: &str = "oncebox_missing_key_total";
/// Keys that were reused for another body.
pub const KEY_REUSE: &str = "oncebox_key_reuse_total";
/// Handler runs that failed and were rolled back.
pub const FAILED: &str = "oncebox_failed_total";
/// Messages rejected permanently.
pub const REJECTED: &str = "oncebox_rejected_total";
/// Messages accepted into the log.
pub const ACCEPTED: &str = "oncebox_accepted_total";
/// Messages written to the outbox.
pub const PUBLISHED: &str = "oncebox_published_total";
/// Messages that the mover took from the outbox to the log.
pub const MOVED: &str = "oncebox_moved_total";
/// Messages that became dead letters.
pub const DEAD: &str = "oncebox_dead_total";
/// Messages removed from the log after all handlers had passed them.
pub const PRUNED: &str = "oncebox_pruned_total";
/// Positions ahead of a handler's progress, and its tasks.
pub const LAG_MESSAGES: &str = "oncebox_lag_messages";
/// Waiting time of the oldest message ahead of a handler's progress.
pub const LAG_SECONDS: &str = "oncebox_lag_seconds";
/// Copies whose wait for the first copy timed out.
pub const BUSY: &str = "oncebox_busy_total";
/// Commits whose response was lost, once per message.
pub const COMMITS_UNKNOWN: &str = "oncebox_commits_unknown_total";
/// Messages whose commit response was lost, but whose commit succeeded.
pub const COMMITS_RECOVERED: &str = "oncebox_commits_recovered_total";
/// Runs of detached handlers whose lease expired meanwhile.
pub const LEASES_LOST: &str = "oncebox_leases_lost_total";
/// Inline messages that were moved to the log.
pub const SPILLED: &str = "oncebox_spilled_total";
/// Messages of an unhandled kind.
pub const UNHANDLED: &str = "oncebox_unhandled_total";
/// Markers removed by sweeps.
pub const SWEPT: &str = "oncebox_swept_total";
/// Deliveries that have arrived from a source.
pub const SOURCE_RECEIVED: &str = "oncebox_source_received_total";
/// Deliveries that were acknowledged at their source.
pub const SOURCE_ACKNOWLEDGED: &str = "oncebox_source_acknowledged_total";
/// Deliveries that a source delivers again later.
pub const SOURCE_RETRIED: &str = "oncebox_source_retried_total";
/// Deliveries that were rejected at their source.
pub const SOURCE_REJECTED: &str = "oncebox_source_rejected_total";
/// Deliveries of a source that are not settled.
pub const SOURCE_IN_FLIGHT: &str = "oncebox_source_in_flight";
/// Whether a source is connected: 1 or 0.
pub const SOURCE_CONNECTED: &str = "oncebox_source_connected";
/// Seconds from a message's arrival to its commit.
pub const WAIT_SECONDS: &str = "oncebox_wait_seconds";
/// Messages per shared transaction.
pub const BATCH_SIZE: &str = "oncebox_batch_size";
/// Seconds per handler run.
pub const HANDLE_SECONDS: &str = "oncebox_handle_seconds";

/// All metrics, each with name, type, label and meaning.
pub const METRICS: &[(&str, &str, &str, &str)] = &[
    (PROCESSED, "counter", "handler", "handler runs that were committed"),
    (DUPLICATES, "counter", "handler", "deliveries skipped because the handler had already run"),
    (MISSING_KEY, "counter", "handler", "messages without a key"),
    (KEY_REUSE, "counter", "handler", "keys that were reused for another body"),
    (FAILED, "counter", "handler", "handler runs that failed and were rolled back"),
    (REJECTED, "counter", "handler", "messages rejected permanently"),
    (ACCEPTED, "counter", "kind", "messages accepted into the log"),
    (PUBLISHED, "counter", "kind", "messages written to the outbox, before their transactions commit"),
    (MOVED, "counter", "", "messages that the mover took from the outbox to the log"),
    (DEAD, "counter", "handler", "messages that became dead letters"),
    (BUSY, "counter", "handler", "copies whose wait for the first copy timed out"),
    (COMMITS_UNKNOWN, "counter", "handler", "commits whose response was lost, once per message"),
    (
        COMMITS_RECOVERED,
        "counter",
        "handler",
        "messages whose commit response was lost, but whose commit succeeded",
    ),
    (
        LEASES_LOST,
        "counter",
        "handler",
        "runs of detached handlers, and lanes of relays, whose lease expired meanwhile",
    ),
    (SPILLED, "counter", "handler", "inline messages that were moved to the log"),
    (UNHANDLED, "counter", "kind", "messages of an unhandled kind"),
    (SWEPT, "counter", "", "markers removed by sweeps"),
    (PRUNED, "counter", "", "messages removed from the log after all handlers had passed them"),
    (LAG_MESSAGES, "gauge", "handler", "positions ahead of a handler's progress, and its tasks"),
    (
        LAG_SECONDS,
        "gauge",
        "handler",
        "waiting time in seconds of the oldest message ahead of a handler's progress",
    ),
    (SOURCE_RECEIVED, "counter", "source", "deliveries that have arrived from a source"),
    (SOURCE_ACKNOWLEDGED, "counter", "source", "deliveries that were acknowledged at their source"),
    (SOURCE_RETRIED, "counter", "source", "deliveries that a source delivers again later"),
    (SOURCE_REJECTED, "counter", "source", "deliveries that were rejected at their source"),
    (SOURCE_IN_FLIGHT, "gauge", "source", "deliveries of a source that are not settled"),
    (SOURCE_CONNECTED, "gauge", "source", "whether a source is connected: 1 or 0"),
    (WAIT_SECONDS, "histogram", "handler", "seconds from a message's arrival to its commit"),
    (HANDLE_SECONDS, "histogram", "handler", "seconds per handler run"),
    (BATCH_SIZE, "histogram", "handler", "messages per shared transaction"),
];

/// The maximum number of kinds with a label of their own; later kinds share one.
///
/// A recorder keeps every label until the process ends, and senders may choose the kinds: without a limit they could fill the
/// memory.
const KINDS_MAX: usize = 1_000;
const OTHER_KINDS: &str = "(other)";

// One for the process, as the metrics recorder is: several inboxes share its memory.
static KINDS: MetricKinds = MetricKinds(RwLock::new(BTreeSet::new()));

/// The kinds with a label of their own.
struct MetricKinds(RwLock<BTreeSet<String>>);

impl MetricKinds {
    fn label<'a>(&self, kind: &'a str) -> &'a str {
        // The block ends the read lock, before `reserve` takes the write lock.
        {
            let kinds = self.0.read().unwrap_or_else(PoisonError::into_inner);
            if kinds.contains(kind) {
                return kind;
            }
            if kinds.len() >= KINDS_MAX {
                return OTHER_KINDS;
            }
        }
        // Several threads may get here at once and exceed the limit by a few labels, which is harmless.
        self.reserve(kind);
        kind
    }

    fn reserve(&self, kind: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(kind.to_owned());
    }
}

/// Records metrics through the `metrics` facade, if enabled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observer {
    pub(crate) enabled: bool,
}

impl Observer {
    /// Reserves labels for the kinds of registered handlers, whatever kinds senders use.
    // These ignore the limit: the program chooses them, not its senders, so their number is bounded.
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

    pub(crate) fn published(self, messages: &[Captured]) {
        if self.enabled {
            for message in messages {
                metrics::counter!(PUBLISHED, "kind" => KINDS.label(&message.kind).to_owned()).increment(1);
            }
        }
    }

    pub(crate) fn moved(self, messages: u64) {
        if self.enabled {
            metrics::counter!(MOVED).increment(messages);
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
            // Set to 0 without a backlog: a gauge keeps its last value until the next one.
            let seconds = oldest.unwrap_or_default().as_secs_f64();
            metrics::gauge!(LAG_SECONDS, "handler" => handler.to_owned()).set(seconds);
        }
    }

    pub(crate) fn count_source(self, name: &'static str, source: &str, deliveries: u64) {
        if self.enabled {
            metrics::counter!(name, "source" => source.to_owned()).increment(deliveries);
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "a gauge")]
    pub(crate) fn gauge_source(self, name: &'static str, source: &str, value: usize) {
        if self.enabled {
            metrics::gauge!(name, "source" => source.to_owned()).set(value as f64);
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
    fn senders_cannot_create_an_unlimited_number_of_labels() {
        let kinds = MetricKinds(RwLock::new(BTreeSet::new()));
        for n in 0..KINDS_MAX {
            let kind = format!("kind-{n}");
            assert_eq!(kinds.label(&kind), kind);
        }
        assert_eq!(kinds.label("one more"), OTHER_KINDS);
        assert_eq!(kinds.label("kind-7"), "kind-7", "a kind with a label keeps it");
        assert_eq!(kinds.0.read().unwrap().len(), KINDS_MAX);
        kinds.reserve("a handler's");
        assert_eq!(kinds.label("a handler's"), "a handler's");
    }
}
