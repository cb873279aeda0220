//! What can be seen from outside.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use oncebox::lease::Lease;
use oncebox::observe::METRICS;
use oncebox::{BoxError, Envelope, Inbox, MemoryStore};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::every_store::{OrderPaid, envelope};

/// What was counted, by metric and label.
fn counted(snapshotter: &Snapshotter) -> HashMap<(String, String), u64> {
    snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .map(|(key, _, _, value)| {
            let (_, key) = key.into_parts();
            let label = key.labels().next().map(|label| label.value().to_owned()).unwrap_or_default();
            let count = match value {
                DebugValue::Counter(count) => count,
                DebugValue::Histogram(values) => values.len() as u64,
                DebugValue::Gauge(_) => 0,
            };
            ((key.name().to_owned(), label), count)
        })
        .collect()
}

/// One of each: done, duplicate, key reuse, missing key, failed, rejected, unhandled.
async fn deliver_one_of_each(inbox: &Inbox<MemoryStore>) {
    for envelope in [
        envelope("a"),
        envelope("a"),
        Envelope::new("order.paid", r#"{"order_id": "a", "cents": 1}"#),
        envelope(""),
        envelope("fails"),
        Envelope::new("order.paid", "nonsense").with_key("x"),
        Envelope::new("unheard.of", ""),
    ] {
        inbox.process(envelope).await.unwrap();
    }
}

async fn inbox(metrics: bool) -> Inbox<MemoryStore> {
    Inbox::builder(MemoryStore::in_memory())
        .metrics(metrics)
        .on("ledger", async |order: OrderPaid, _: &mut Lease| -> Result<(), BoxError> {
            if order.order_id == "fails" { Err("on purpose".into()) } else { Ok(()) }
        })
        .build()
        .await
        .unwrap()
}

/// The recorder is the thread's, and these tests stay on one thread.
#[tokio::test]
async fn every_outcome_is_counted_under_its_handler() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    deliver_one_of_each(&inbox(true).await).await;
    let counted = counted(&snapshotter);
    let count =
        |name: &str, label: &str| counted.get(&(name.to_owned(), label.to_owned())).copied().unwrap_or(0);
    assert_eq!(count("oncebox_processed_total", "ledger"), 1);
    assert_eq!(count("oncebox_duplicates_total", "ledger"), 1);
    assert_eq!(count("oncebox_key_reuse_total", "ledger"), 1);
    assert_eq!(count("oncebox_missing_key_total", "ledger"), 1);
    assert_eq!(count("oncebox_failed_total", "ledger"), 1);
    // The message without key, and the one that cannot be decoded.
    assert_eq!(count("oncebox_rejected_total", "ledger"), 2);
    assert_eq!(count("oncebox_unhandled_total", "unheard.of"), 1);
    assert_eq!(count("oncebox_wait_seconds", "ledger"), 1);
    assert_eq!(count("oncebox_handle_seconds", "ledger"), 2);
}

#[tokio::test]
async fn metrics_can_be_switched_off() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    deliver_one_of_each(&inbox(false).await).await;
    assert!(counted(&snapshotter).is_empty());
}

#[test]
fn the_documented_table_is_the_code_s() {
    let page = include_str!("../../../docs/metrics.md");
    let rows: Vec<Vec<String>> = page
        .lines()
        .filter(|line| line.starts_with("| `oncebox_"))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect())
        .collect();
    let expected: Vec<Vec<String>> = METRICS
        .iter()
        .map(|(name, kind, label, meaning)| {
            [name, kind, label, meaning].into_iter().map(|&s| s.to_owned()).collect()
        })
        .collect();
    assert_eq!(rows, expected);
}

/// Collects the fields of spans named `oncebox.unit`.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<(String, String)>>>);

impl Visit for Spans {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push((field.name().to_owned(), format!("{value:?}").replace('"', "")));
    }
}

impl<S: tracing::Subscriber> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &tracing::span::Attributes<'_>, _: &tracing::Id, _: Context<'_, S>) {
        if attributes.metadata().name() == "oncebox.unit" {
            attributes.record(&mut self.clone());
        }
    }

    fn on_record(&self, _: &tracing::Id, values: &tracing::span::Record<'_>, _: Context<'_, S>) {
        values.record(&mut self.clone());
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut self.clone());
    }
}

#[tokio::test]
async fn a_unit_s_span_tells_its_handler_trace_and_outcome_and_no_payload() {
    let spans = Spans::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
    let inbox = inbox(true).await;
    let secret = Envelope::new("order.paid", r#"{"order_id": "fails", "cents": 424242}"#);
    inbox.process(secret.with_header("traceparent", "00-4bf92f-00f067-01")).await.unwrap();
    let seen = spans.0.lock().unwrap();
    for expected in [
        ("handler", "ledger"),
        ("kind", "order.paid"),
        ("traceparent", "00-4bf92f-00f067-01"),
        ("outcome", "retry"),
    ] {
        assert!(seen.iter().any(|(name, value)| (&**name, &**value) == expected), "{expected:?} in {seen:?}");
    }
    assert!(!seen.iter().any(|(_, value)| value.contains("424242")), "a payload was logged: {seen:?}");
}
