//! Outages of the broker and of the store.

use super::setup::{Setup, ids};
use crate::source_conformance::STEP;
use crate::{BrokerFixture, Fixture};

/// After every lost session.
pub async fn a_consumer_connects_again<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::new(broker, store).await;
    let consumer = setup.consume();
    for (id, lost) in ids(4).zip(1..) {
        setup.publish([id]).await;
        setup.until_empty().await;
        setup.broker.end_sessions().await;
        setup.until("it connects again", async || consumer.status().sessions > lost).await;
    }
    setup.until("it is healthy", async || consumer.watch.health().is_ok()).await;
    let report = consumer.end().await;
    assert_eq!((report.retried, report.rejected), (0, 0), "{report:?}");
    setup.assert_effects(ids(4)).await;
}

/// It says so, and begins without help.
pub async fn a_consumer_waits_for_its_broker<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::new(broker, store).await;
    setup.publish(ids(3)).await;
    if !setup.broker.stop().await {
        return;
    }
    let consumer = setup.consume();
    setup.until("it reports an error", async || consumer.status().source_error.is_some()).await;
    assert!(consumer.watch.health().is_err());
    setup.broker.start().await;
    setup.until_empty().await;
    setup.until("it is healthy", async || consumer.watch.health().is_ok()).await;
    consumer.end().await;
    setup.assert_effects(ids(3)).await;
}

/// It was deleted, and is created again.
pub async fn a_consumer_waits_for_its_queue<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::new(broker, store).await;
    let consumer = setup.consume();
    setup.publish(ids(1)).await;
    setup.until_empty().await;
    if !setup.broker.delete_queue().await {
        return;
    }
    setup.until("it reports an error", async || consumer.status().source_error.is_some()).await;
    setup.broker.create_queue().await;
    setup.publish(ids(2).skip(1)).await;
    setup.until("the second message runs", async || setup.runs().len() == 2).await;
    setup.until_empty().await;
    consumer.end().await;
    setup.assert_effects(ids(2)).await;
}

/// Nothing is acknowledged, returned or rejected, and no more is taken.
pub async fn an_outage_of_the_store_settles_nothing<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::new(broker, store).await;
    setup.store_is_away(true);
    let consumer = setup.consume_with(|consumer| consumer.prefetch(10));
    setup.publish(ids(100)).await;
    setup.until("deliveries wait", async || consumer.status().store_error.is_some()).await;
    for _ in 0..20 {
        setup.broker.pass(STEP).await;
        assert_eq!(setup.broker.backlog().await, 100);
        let status = consumer.status();
        assert!(status.in_flight <= 10, "{status:?}");
        assert_eq!((status.acknowledged, status.retried, status.rejected), (0, 0, 0), "{status:?}");
    }
    assert!(consumer.watch.health().is_err());
    setup.store_is_away(false);
    setup.until_empty().await;
    let report = consumer.end().await;
    assert_eq!((report.retried, report.rejected), (0, 0), "{report:?}");
    setup.assert_effects(ids(100)).await;
}
