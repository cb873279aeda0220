//! Vulthil: marker and writes in one transaction, keys and their absence, metrics, transient faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use oncebox::{BoxError, Envelope, Inbox, Key, MissingKey, Outcome, Rejection, Settlement};
use oncebox_testing::Fixture;

use crate::every_store::{Conn, OrderPaid, envelope, on_every_store};

on_every_store!(
    the_marker_commits_with_the_consumer_s_writes,
    a_throwing_consumer_rolls_both_back,
    the_default_key_is_the_message_id,
    message_ids_of_two_sources_do_not_collide,
    a_key_selector_recognises_a_republished_message,
    a_selector_of_the_handler_wins_over_the_inbox_s,
    a_message_without_key_is_rejected,
    a_message_without_key_runs_if_so_wished,
    a_transient_fault_runs_the_unit_again,
    the_retry_count_is_the_transport_s_own_business,
);

/// A handler of envelopes has no key but what the envelope or the source says.
async fn raw<F: Fixture>(fixture: &F, missing_key: MissingKey) -> Inbox<F::Store> {
    let effects = fixture.clone();
    Inbox::builder(fixture.store())
        .missing_key(missing_key)
        .on_raw("h", ["k"], async move |_: Envelope, conn: &mut Conn<F>| effects.effect(conn, "ran").await)
        .build()
        .await
        .unwrap()
}

async fn the_marker_commits_with_the_consumer_s_writes<F: Fixture>(fixture: F) {
    let (inside, outside) = (fixture.clone(), fixture.clone());
    let handler = async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), BoxError> {
        inside.effect(conn, &order.order_id).await?;
        // No other transaction sees anything before the commit.
        if outside.effects(&order.order_id).await != 0 {
            return Err("the effect is visible before the commit".into());
        }
        Ok(())
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    let report = inbox.process(envelope("a")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{report:?}");
    assert_eq!(fixture.effects("a").await, 1);
    assert_eq!(inbox.markers("a").await.unwrap().len(), 1);
}

async fn a_throwing_consumer_rolls_both_back<F: Fixture>(fixture: F) {
    let effects = fixture.clone();
    let handler = async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), BoxError> {
        effects.effect(conn, &order.order_id).await?;
        Err("thrown".into())
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    for _ in 0..3 {
        let report = inbox.process(envelope("a")).await.unwrap();
        assert!(matches!(report.outcome("h"), Some(Outcome::Retry { .. })), "{report:?}");
        assert_eq!(fixture.effects("a").await, 0);
        assert!(inbox.markers("a").await.unwrap().is_empty());
    }
}

async fn the_default_key_is_the_message_id<F: Fixture>(fixture: F) {
    let inbox = raw(&fixture, MissingKey::Reject).await;
    for id in ["m-1", "m-1", "m-2"] {
        inbox.process(Envelope::new("k", "same").delivered_by("rabbit", id)).await.unwrap();
    }
    assert_eq!(fixture.effects("ran").await, 2);
}

async fn message_ids_of_two_sources_do_not_collide<F: Fixture>(fixture: F) {
    let inbox = raw(&fixture, MissingKey::Reject).await;
    for source in ["orders", "invoices", "orders"] {
        inbox.process(Envelope::new("k", "same").delivered_by(source, "1")).await.unwrap();
    }
    assert_eq!(fixture.effects("ran").await, 2);
}

/// A republished message has a new message id and the same order id.
async fn a_key_selector_recognises_a_republished_message<F: Fixture>(fixture: F) {
    let effects = fixture.clone();
    let inbox = Inbox::builder(fixture.store())
        .key_for(|order: &OrderPaid, headers| {
            Some(Key::from(format!("{}/{}", headers.get("tenant")?, order.order_id)))
        })
        .on("h", async move |_: OrderPaid, conn: &mut Conn<F>| effects.effect(conn, "ran").await)
        .build()
        .await
        .unwrap();
    for (tenant, message_id) in [("acme", "m-1"), ("acme", "m-2"), ("other", "m-3")] {
        let envelope = envelope("o-1").with_header("tenant", tenant).delivered_by("rabbit", message_id);
        inbox.process(envelope).await.unwrap();
    }
    assert_eq!(fixture.effects("ran").await, 2);
    assert_eq!(inbox.markers("acme/o-1").await.unwrap().len(), 1);
    // A selector that has nothing to say leaves it to the next in line: here the message's own key.
    inbox.process(envelope("o-1")).await.unwrap();
    assert_eq!(inbox.markers("o-1").await.unwrap().len(), 1);
}

async fn a_selector_of_the_handler_wins_over_the_inbox_s<F: Fixture>(fixture: F) {
    let handler = async |_: OrderPaid, _: &mut Conn<F>| {};
    let inbox = Inbox::builder(fixture.store())
        .on_with("own", handler, |options| options.key(|order: &OrderPaid, _| Some(Key::from(order.cents))))
        .on("common", handler)
        .key_for(|_: &OrderPaid, _| Some(Key::from("common")))
        .build()
        .await
        .unwrap();
    inbox.process(envelope("o-1").with_key("envelope")).await.unwrap();
    assert!(inbox.marker("own", "order.paid", "100").await.unwrap().is_some());
    assert!(inbox.marker("common", "order.paid", "common").await.unwrap().is_some());
}

async fn a_message_without_key_is_rejected<F: Fixture>(fixture: F) {
    let inbox = raw(&fixture, MissingKey::Reject).await;
    let report = inbox.process(Envelope::new("k", "")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Rejected(Rejection::MissingKey))), "{report:?}");
    assert_eq!(report.settlement(), Settlement::Reject);
    assert_eq!(fixture.effects("ran").await, 0);
}

async fn a_message_without_key_runs_if_so_wished<F: Fixture>(fixture: F) {
    let inbox = raw(&fixture, MissingKey::RunWithoutDedup).await;
    for _ in 0..2 {
        let report = inbox.process(Envelope::new("k", "")).await.unwrap();
        assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{report:?}");
    }
    assert_eq!(fixture.effects("ran").await, 2);
    // One with a key is deduplicated all the same.
    for expected in ["done", "duplicate"] {
        let report = inbox.process(Envelope::new("k", "").with_key("a")).await.unwrap();
        assert_eq!(report.outcome("h").map(Outcome::name), Some(expected));
    }
}

async fn a_transient_fault_runs_the_unit_again<F: Fixture>(fixture: F) {
    let tries = Arc::new(AtomicU32::new(0));
    let (effects, counted) = (fixture.clone(), tries.clone());
    let handler = async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), BoxError> {
        effects.effect(conn, &order.order_id).await?;
        if counted.fetch_add(1, Ordering::SeqCst) < 3 {
            return Err(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()).into());
        }
        Ok(())
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    let report = inbox.process(envelope("a")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{report:?}");
    assert_eq!(tries.load(Ordering::SeqCst), 4);
    assert_eq!(fixture.effects("a").await, 1, "the tries before were rolled back");
}

/// No limit of attempts here: the source decides when to give up.
async fn the_retry_count_is_the_transport_s_own_business<F: Fixture>(fixture: F) {
    let handler = async |_: OrderPaid, _: &mut Conn<F>| Err::<(), _>("always");
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    for attempt in 1..=50 {
        let report = inbox.process(envelope("poison").with_attempt(attempt)).await.unwrap();
        assert_eq!(report.settlement(), Settlement::Retry { after: None });
    }
}

/// The recorder is the thread's, and this test stays on one thread.
#[tokio::test]
async fn processed_duplicate_and_missing_key_are_counted() {
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    let sqlite = crate::sqlite::in_memory("metrics").await.unwrap();
    let inbox = raw(&sqlite, MissingKey::Reject).await;
    for key in ["a", "b", "a", "a", ""] {
        inbox.process(Envelope::new("k", "").with_key(key)).await.unwrap();
    }
    let counters =
        snapshotter.snapshot().into_vec().into_iter().filter_map(|(key, _, _, value)| match value {
            metrics_util::debugging::DebugValue::Counter(count) => Some((key.key().name().to_owned(), count)),
            _ => None,
        });
    let counters: std::collections::HashMap<String, u64> = counters.collect();
    for (name, count) in
        [("oncebox_processed_total", 2), ("oncebox_duplicates_total", 2), ("oncebox_missing_key_total", 1)]
    {
        assert_eq!(counters.get(name), Some(&count), "{name}");
    }
}
