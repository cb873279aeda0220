//! After a crash, messages that arrive again arrive one by one.

use std::collections::BTreeSet;
use std::time::Duration;

use oncebox_core::Settlement;
use oncebox_core::source::{Session, Settler, Source};
use oncebox_rabbitmq::RabbitSession;
use tokio::time::timeout;

use crate::client::{Broker, LONG, ROOM, body, decision, next, next_many, open, settled};

/// Whatever arrives in a moment. The session must not have to wait for a call to make progress.
async fn arrived(session: &mut RabbitSession) -> Vec<String> {
    let received = timeout(Duration::from_millis(500), session.next(ROOM)).await;
    received.into_iter().flat_map(Result::unwrap).map(|one| body(&one).to_owned()).collect()
}

#[tokio::test]
async fn of_a_single_active_consumer_no_message_overtakes_another() {
    let Some(broker) = Broker::fresh("of_a_single_active_consumer_no_message_overtakes_another").await else {
        return;
    };
    let mut source = broker.source().single_active_consumer();
    let mut active = open(&mut source).await;
    let mut waiting = open(&mut source).await;
    broker.client.publish("orders", "1").await;
    let first = next(&mut active).await;
    broker.client.publish("orders", "2").await;
    // The first message is in flight. The other consumer must not get the second one before it is settled.
    assert_eq!(body(&next(&mut active).await), "2");
    assert_eq!(arrived(&mut waiting).await, [""; 0]);
    settled(&active, first, Settlement::Ack).await;
    // A crash, again and again: messages return in their order.
    broker.client.publish("orders", "3").await;
    assert_eq!(body(&next(&mut active).await), "3");
    for _ in 0..3 {
        drop(active);
        active = waiting;
        waiting = open(&mut source).await;
        let received = next_many(&mut active, 2).await;
        assert_eq!(crate::client::bodies(&received), ["2", "3"]);
    }
    assert_eq!(arrived(&mut waiting).await, [""; 0]);
}

#[tokio::test]
async fn a_message_that_crashes_its_process_counts_against_no_other() {
    let Some(broker) = Broker::fresh("a_message_that_crashes_its_process_counts_against_no_other").await
    else {
        return;
    };
    let mut source = broker.source();
    let mut session = open(&mut source).await;
    for n in 0..50 {
        broker.client.publish("orders", &n.to_string()).await;
    }
    assert_eq!(next_many(&mut session, 50).await.len(), 50);
    // A crash: all of them return.
    drop(session);
    broker.client.until_count("orders", 50).await;
    // Message 0 crashes its process again and again. The queue puts it behind the others.
    let mut others: BTreeSet<String> = (1..50).map(|n| n.to_string()).collect();
    for crash in 1..=5 {
        let mut session = open(&mut source).await;
        loop {
            let received = next(&mut session).await;
            if body(&received) == "0" {
                assert_eq!(received.message.abandoned, crash);
                break;
            }
            assert_eq!(received.message.abandoned, 1, "message {}", body(&received));
            assert!(others.remove(body(&received)), "twice: {}", body(&received));
            settled(&session, received, Settlement::Ack).await;
        }
        let left = others.len() + 1;
        drop(session);
        broker.client.until_count("orders", u32::try_from(left).unwrap()).await;
    }
    assert!(others.is_empty(), "{others:?}");
    let mut session = open(&mut source).await;
    let received = next(&mut session).await;
    settled(&session, received, Settlement::Reject).await;
    broker.client.publish("orders", "fresh").await;
    // The first fresh message ends this: the next ones arrive while it is in flight.
    let fresh = next(&mut session).await;
    assert_eq!(body(&fresh), "fresh");
    for n in 0..20 {
        broker.client.publish("orders", &n.to_string()).await;
    }
    let received = next_many(&mut session, 20).await;
    assert!(received.iter().all(|one| one.message.abandoned == 0));
}

#[tokio::test]
async fn a_dropped_call_does_not_lose_the_change_to_full_speed() {
    let Some(broker) = Broker::fresh("a_dropped_call_does_not_lose_the_change_to_full_speed").await else {
        return;
    };
    let mut source = broker.source();
    for round in 0..15 {
        let mut session = source.open(ROOM).await.unwrap().session;
        for n in 0..5 {
            broker.client.publish("orders", &n.to_string()).await;
        }
        // Dropped somewhere between the first message and the new subscription.
        for _ in 0..3 {
            let early = timeout(Duration::from_micros(150 * round), session.next(ROOM)).await;
            for one in early.into_iter().flat_map(Result::unwrap) {
                settled(&session, one, Settlement::Ack).await;
            }
        }
        broker.client.publish("orders", "last").await;
        loop {
            let received = next(&mut session).await;
            let is_last = body(&received) == "last";
            settled(&session, received, Settlement::Ack).await;
            if is_last {
                break;
            }
        }
        session.close().await;
        assert_eq!(broker.client.count("orders").await, 0, "round {round}");
    }
}

#[tokio::test]
async fn a_session_that_is_dropped_while_it_changes_to_full_speed_returns_its_messages() {
    let Some(broker) =
        Broker::fresh("a_session_that_is_dropped_while_it_changes_to_full_speed_returns_its_messages").await
    else {
        return;
    };
    let mut source = broker.source();
    for round in 0..60 {
        let mut crashed = open(&mut source).await;
        broker.client.publish("orders", "1").await;
        assert_eq!(body(&next(&mut crashed).await), "1");
        drop(crashed);
        broker.client.until_count("orders", 1).await;
        let mut session = open(&mut source).await;
        broker.client.publish("orders", "2").await;
        let again = next(&mut session).await;
        assert_eq!((body(&again), again.message.abandoned), ("1", 1));
        // The second message arrives when the first one is acknowledged, and is the first fresh one. Then the session is dropped,
        // between two of the commands or while one waits for its response.
        let settler = session.settler();
        let early = async {
            let settling = settler.settle(vec![decision(again.receipt, Settlement::Ack)]);
            tokio::join!(settling, async {
                loop {
                    session.next(ROOM).await.unwrap();
                }
            })
        };
        assert!(timeout(Duration::from_micros(500 * round), early).await.is_err());
        drop(session);
        drop(settler);
        broker.client.publish("orders", "3").await;
        let both_return = async {
            while broker.client.count("orders").await < 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(LONG / 6, both_return).await.unwrap_or_else(|_| panic!("round {round}"));
        while broker.client.try_read("orders").await.is_some() {}
    }
}
