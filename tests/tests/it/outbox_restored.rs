//! A backup of a database with an outbox, restored elsewhere.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oncebox::{Outbox, Verdict};

use crate::every_store::on_every_store;
use crate::outbox_fixture::{
    OutboxFixture, Receiver, RunningOutbox, assert_nothing_parked, is_sent, message, publish, until,
};

on_every_store!(a_restored_database_sends_what_was_not_sent_and_nothing_again);

/// Messages that were sent, that were moved to the log, and that were in the outbox only.
async fn a_restored_database_sends_what_was_not_sent_and_nothing_again<F: OutboxFixture>(fixture: F) {
    let is_up = Arc::new(AtomicBool::new(true));
    let up = is_up.clone();
    let receiver = Receiver::new(move |_, _| match up.load(Ordering::SeqCst) {
        true => Verdict::Confirmed,
        false => Verdict::Unknown("connection refused".into()),
    });
    let outbox = Outbox::builder(fixture.store()).lanes(2).relay(receiver.relay()).build().await.unwrap();
    let named = |name: &str| -> Vec<_> {
        (0..20).map(|n| message(&format!("{name} {n:02}")).with_order_by(format!("{}", n % 3))).collect()
    };
    publish(&fixture, &outbox, named("sent")).await;
    outbox.flush().await.unwrap();
    assert!(is_sent(&outbox).await);
    is_up.store(false, Ordering::SeqCst);
    publish(&fixture, &outbox, named("moved")).await;
    assert_eq!(outbox.flush().await.unwrap(), 20);
    publish(&fixture, &outbox, named("captured")).await;
    is_up.store(true, Ordering::SeqCst);

    let (restored, _elsewhere) = fixture.restored().await;
    let before = receiver.received();
    let outbox = Outbox::builder(restored.store()).relay(receiver.relay()).build().await.unwrap();
    let running = RunningOutbox::start(&outbox);
    // It goes on publishing, also while old messages are sent.
    for name in ["later", "last"] {
        publish(&restored, &outbox, named(name)).await;
    }
    until(async || is_sent(&outbox).await).await;
    assert_eq!(running.stop().await.done, 80);
    let sent: Vec<String> = receiver.copies().split_off(before).into_iter().map(|copy| copy.key).collect();
    let expected = ["moved", "captured", "later", "last"];
    let expected = expected.iter().flat_map(|name| (0..20).map(move |n| format!("{name} {n:02}")));
    assert_eq!(sent.iter().cloned().collect::<HashSet<_>>(), expected.collect());
    assert_eq!(sent.len(), 80, "each is sent once");
    for order_by in 0..3 {
        let is_its = |key: &&String| key.split_once(' ').unwrap().1.parse::<u32>().unwrap() % 3 == order_by;
        let found: Vec<&str> = sent.iter().filter(is_its).map(|key| key.split(' ').next().unwrap()).collect();
        let mut phases = found.clone();
        phases.dedup();
        assert_eq!(phases, ["moved", "captured", "later", "last"]);
    }
    outbox.flush().await.unwrap();
    assert_eq!(receiver.received(), before + 80);
    assert_nothing_parked(&outbox).await;
}
