//! What arrives, and how much at once.

use std::time::{Duration, SystemTime};

use oncebox_core::source::{ReceivedMessage, Room, Session};
use oncebox_core::{Headers, Key};

use super::consumer::{Consumer, PLENTY, messages, sorted};
use super::{BrokerFixture, abilities, numbered, until};

/// More than one batch of a usual client.
pub async fn messages_arrive_complete_and_in_order<F: BrokerFixture>(fixture: F) {
    fixture.publish((0..300).map(numbered).collect()).await;
    let mut consumer = Consumer::open(&fixture).await;
    assert_eq!(consumer.hold(300).await, (0..300).collect::<Vec<_>>());
    consumer.ack(&(0..300).collect::<Vec<_>>()).await;
    until(&fixture, "the queue is empty", async || fixture.backlog().await == 0).await;
}

/// `next` waits for it.
pub async fn a_message_that_is_published_later_arrives<F: BrokerFixture>(fixture: F) {
    let mut consumer = Consumer::open(&fixture).await;
    {
        let next = consumer.session.next(PLENTY);
        tokio::pin!(next);
        tokio::select! {
            biased;
            received = &mut next => panic!("the queue is empty: {}", received.is_ok()),
            () = tokio::task::yield_now() => (),
        }
        fixture.publish(vec![numbered(1)]).await;
        let received = tokio::time::timeout(super::LIMIT, next).await.expect("it arrives").unwrap();
        assert_eq!(received.len(), 1);
    }
    fixture.publish(vec![numbered(2)]).await;
    assert_eq!(consumer.receive(PLENTY).await, [2]);
}

/// Every field, every byte, and nothing but them.
pub async fn a_message_arrives_unchanged<F: BrokerFixture>(fixture: F) {
    let headers: Headers =
        [("x-tenant", "a"), ("traceparent", "00-1-2-01"), ("x-text", "héllo wörld")].into_iter().collect();
    let mut full = ReceivedMessage::new((0..=255).collect::<Vec<u8>>());
    full.headers = headers.into();
    full.kind = Some("order.paid".to_owned());
    full.message_id = Some("8f14e45f".to_owned());
    full.order_by = Some(Key::from("customer-7"));
    full.occurred_at = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let bare = ReceivedMessage::new("");
    fixture.publish(vec![full.clone(), bare.clone()]).await;
    let mut consumer = Consumer::open(&fixture).await;
    let mut received = Vec::new();
    while received.len() < 2 {
        received.extend(consumer.session.next(PLENTY).await.unwrap());
    }
    for (received, published) in received.iter().zip([full, bare]) {
        let expected = fixture.as_delivered(published);
        let message = &received.message;
        assert_eq!(message.body, expected.body);
        assert_eq!(message.kind, expected.kind);
        assert_eq!(message.message_id, expected.message_id);
        assert_eq!(message.order_by, expected.order_by);
        assert_eq!(message.occurred_at, expected.occurred_at);
        let sorted = |headers: &Headers| {
            let mut all: Vec<_> = headers.iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
            all.sort();
            all
        };
        assert_eq!(sorted(&message.headers.headers), sorted(&expected.headers.headers));
        assert_eq!(message.headers.unreadable, expected.headers.unreadable);
        assert_eq!((message.attempt.unwrap_or(1), message.abandoned), (1, 0));
    }
}

/// The others arrive with the next calls.
pub async fn next_returns_no_more_messages_than_there_is_room_for<F: BrokerFixture>(fixture: F) {
    fixture.publish((0..10).map(numbered).collect()).await;
    let mut consumer = Consumer::open(&fixture).await;
    while consumer.held.len() < 10 {
        let received = consumer.receive(messages(3)).await;
        assert!(received.len() <= 3, "{received:?}");
    }
    assert_eq!(consumer.numbers(), (0..10).collect::<Vec<_>>());
}

/// Bodies count, whatever else belongs to a message.
pub async fn next_returns_no_more_bytes_than_there_is_room_for<F: BrokerFixture>(fixture: F) {
    fixture.publish((0..10).map(|n| sized(n, 100)).collect()).await;
    let mut consumer = Consumer::open(&fixture).await;
    while consumer.held.len() < 10 {
        let received = consumer.receive(Room { messages: 10, bytes: 250 }).await;
        assert!(received.len() <= 2, "{received:?}");
    }
    assert_eq!(consumer.numbers(), (0..10).collect::<Vec<_>>());
}

/// Otherwise it would never arrive.
pub async fn a_body_larger_than_the_room_arrives_alone<F: BrokerFixture>(fixture: F) {
    fixture.publish(vec![sized(0, 1), sized(1, 5000), sized(2, 1)]).await;
    let room = Room { messages: 10, bytes: 1000 };
    let mut consumer = Consumer::with_prefetch(&fixture, Room { messages: 10, bytes: 10_000 }).await;
    assert_eq!(consumer.receive(room).await, [0]);
    assert_eq!(consumer.receive(room).await, [1]);
    assert_eq!(consumer.receive(room).await, [2]);
}

/// A slow consumer leaves the others to a second one.
pub async fn no_more_than_the_prefetch_is_sent_ahead<F: BrokerFixture>(fixture: F) {
    if abilities::<F>().settles_positions {
        return;
    }
    let mut slow = Consumer::with_prefetch(&fixture, messages(5)).await;
    fixture.publish((0..20).map(numbered).collect()).await;
    slow.receive(messages(1)).await;
    let mut second = Consumer::open(&fixture).await;
    second.hold(15).await;
    assert_eq!(fixture.backlog().await, 20);
}

/// Each message goes to one of them.
pub async fn consumers_of_one_queue_share_its_messages<F: BrokerFixture>(fixture: F) {
    if abilities::<F>().settles_positions {
        return;
    }
    let mut one = Consumer::with_prefetch(&fixture, messages(10)).await;
    let mut other = Consumer::with_prefetch(&fixture, messages(10)).await;
    fixture.publish((0..20).map(numbered).collect()).await;
    let mut all = one.hold(10).await;
    all.extend(other.hold(10).await);
    assert_eq!(sorted(all), (0..20).collect::<Vec<_>>());
}

/// A message with a body of this size, which begins with its number.
fn sized(n: u32, bytes: usize) -> ReceivedMessage {
    ReceivedMessage::new(format!("{n:<bytes$}"))
}
