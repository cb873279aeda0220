//! What comes back after a session has ended.

use oncebox_core::source::Session;

use super::consumer::{Consumer, PLENTY, messages, sorted};
use super::{BrokerFixture, LIMIT, abilities, numbered};

/// As after a crash.
pub async fn unsettled_messages_come_back_when_the_session_is_dropped<F: BrokerFixture>(fixture: F) {
    fixture.publish((0..10).map(numbered).collect()).await;
    let mut consumer = Consumer::open(&fixture).await;
    consumer.hold(4).await;
    drop(consumer);
    let mut consumer = Consumer::open(&fixture).await;
    assert_eq!(sorted(consumer.drain().await), (0..10).collect::<Vec<_>>());
}

/// As after a lost connection.
pub async fn unsettled_messages_come_back_when_the_broker_ends_the_session<F: BrokerFixture>(fixture: F) {
    fixture.publish((0..10).map(numbered).collect()).await;
    let mut consumer = Consumer::open(&fixture).await;
    consumer.hold(10).await;
    fixture.end_sessions().await;
    let ended = tokio::time::timeout(LIMIT, consumer.session.next(PLENTY)).await;
    assert!(ended.expect("next returns").is_err(), "an ended session delivers nothing");
    drop(consumer);
    let mut consumer = Consumer::open(&fixture).await;
    assert_eq!(sorted(consumer.drain().await), (0..10).collect::<Vec<_>>());
}

/// Whether their session was dropped or ended by the broker.
pub async fn settled_messages_do_not_come_back<F: BrokerFixture>(fixture: F) {
    fixture.publish((0..12).map(numbered).collect()).await;
    let mut consumer = Consumer::open(&fixture).await;
    consumer.hold(12).await;
    consumer.ack(&[0, 1, 2, 3]).await;
    drop(consumer);
    let mut consumer = Consumer::open(&fixture).await;
    let mut came_back = consumer.receive_and_ack(4).await;
    fixture.end_sessions().await;
    drop(consumer);
    let mut consumer = Consumer::open(&fixture).await;
    came_back.extend(consumer.drain().await);
    assert_eq!(sorted(came_back), (4..12).collect::<Vec<_>>());
}

/// So that a message that crashes its process can be found.
pub async fn deliveries_without_a_settlement_are_counted<F: BrokerFixture>(fixture: F) {
    if !abilities::<F>().counts_deliveries {
        return;
    }
    fixture.publish(vec![numbered(1)]).await;
    for earlier in 0..4 {
        let mut consumer = Consumer::open(&fixture).await;
        consumer.hold(1).await;
        let message = consumer.take(1).message;
        assert_eq!((message.attempt, message.abandoned), (Some(earlier + 1), earlier));
    }
}

/// Another consumer gets it.
pub async fn a_closed_session_returns_what_was_sent_ahead<F: BrokerFixture>(fixture: F) {
    fixture.publish((0..10).map(numbered).collect()).await;
    let mut consumer = Consumer::open(&fixture).await;
    assert_eq!(consumer.receive(messages(1)).await, [0]);
    consumer.ack(&[0]).await;
    tokio::time::timeout(LIMIT, consumer.session.close()).await.expect("close returns");
    let mut second = Consumer::open(&fixture).await;
    // No time passes here: a deadline does not bring them back.
    let received = tokio::time::timeout(LIMIT, second.session.next(PLENTY)).await.expect("next returns");
    second.held.extend(received.unwrap());
    assert_eq!(sorted(second.hold_all().await), (1..10).collect::<Vec<_>>());
}
