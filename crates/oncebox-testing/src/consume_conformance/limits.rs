//! How much is in flight, in which order it runs, and for how long.

use std::collections::HashMap;

use oncebox_core::source::{OpenedSession, Room, Session, Source};

use super::setup::{Setup, Stop, ids, sample};
use crate::source_conformance::{STEP, abilities};
use crate::{BrokerFixture, Fixture};

/// However many wait in the queue.
pub async fn no_more_messages_than_the_prefetch_are_in_flight<B: BrokerFixture, F: Fixture>(
    broker: B,
    store: F,
) {
    let setup = Setup::new(broker, store).await;
    setup.stop_at(Some(Stop::Handler));
    let consumer = setup.consume_with(|consumer| consumer.prefetch(5));
    setup.publish(ids(50)).await;
    setup.until("five messages are in flight", async || consumer.status().in_flight == 5).await;
    for _ in 0..10 {
        setup.broker.pass(STEP).await;
        let status = consumer.status();
        assert_eq!(status.in_flight, 5, "{status:?}");
    }
    setup.stop_at(None);
    setup.until_empty().await;
    consumer.end().await;
    setup.assert_effects(ids(50)).await;
}

/// A body that is larger than all of the prefetch runs alone.
pub async fn no_more_bytes_than_the_prefetch_are_in_flight<B: BrokerFixture, F: Fixture>(
    broker: B,
    store: F,
) {
    let setup = Setup::new(broker, store).await;
    setup.stop_at(Some(Stop::Handler));
    let bytes = sample("0000", "").body.len();
    let consumer = setup.consume_with(|consumer| consumer.prefetch_bytes(3 * bytes + bytes / 2));
    let mut large = sample("0006", "");
    large.body.splice(1..1, vec![b' '; 10 * bytes]);
    let messages = ids(6).map(|id| sample(&id, "")).chain([large]).collect();
    setup.broker.publish(messages).await;
    setup.until("three messages are in flight", async || consumer.status().in_flight == 3).await;
    for _ in 0..10 {
        setup.broker.pass(STEP).await;
        assert!(consumer.status().in_flight <= 3, "{:?}", consumer.status());
    }
    setup.stop_at(None);
    setup.until_empty().await;
    consumer.end().await;
    setup.assert_effects(ids(7)).await;
}

/// Also when sessions are lost. Messages of other keys run meanwhile.
pub async fn messages_of_one_ordering_key_run_in_order<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::new(broker, store).await;
    let consumer = setup.consume_with(|consumer| consumer.prefetch(40));
    let key = |id: &str| format!("customer-{}", id.parse::<u32>().unwrap() % 5);
    setup.broker.publish(ids(150).map(|id| sample(&id, &key(&id))).collect()).await;
    for lost in 1..=2 {
        setup.until("further messages run", async || setup.runs().len() >= 40 * lost).await;
        setup.broker.end_sessions().await;
    }
    setup.until_empty().await;
    consumer.end().await;
    setup.assert_effects(ids(150)).await;
    let mut latest: HashMap<String, String> = HashMap::new();
    let mut seen = Vec::new();
    for id in setup.runs() {
        if seen.contains(&id) {
            continue;
        }
        if let Some(latest) = latest.insert(key(&id), id.clone()) {
            assert!(latest < id, "{id} ran first after {latest}");
        }
        seen.push(id);
    }
}

/// Another consumer does not get it meanwhile.
pub async fn a_delivery_is_extended_while_its_handler_runs<B: BrokerFixture, F: Fixture>(
    broker: B,
    store: F,
) {
    if !abilities::<B>().extends_deadlines {
        return;
    }
    let OpenedSession { session, .. } = broker.source().open(Room { messages: 1, bytes: 1 }).await.unwrap();
    let every = session.extend_every();
    session.close().await;
    let Some(every) = every else { return };
    let setup = Setup::new(broker, store).await;
    setup.stop_at(Some(Stop::Handler));
    let consumer = setup.consume();
    let other = setup.consume();
    setup.publish(ids(3)).await;
    setup.until("handlers run", async || !setup.runs().is_empty()).await;
    let received = || consumer.status().received + other.status().received;
    setup.until("all messages are in flight", async || received() == 3).await;
    for _ in 0..12 {
        setup.broker.pass(every).await;
        assert_eq!(received(), 3, "a delivery expired while its handler ran");
    }
    setup.stop_at(None);
    setup.until_empty().await;
    let mut report = consumer.end().await;
    report += other.end().await;
    assert_eq!((report.received, report.acknowledged), (3, 3), "{report:?}");
    setup.assert_effects(ids(3)).await;
}
