//! Sources that settle positions.

use oncebox_core::Settlement;

use super::consumer::{Consumer, sorted};
use super::{BrokerFixture, abilities, numbered, until};

/// Messages 1 and 2 are not lost when 3 was settled first.
pub async fn a_position_counts_when_all_earlier_ones_are_settled<F: BrokerFixture>(fixture: F) {
    if !abilities::<F>().settles_positions {
        return;
    }
    fixture.publish((0..8).map(numbered).collect()).await;
    let mut consumer = Consumer::open(&fixture).await;
    consumer.hold(8).await;
    consumer.ack(&[0]).await;
    consumer.ack(&[3]).await;
    consumer.ack(&[5, 4, 2]).await;
    drop(consumer);
    let mut consumer = Consumer::open(&fixture).await;
    let again = consumer.hold_all().await;
    for unsettled in [1, 6, 7] {
        assert!(again.contains(&unsettled), "message {unsettled} was lost: {again:?}");
    }
    assert!(!again.contains(&0), "{again:?}");
    consumer.drain().await;
}

/// When the last gap is filled, everything is settled. A rejected message is no gap.
pub async fn positions_are_settled_in_any_order<F: BrokerFixture>(fixture: F) {
    if !abilities::<F>().settles_positions {
        return;
    }
    fixture.publish((0..6).map(numbered).collect()).await;
    let mut consumer = Consumer::open(&fixture).await;
    consumer.hold(6).await;
    consumer.ack(&[3, 1]).await;
    consumer.settle(2, Settlement::Reject).await;
    consumer.ack(&[0]).await;
    until(&fixture, "4 and 5 are left", async || fixture.backlog().await == 2).await;
    drop(consumer);
    assert_eq!(sorted(Consumer::open(&fixture).await.drain().await), [4, 5]);
}
