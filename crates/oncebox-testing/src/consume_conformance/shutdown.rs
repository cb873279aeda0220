//! How a consumer ends.

use std::time::Duration;

use oncebox_core::{ConsumerState, LogStore};

use super::setup::{Setup, Stop, ids};
use crate::{BrokerFixture, Fixture};

/// And takes no further ones.
pub async fn a_shutdown_finishes_messages_in_flight<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::new(broker, store).await;
    setup.stop_at(Some(Stop::Handler));
    let mut consumer = setup.consume_with(|consumer| consumer.prefetch(4));
    setup.publish(ids(10)).await;
    setup.until("four messages are in flight", async || consumer.status().in_flight == 4).await;
    consumer.shut_down();
    setup.until("it drains", async || consumer.status().state == ConsumerState::Draining).await;
    setup.stop_at(None);
    let report = consumer.report().await;
    assert_eq!((report.received, report.acknowledged, report.unsettled), (4, 4, 0), "{report:?}");
    setup.until("six messages are left", async || setup.broker.backlog().await == 6).await;
    let consumer = setup.consume();
    setup.until_empty().await;
    consumer.end().await;
    setup.assert_effects(ids(10)).await;
}

/// It is delivered again to another consumer.
pub async fn a_shutdown_leaves_a_message_that_takes_too_long<B: BrokerFixture, F: Fixture>(
    broker: B,
    store: F,
) {
    let setup = Setup::new(broker, store).await;
    setup.stop_at(Some(Stop::Handler));
    let consumer = setup.consume_with(|consumer| consumer.drain_timeout(Duration::from_millis(50)));
    setup.publish(ids(1)).await;
    setup.until("a handler runs", async || !setup.runs().is_empty()).await;
    let report = consumer.end().await;
    assert_eq!((report.received, report.acknowledged, report.unsettled), (1, 0, 1), "{report:?}");
    assert_eq!(setup.broker.backlog().await, 1);
    if !setup.store.capabilities().transactional {
        setup.store.travel(Duration::from_secs(3600));
    }
    setup.stop_at(None);
    let consumer = setup.consume();
    setup.until_empty().await;
    consumer.end().await;
    setup.assert_effects(ids(1)).await;
}

/// While it tries to connect.
pub async fn a_shutdown_ends_a_consumer_without_a_session<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::new(broker, store).await;
    if !setup.broker.stop().await {
        return;
    }
    let consumer = setup.consume();
    setup.until("it reports an error", async || consumer.status().source_error.is_some()).await;
    let watch = consumer.watch.clone();
    assert_eq!(consumer.end().await.received, 0);
    assert_eq!(watch.status().state, ConsumerState::Closed);
    setup.broker.start().await;
}

/// What was not settled is delivered again.
pub async fn closing_the_inbox_ends_its_consumers<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::new(broker, store).await;
    let consumer = setup.consume();
    setup.publish(ids(2)).await;
    setup.until_empty().await;
    setup.inbox.close().await;
    let report = consumer.report().await;
    assert_eq!(report.unsettled, 0, "{report:?}");
    setup.publish(ids(3).skip(2)).await;
    assert_eq!(setup.broker.backlog().await, 1);
    setup.assert_effects(ids(2)).await;
}

/// Before its handlers have run.
pub async fn a_stored_inbox_acknowledges_what_is_in_its_log<B: BrokerFixture, F: Fixture<Store: LogStore>>(
    broker: B,
    store: F,
) {
    let setup = Setup::with(broker, store, |_, _| Ok(()), |inbox| inbox.stored()).await;
    let consumer = setup.consume();
    setup.publish(ids(20)).await;
    setup.until_empty().await;
    setup.broker.end_sessions().await;
    setup.publish(ids(20)).await;
    setup.until_empty().await;
    assert!(consumer.end().await.acknowledged >= 40, "copies are acknowledged too");
    assert_eq!(setup.runs(), [""; 0]);
    setup.inbox.work_until_idle().await.unwrap();
    setup.assert_effects(ids(20)).await;
}
