//! Deliveries with a deadline.

use oncebox_core::Settlement;
use oncebox_core::source::{Session, Settler};

use super::consumer::{Consumer, PLENTY, assert_done, assert_stale, settle};
use super::{BrokerFixture, abilities, numbered};

/// As long as it is extended.
pub async fn an_extended_delivery_does_not_come_back<F: BrokerFixture>(fixture: F) {
    if !abilities::<F>().extends_deadlines {
        return;
    }
    let mut consumer = Consumer::open(&fixture).await;
    let Some(every) = consumer.session.extend_every() else { return };
    let mut second = Consumer::open(&fixture).await;
    fixture.publish(vec![numbered(1)]).await;
    let (mut holder, other) = tokio::select! {
        _ = consumer.receive(PLENTY) => (consumer, &mut second),
        _ = second.receive(PLENTY) => (second, &mut consumer),
    };
    for _ in 0..10 {
        let again = other.receive_within(PLENTY, every).await;
        assert_eq!(again, None, "it came back while it was extended");
        let held: Vec<_> = holder.held.iter().map(|received| &received.receipt).collect();
        holder.settler().extend(&held).await.unwrap();
    }
    holder.ack(&[1]).await;
}

/// And its receipt settles nothing any more.
pub async fn an_expired_delivery_comes_back<F: BrokerFixture>(fixture: F) {
    if !abilities::<F>().extends_deadlines {
        return;
    }
    let mut consumer = Consumer::open(&fixture).await;
    if consumer.session.extend_every().is_none() {
        return;
    }
    fixture.publish(vec![numbered(1)]).await;
    consumer.hold(1).await;
    let late = consumer.take(1).receipt;
    consumer.hold(1).await;
    let again = consumer.take(1);
    assert!(again.message.attempt.is_none_or(|attempt| attempt == 2), "{:?}", again.message.attempt);
    if !abilities::<F>().receipts_outlive_sessions {
        assert_stale(&settle(&consumer.settler(), vec![late], Settlement::Ack).await, 1);
    }
    assert_done(&settle(&consumer.settler(), vec![again.receipt], Settlement::Ack).await, 1);
}
