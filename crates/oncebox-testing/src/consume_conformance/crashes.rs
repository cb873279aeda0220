//! Deliveries that end without a settlement: of lost connections, and of crashed processes.

use std::time::Duration;

use super::setup::{Setup, Stop, ids};
use crate::source_conformance::abilities;
use crate::{BrokerFixture, Fixture};

/// Whatever the source counts: no process has crashed.
pub async fn lost_sessions_reject_nothing<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::new(broker, store).await;
    setup.stop_at(Some(Stop::Handler));
    let consumer = setup.consume_with(|consumer| consumer.prefetch(20));
    setup.publish(ids(10)).await;
    for lost in 1..=8 {
        // Delivered again, as far as there is room.
        setup.until("messages arrive", async || consumer.status().received >= lost).await;
        setup.broker.end_sessions().await;
        setup.until("it connects again", async || consumer.status().sessions > lost).await;
    }
    setup.stop_at(None);
    setup.until_empty().await;
    let report = consumer.end().await;
    assert_eq!(report.rejected, 0, "{report:?}");
    setup.assert_effects(ids(10)).await;
}

/// Others were in flight with it at each crash.
pub async fn only_the_message_that_crashes_its_process_is_rejected<B: BrokerFixture, F: Fixture>(
    broker: B,
    store: F,
) {
    if !abilities::<B>().counts_deliveries {
        return;
    }
    let setup = Setup::new(broker, store).await;
    setup.hang("0007");
    setup.publish(ids(20)).await;
    let crashes = async || setup.runs().iter().filter(|id| *id == "0007").count();
    for _ in 0..40 {
        let consumer = setup.consume();
        let before = crashes().await;
        setup
            .until("it crashes, or nothing is left", async || {
                crashes().await > before || setup.broker.backlog().await == 0
            })
            .await;
        if setup.broker.backlog().await == 0 {
            let report = consumer.end().await;
            assert_eq!(report.rejected, 1, "{report:?}");
            setup.assert_effects(ids(20).filter(|id| id != "0007")).await;
            assert_eq!(setup.store.effects("0007").await, 0);
            return;
        }
        consumer.drop_it().await;
        if !setup.store.capabilities().transactional {
            setup.store.travel(Duration::from_secs(3600));
        }
    }
    panic!("message 0007 crashes process after process");
}
