//! Messages that fail, and messages that no handler can take.

use std::time::Duration;

use oncebox_core::Failure;
use oncebox_core::source::ReceivedMessage;

use super::setup::{Setup, ids, sample};
use crate::source_conformance::abilities;
use crate::{BrokerFixture, Fixture};

/// It fails twice.
pub async fn a_failed_message_runs_again_after_its_delay<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    const DELAY: Duration = Duration::from_millis(300);
    let setup = Setup::planned(broker, store, |_, run| match run {
        1 | 2 => Err(Failure::after(DELAY, "try again")),
        _ => Ok(()),
    });
    let setup = setup.await;
    let consumer = setup.consume();
    setup.publish(ids(1)).await;
    setup.until_empty().await;
    let report = consumer.end().await;
    assert_eq!(report.rejected, 0, "{report:?}");
    let times = setup.run_times();
    assert!(times.len() >= 3, "it fails twice, then it succeeds");
    for pair in times[..3].windows(2) {
        assert!(pair[1] - pair[0] >= DELAY, "it ran again after {:?}", pair[1] - pair[0]);
    }
    setup.assert_effects(ids(1)).await;
}

/// Wherever it waits for its next run.
pub async fn a_failed_message_does_not_stop_others<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::planned(broker, store, |id, _| match id {
        "0000" => Err(Failure::after(Duration::from_secs(3600), "try again")),
        _ => Ok(()),
    });
    let setup = setup.await;
    let consumer = setup.consume_with(|consumer| consumer.drain_timeout(Duration::from_millis(50)));
    setup.publish(ids(5)).await;
    setup.until("the others run", async || ids(5).all(|id| setup.runs().contains(&id))).await;
    // The last one has committed when another one runs.
    setup.publish(ids(6).skip(5)).await;
    setup.until("a later one runs", async || setup.runs().contains(&"0005".to_owned())).await;
    let report = consumer.end().await;
    assert_eq!(report.rejected, 0, "{report:?}");
    assert_eq!(setup.store.effects("0000").await, 0);
    let consumer = setup.consume_with(|consumer| consumer.drain_timeout(Duration::from_millis(50)));
    setup
        .until("the others have taken effect", async || {
            let mut missing = 0;
            for id in ids(6).skip(1) {
                missing += u64::from(setup.store.effects(&id).await == 0);
            }
            missing == 0
        })
        .await;
    consumer.end().await;
    setup.assert_effects(ids(6).skip(1)).await;
}

/// Others run. It is kept where the source can keep it.
pub async fn a_rejected_message_does_not_run_again<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::planned(broker, store, |id, _| match id {
        "0001" => Err(Failure::permanent("no such order")),
        _ => Ok(()),
    });
    let setup = setup.await;
    let consumer = setup.consume();
    // Alone: in a batch it may run twice before its outcome is known.
    setup.publish(ids(2).skip(1)).await;
    setup.until_empty().await;
    setup.publish(ids(3).filter(|id| id != "0001")).await;
    setup.until_empty().await;
    let report = consumer.end().await;
    assert_eq!(report.rejected, 1, "{report:?}");
    assert_eq!(setup.runs().iter().filter(|id| *id == "0001").count(), 1);
    setup.assert_effects(["0000".to_owned(), "0002".to_owned()]).await;
    assert_eq!(setup.store.effects("0001").await, 0);
    if abilities::<B>().keeps_rejected {
        let rejected = setup.broker.rejected().await;
        let bodies: Vec<_> = rejected.into_iter().map(|message| message.body).collect();
        assert_eq!(bodies, [sample("0001", "").body]);
    }
}

/// Of a kind without a handler, or with a body that no rule can read. Others run.
pub async fn a_message_that_cannot_be_handled_is_rejected<B: BrokerFixture, F: Fixture>(broker: B, store: F) {
    let setup = Setup::new(broker, store).await;
    let consumer = setup.consume();
    let unreadable = [r#"{"kind":"unhandled","id":"x"}"#, "{", r#"{"id":7}"#];
    let messages = unreadable.map(ReceivedMessage::new).into_iter().chain([sample("0000", "")]);
    setup.broker.publish(messages.collect()).await;
    setup.until_empty().await;
    let report = consumer.end().await;
    assert_eq!(report.rejected, 3, "{report:?}");
    setup.assert_effects(ids(1)).await;
    if abilities::<B>().keeps_rejected {
        assert_eq!(setup.broker.rejected().await.len(), 3);
    }
}
