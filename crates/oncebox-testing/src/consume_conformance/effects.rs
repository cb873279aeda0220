//! A message takes effect once, whatever becomes of its sessions and its consumer.

use std::time::Duration;

use super::setup::{Setup, Stop, ids};
use crate::faulty::Point;
use crate::{BrokerFixture, Fixture};

/// With more messages than the prefetch.
pub async fn every_message_takes_effect_once<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::new(broker, store).await;
    let consumer = setup.consume_with(|consumer| consumer.prefetch(20));
    setup.publish(ids(300)).await;
    setup.until_empty().await;
    let report = consumer.end().await;
    assert_eq!((report.retried, report.rejected), (0, 0), "{report:?}");
    assert!(report.acknowledged >= 300, "{report:?}");
    setup.assert_effects(ids(300)).await;
}

/// Not before, and not with it.
pub async fn a_message_is_acknowledged_after_its_commit<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::new(broker, store).await;
    setup.watch_backlog();
    let consumer = setup.consume();
    setup.publish(ids(1)).await;
    setup.until_empty().await;
    consumer.end().await;
    let backlogs = setup.backlogs();
    assert!(backlogs.starts_with(&[(Point::BeforeCommit, 1), (Point::AfterCommit, 1)]), "{backlogs:?}");
    setup.assert_effects(ids(1)).await;
}

/// Its second delivery is a duplicate.
pub async fn a_message_whose_session_is_lost_after_its_commit_takes_effect_once<
    B: BrokerFixture,
    F: Fixture,
>(
    broker: B,
    store: F,
) {
    let setup = Setup::new(broker, store).await;
    setup.stop_at(Some(Stop::AfterCommit));
    let consumer = setup.consume();
    setup.publish(ids(3)).await;
    setup.until("a handler runs", async || !setup.runs().is_empty()).await;
    setup.broker.end_sessions().await;
    setup.until("it connects again", async || consumer.status().sessions > 1).await;
    setup.stop_at(None);
    setup.until_empty().await;
    consumer.end().await;
    setup.assert_effects(ids(3)).await;
}

/// Sessions end while messages are in flight.
pub async fn many_lost_sessions_lose_and_double_nothing<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::new(broker, store).await;
    let consumer = setup.consume_with(|consumer| consumer.prefetch(30));
    setup.publish(ids(200)).await;
    for lost in 1..=6 {
        let is_further = async || setup.runs().len() >= 20 * lost || setup.broker.backlog().await == 0;
        setup.until("further messages run", is_further).await;
        setup.broker.end_sessions().await;
    }
    setup.until_empty().await;
    consumer.end().await;
    setup.assert_effects(ids(200)).await;
}

/// Another one continues.
pub async fn a_consumer_that_is_dropped_loses_nothing<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::new(broker, store).await;
    setup.publish(ids(60)).await;
    for dropped in 1..=4 {
        let consumer = setup.consume_with(|consumer| consumer.prefetch(10));
        setup.until("further messages run", async || setup.runs().len() >= 10 * dropped).await;
        consumer.drop_it().await;
        if !setup.store.capabilities().transactional {
            // The claim of an interrupted run ends with its lease.
            setup.store.travel(Duration::from_secs(3600));
        }
    }
    let consumer = setup.consume();
    setup.until_empty().await;
    consumer.end().await;
    setup.assert_effects(ids(60)).await;
}
