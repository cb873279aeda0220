//! What settlements do, and what receipts are good for.

use std::time::Duration;

use oncebox_core::Settlement;
use oncebox_core::source::{Decision, Session, Settled, Settler};

use super::consumer::{Consumer, PLENTY, assert_done, assert_stale, messages, settle, sorted};
use super::{BrokerFixture, LIMIT, abilities, number, numbered};

/// A delay that a test can wait for.
const DELAY: Duration = Duration::from_secs(1);

fn retry(after: Option<Duration>) -> Settlement {
    Settlement::Retry { after }
}

/// Every result is that of its decision.
pub async fn many_messages_are_settled_at_once_in_any_order<F: BrokerFixture>(fixture: F) {
    fixture.publish((0..100).map(numbered).collect()).await;
    let mut consumer = Consumer::open(&fixture).await;
    consumer.hold(100).await;
    // 37 and 100 have no common divisor, so that each number occurs once.
    let shuffled: Vec<u32> = (0..100).map(|n| n * 37 % 100).collect();
    consumer.ack(&shuffled).await;
    drop(consumer);
    assert_eq!(Consumer::open(&fixture).await.drain().await, [0; 0]);
}

/// The settler does not wait for the session.
pub async fn a_delivery_is_settled_while_next_waits<F: BrokerFixture>(fixture: F) {
    fixture.publish(vec![numbered(1)]).await;
    let mut consumer = Consumer::open(&fixture).await;
    consumer.hold(1).await;
    let (settler, receipt) = (consumer.settler(), consumer.take(1).receipt);
    let settled = tokio::select! {
        biased;
        received = consumer.session.next(PLENTY) => panic!("the queue is empty: {}", received.is_ok()),
        settled = settle(&settler, vec![receipt], Settlement::Ack) => settled,
    };
    assert_done(&settled, 1);
}

/// Neither its own message nor the one that a later session has received at the same place.
pub async fn a_receipt_of_an_earlier_session_settles_nothing<F: BrokerFixture>(fixture: F) {
    if abilities::<F>().receipts_outlive_sessions {
        return;
    }
    fixture.publish((0..4).map(numbered).collect()).await;
    let mut first = Consumer::open(&fixture).await;
    first.hold(4).await;
    let earlier_settler = first.settler();
    let mut earlier = std::mem::take(&mut first.held).into_iter().map(|received| received.receipt);
    fixture.end_sessions().await;
    drop(first);
    let mut second = Consumer::open(&fixture).await;
    let again = second.receive(messages(1)).await[0];
    let by_earlier = settle(&earlier_settler, earlier.by_ref().take(2).collect(), Settlement::Ack).await;
    assert_stale(&by_earlier, 2);
    let decide = |receipt| Decision { receipt, settlement: Settlement::Ack, reason: None };
    let mixed = vec![earlier.next().unwrap(), second.take(again).receipt];
    let by_second = second.settler().settle(mixed.into_iter().map(decide).collect()).await;
    assert!(matches!(&by_second[..], [Settled::Stale, Settled::Done]), "{by_second:?}");
    drop(second);
    let left: Vec<u32> = (0..4).filter(|n| *n != again).collect();
    assert_eq!(sorted(Consumer::open(&fixture).await.drain().await), left);
}

/// Also while another consumer works.
pub async fn a_receipt_of_an_earlier_session_settles_its_message<F: BrokerFixture>(fixture: F) {
    if !abilities::<F>().receipts_outlive_sessions {
        return;
    }
    fixture.publish(vec![numbered(1), numbered(2)]).await;
    let mut first = Consumer::open(&fixture).await;
    first.hold(2).await;
    let receipt = first.take(1).receipt;
    fixture.end_sessions().await;
    drop(first);
    let mut second = Consumer::open(&fixture).await;
    assert_done(&settle(&second.settler(), vec![receipt], Settlement::Ack).await, 1);
    assert_eq!(second.drain().await, [2]);
}

/// Not before, and not another message.
pub async fn a_retry_comes_back_after_its_delay<F: BrokerFixture>(fixture: F) {
    if !abilities::<F>().delays_retries {
        return;
    }
    fixture.publish((0..3).map(numbered).collect()).await;
    let mut consumer = Consumer::open(&fixture).await;
    consumer.hold(3).await;
    let settled_at = fixture.now();
    consumer.settle(1, retry(Some(DELAY))).await;
    consumer.ack(&[0, 2]).await;
    assert_eq!(consumer.receive(PLENTY).await, [1]);
    let waited = fixture.now() - settled_at;
    assert!(waited >= DELAY, "it came back after {waited:?}");
    consumer.ack(&[1]).await;
    assert_eq!(consumer.drain().await, [0; 0]);
}

/// A broker without delays delivers it again as soon as it can.
pub async fn a_retry_without_a_delay_comes_back<F: BrokerFixture>(fixture: F) {
    if abilities::<F>().settles_positions {
        return;
    }
    fixture.publish(vec![numbered(1), numbered(2)]).await;
    let mut consumer = Consumer::open(&fixture).await;
    consumer.hold(2).await;
    consumer.settle(1, retry(None)).await;
    assert_eq!(consumer.receive(PLENTY).await, [1]);
    if !abilities::<F>().delays_retries {
        consumer.settle(1, retry(Some(DELAY))).await;
        assert_eq!(consumer.receive(PLENTY).await, [1]);
    }
    assert_eq!(sorted(consumer.drain().await), [1, 2]);
}

/// Messages that were published later arrive while it waits.
pub async fn a_retry_does_not_hold_back_other_messages<F: BrokerFixture>(fixture: F) {
    if !abilities::<F>().delays_retries {
        return;
    }
    fixture.publish(vec![numbered(0)]).await;
    let mut consumer = Consumer::open(&fixture).await;
    consumer.hold(1).await;
    consumer.settle(0, retry(Some(DELAY))).await;
    fixture.publish(vec![numbered(1)]).await;
    assert_eq!(sorted(consumer.hold(2).await), [0, 1]);
    assert_eq!(fixture.backlog().await, 2);
}

/// A retry is a delivery like others, and was not abandoned.
pub async fn retries_are_counted<F: BrokerFixture>(fixture: F) {
    if !abilities::<F>().counts_deliveries || abilities::<F>().settles_positions {
        return;
    }
    fixture.publish(vec![numbered(1)]).await;
    let mut consumer = Consumer::open(&fixture).await;
    for attempt in 1..=4 {
        consumer.hold(1).await;
        let message = &consumer.held[0].message;
        assert_eq!((message.attempt, message.abandoned), (Some(attempt), 0));
        consumer.settle(1, retry(None)).await;
    }
}

/// Neither in this session nor in a later one.
pub async fn a_rejected_message_does_not_come_back<F: BrokerFixture>(fixture: F) {
    fixture.publish((0..3).map(numbered).collect()).await;
    let mut consumer = Consumer::open(&fixture).await;
    consumer.hold(3).await;
    consumer.ack(&[0]).await;
    consumer.settle(1, Settlement::Reject).await;
    drop(consumer);
    assert_eq!(Consumer::open(&fixture).await.drain().await, [2]);
}

/// Their body and id are those that were published.
pub async fn rejected_messages_are_kept<F: BrokerFixture>(fixture: F) {
    if !abilities::<F>().keeps_rejected {
        return;
    }
    fixture.publish((0..3).map(numbered).collect()).await;
    let mut consumer = Consumer::open(&fixture).await;
    consumer.hold(3).await;
    consumer.settle(2, Settlement::Reject).await;
    consumer.settle(0, Settlement::Reject).await;
    consumer.ack(&[1]).await;
    let rejected = tokio::time::timeout(LIMIT, fixture.rejected()).await.expect("rejected returns");
    assert_eq!(sorted(rejected.iter().map(number).collect()), [0, 2]);
    let expected = fixture.as_delivered(numbered(2)).message_id;
    let second = rejected.iter().find(|message| number(message) == 2);
    assert_eq!(second.unwrap().message_id, expected);
}
