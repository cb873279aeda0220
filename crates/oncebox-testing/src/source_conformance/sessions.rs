//! How sessions end, and how new ones begin.

use oncebox_core::source::{Session, Source};

use super::consumer::{Consumer, PLENTY};
use super::{BrokerFixture, LIMIT, numbered, until};

/// Also a `next` that waits.
pub async fn an_ended_session_returns_errors_and_open_works_again<F: BrokerFixture>(fixture: F) {
    let mut source = fixture.source();
    for _ in 0..3 {
        let mut session = source.open(PLENTY).await.unwrap().session;
        let ended = async {
            tokio::task::yield_now().await;
            fixture.end_sessions().await;
        };
        let both = async { tokio::join!(session.next(PLENTY), ended) };
        let (next, ()) = tokio::time::timeout(LIMIT, both).await.expect("next returns");
        assert!(next.is_err(), "an ended session delivers nothing");
        let again = tokio::time::timeout(LIMIT, session.next(PLENTY)).await.expect("next returns");
        assert!(again.is_err(), "it stays ended");
    }
    drop(source);
    fixture.publish((0..3).map(numbered).collect()).await;
    assert_eq!(Consumer::open(&fixture).await.drain().await, [0, 1, 2]);
}

/// A consumer notices it, and works again later.
pub async fn a_deleted_queue_is_an_error_until_it_is_created_again<F: BrokerFixture>(fixture: F) {
    fixture.publish(vec![numbered(0)]).await;
    let mut consumer = Consumer::open(&fixture).await;
    consumer.hold(1).await;
    if !fixture.delete_queue().await {
        return;
    }
    let next = tokio::time::timeout(LIMIT, consumer.session.next(PLENTY)).await.expect("next returns");
    assert!(next.is_err(), "the queue is deleted");
    drop(consumer);
    let mut source = fixture.source();
    let Err(error) = source.open(PLENTY).await else { panic!("the queue is deleted") };
    assert!(!error.to_string().is_empty());
    fixture.create_queue().await;
    fixture.publish(vec![numbered(1)]).await;
    drop(source.open(PLENTY).await.unwrap());
    assert_eq!(Consumer::open(&fixture).await.drain().await, [1]);
}

/// Its messages are still there.
pub async fn a_stopped_broker_is_an_error_until_it_starts_again<F: BrokerFixture>(fixture: F) {
    fixture.publish(vec![numbered(0), numbered(1)]).await;
    let mut consumer = Consumer::open(&fixture).await;
    consumer.hold(2).await;
    consumer.ack(&[0]).await;
    if !fixture.stop().await {
        return;
    }
    let next = tokio::time::timeout(LIMIT, consumer.session.next(PLENTY)).await.expect("next returns");
    assert!(next.is_err(), "the broker is stopped");
    drop(consumer);
    let mut source = fixture.source();
    let opened = tokio::time::timeout(LIMIT, source.open(PLENTY)).await.expect("open returns");
    assert!(opened.is_err(), "the broker is stopped");
    fixture.start().await;
    until(&fixture, "the broker accepts connections", async || fixture.source().open(PLENTY).await.is_ok())
        .await;
    assert_eq!(Consumer::open(&fixture).await.drain().await, [1]);
}
