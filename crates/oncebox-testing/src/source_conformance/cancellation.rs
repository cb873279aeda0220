//! `next` can be dropped at any await.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use oncebox_core::source::Session;

use super::consumer::{Consumer, PLENTY, messages};
use super::{BrokerFixture, STEP, number, numbered};

/// Polls a future up to `times` times, then drops it.
pub(crate) async fn polled<T>(times: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            polls += 1;
            if polls >= times { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}

/// It is dropped after its first poll, its second one, and so on. Every message arrives once, in order.
pub async fn next_can_be_dropped_at_any_await<F: BrokerFixture>(fixture: F) {
    let mut consumer = Consumer::open(&fixture).await;
    let mut arrived = Vec::new();
    for round in 0..60 {
        fixture.publish(vec![numbered(2 * round), numbered(2 * round + 1)]).await;
        let received = tokio::select! {
            biased;
            received = polled(1 + round % 12, consumer.session.next(messages(3))) => received,
            // Everything has arrived, or is lost.
            () = fixture.pass(STEP) => None,
        };
        for received in received.transpose().unwrap().unwrap_or_default() {
            arrived.push(number(&received.message));
            consumer.held.push(received);
        }
    }
    fixture.publish(vec![numbered(120)]).await;
    // First deliveries arrive in order, so after this one nothing can be missing.
    while arrived.last() != Some(&120) {
        arrived.extend(consumer.receive(PLENTY).await);
    }
    assert_eq!(arrived, (0..=120).collect::<Vec<_>>());
    let all = consumer.numbers();
    consumer.ack(&all).await;
    assert_eq!(consumer.drain().await, [0; 0]);
}
