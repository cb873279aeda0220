//! Messages arrive, are settled, and arrive again.

use std::collections::BTreeSet;
use std::time::Duration;

use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, ExchangeKind};
use oncebox_core::Settlement;
use oncebox_core::source::{Room, Session, Settled, Settler, Source};
use oncebox_rabbitmq::{Declare, QueueType};
use serde_json::Value;
use tokio::time::timeout;

use crate::client::{
    Broker, LONG, ROOM, bodies, body, decision, next, next_many, open, open_with_warnings, retry_now, settle,
    settled,
};

#[tokio::test]
async fn acknowledged_messages_are_gone_and_the_others_arrive_again() {
    let Some(broker) = Broker::fresh("acknowledged_messages_are_gone_and_the_others_arrive_again").await
    else {
        return;
    };
    for queue_type in [QueueType::Quorum, QueueType::Classic] {
        let queue = format!("{queue_type:?}");
        let mut source = broker.rabbit.queue(&queue).declare(Declare::Create).queue_type(queue_type);
        let mut session = open(&mut source).await;
        for n in 0..20 {
            broker.client.publish(&queue, &n.to_string()).await;
        }
        let received = next_many(&mut session, 20).await;
        let expected: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        assert_eq!(bodies(&received), expected);
        assert!(received.iter().all(|one| one.message.attempt == Some(1) && one.message.abandoned == 0));
        // A prefix, some behind it, and a gap.
        let acks = received.into_iter().enumerate().filter(|(n, _)| !matches!(n, 5 | 9 | 10));
        let acks = acks.map(|(_, one)| decision(one.receipt, Settlement::Ack)).collect();
        let results = session.settler().settle(acks).await;
        assert_eq!(results.len(), 17);
        assert!(results.iter().all(|result| matches!(result, Settled::Done)), "{results:?}");
        drop(session);
        broker.client.until_count(&queue, 3).await;

        let mut session = open(&mut source).await;
        // One by one: the next one arrives after the one before is settled.
        for n in [5, 9, 10] {
            let one = next(&mut session).await;
            assert_eq!(body(&one), n.to_string());
            assert_eq!(one.message.abandoned, u32::from(queue_type == QueueType::Quorum));
            settled(&session, one, Settlement::Ack).await;
        }
        session.close().await;
        assert_eq!(broker.client.count(&queue).await, 0);
    }
}

#[tokio::test]
async fn a_failed_message_arrives_later_as_its_second_attempt() {
    let Some(broker) = Broker::fresh("a_failed_message_arrives_later_as_its_second_attempt").await else {
        return;
    };
    let mut source = broker.source();
    let mut session = open(&mut source).await;
    broker.client.exchange("events", ExchangeKind::Topic).await;
    broker.client.bind("orders", "events", "#").await;
    let mut headers = FieldTable::default();
    headers.insert("tenant".into(), AMQPValue::LongString("a".into()));
    headers.insert("oncebox-order-by".into(), AMQPValue::LongString("customer-1".into()));
    let properties = BasicProperties::default()
        .with_message_id("m-1".into())
        .with_type("order.paid".into())
        .with_headers(headers)
        .with_expiration("600000".into());
    broker.client.publish_with("events", "paid", b"{}", properties).await;

    for attempt in 1..=3 {
        let received = next(&mut session).await;
        let message = &received.message;
        assert_eq!((message.attempt, message.abandoned), (Some(attempt), 0));
        assert_eq!(
            (message.kind.as_deref(), message.message_id.as_deref()),
            (Some("order.paid"), Some("m-1"))
        );
        assert_eq!(message.order_by, Some("customer-1".into()));
        for (name, value) in
            [("tenant", "a"), ("rabbitmq-exchange", "events"), ("rabbitmq-routing-key", "paid")]
        {
            assert_eq!(message.headers.headers.get(name), Some(value), "{name}");
        }
        settled(&session, received, if attempt == 3 { Settlement::Ack } else { retry_now() }).await;
    }
    assert_eq!(broker.client.count("orders.retry.1s").await, 0);
    assert_eq!(broker.client.count("orders").await, 0);
}

#[tokio::test]
async fn a_message_without_retries_left_is_dead_with_one_report() {
    let Some(broker) = Broker::fresh("a_message_without_retries_left_is_dead_with_one_report").await else {
        return;
    };
    broker.client.exchange("faults", ExchangeKind::Fanout).await;
    broker.client.queue("reports").await;
    broker.client.bind("reports", "faults", "").await;
    let mut source = broker.source().max_retries(2).fault_exchange("faults").named("shop");
    let mut session = open(&mut source).await;
    broker.client.publish("orders", "poison").await;
    broker.client.publish("orders", "fine").await;
    for attempt in [1, 2, 3] {
        let received = loop {
            let received = next(&mut session).await;
            if body(&received) == "poison" {
                break received;
            }
            settled(&session, received, Settlement::Ack).await;
        };
        assert_eq!(received.message.attempt, Some(attempt));
        assert_eq!(broker.client.count("orders.dead").await, 0, "dead only at the limit");
        settled(&session, received, retry_now()).await;
    }
    let dead = broker.client.read("orders.dead").await;
    assert_eq!(dead.body, b"poison");
    for (name, value) in [
        ("oncebox-error", "no such customer"),
        ("oncebox-attempts", "3"),
        ("oncebox-exchange", ""),
        ("oncebox-routing-key", "orders"),
    ] {
        assert_eq!(dead.header(name).as_deref(), Some(value), "{name}");
    }
    let report = broker.client.read("reports").await;
    let fault: Value = serde_json::from_slice(&report.body).unwrap();
    assert_eq!(report.properties.kind().as_ref().map(ToString::to_string).as_deref(), Some("oncebox.fault"));
    assert_eq!((fault["source"].as_str(), fault["attempts"].as_u64()), (Some("shop"), Some(3)));
    assert_eq!(fault["body_base64"].as_str(), Some("cG9pc29u"));
    session.close().await;
    assert!(broker.client.try_read("reports").await.is_none(), "one report");
    assert_eq!(broker.client.count("orders").await, 0);
}

#[tokio::test]
async fn a_rejected_message_is_dead_at_once() {
    let Some(broker) = Broker::fresh("a_rejected_message_is_dead_at_once").await else { return };
    let mut source = broker.source();
    let mut session = open(&mut source).await;
    // Neither a copy that expires nor one that the broker refuses: both would lose the message.
    let properties = BasicProperties::default().with_expiration("600000".into()).with_user_id("guest".into());
    broker.client.publish_with("", "orders", b"invalid", properties).await;
    let received = next(&mut session).await;
    settled(&session, received, Settlement::Reject).await;
    let dead = broker.client.read("orders.dead").await;
    assert_eq!((&dead.body[..], dead.properties.expiration()), (&b"invalid"[..], &None));
    assert_eq!(dead.header("oncebox-attempts").as_deref(), Some("1"));
}

#[tokio::test]
async fn without_a_dead_queue_nothing_is_acknowledged() {
    let Some(broker) = Broker::fresh("without_a_dead_queue_nothing_is_acknowledged").await else { return };
    broker.client.queue("orders").await;
    let mut source = broker.rabbit.queue("orders").queue_type(QueueType::Classic);
    let (mut session, warnings) = open_with_warnings(&mut source).await;
    for part in ["does not count deliveries", "orders.dead", "rabbitmqctl set_policy"] {
        assert!(warnings.iter().any(|warning| warning.contains(part)), "{part}: {warnings:?}");
    }
    broker.client.publish("orders", "invalid").await;
    let received = next(&mut session).await;
    let result = settle(&session, received, Settlement::Reject).await;
    let Settled::Unknown(error) = result else { panic!("{result:?}") };
    assert!(error.report().to_string().contains("orders.dead"), "{error}");
    // It comes back by itself, and the queue may be there then.
    broker.client.queue("orders.dead").await;
    let received = next(&mut session).await;
    assert_eq!(body(&received), "invalid");
    settled(&session, received, Settlement::Reject).await;
    assert_eq!(broker.client.read("orders.dead").await.body, b"invalid");
}

#[tokio::test]
async fn without_retry_queues_a_failed_message_goes_back_to_its_queue() {
    let Some(broker) = Broker::fresh("without_retry_queues_a_failed_message_goes_back_to_its_queue").await
    else {
        return;
    };
    for (queue_type, kind) in [(QueueType::Quorum, "quorum"), (QueueType::Classic, "classic")] {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        broker.client.queue_with(kind, arguments).await;
        broker.client.queue(&format!("{kind}.dead")).await;
        let mut source = broker.rabbit.queue(kind).queue_type(queue_type).max_retries(2);
        let mut session = open(&mut source).await;
        broker.client.publish(kind, "poison").await;
        for attempt in [1, 2, 3] {
            let received = next(&mut session).await;
            // The broker counts these deliveries too, but no process has crashed.
            assert_eq!((received.message.attempt, received.message.abandoned), (Some(attempt), 0), "{kind}");
            settled(&session, received, retry_now()).await;
        }
        let dead = broker.client.read(&format!("{kind}.dead")).await;
        assert_eq!(dead.header("oncebox-attempts").as_deref(), Some("3"));
    }
}

#[tokio::test]
async fn the_room_limits_messages_and_bytes_and_nothing_is_lost_between_calls() {
    let test = "the_room_limits_messages_and_bytes_and_nothing_is_lost_between_calls";
    let Some(broker) = Broker::fresh(test).await else { return };
    let mut source = broker.source();
    let mut session = open(&mut source).await;
    let mut sent = BTreeSet::new();
    for n in 0..60 {
        let body = format!("{n:0>100}");
        broker.client.publish_with("", "orders", body.as_bytes(), BasicProperties::default()).await;
        sent.insert(body);
    }
    let mut seen = BTreeSet::new();
    let mut calls = 0_u32;
    while seen.len() < sent.len() {
        calls += 1;
        let room = Room { messages: 3, bytes: if calls.is_multiple_of(2) { 250 } else { 10 } };
        // Most calls are dropped before anything arrives.
        let dropped = timeout(Duration::from_micros(u64::from(calls) * 7 % 900), session.next(room)).await;
        let Ok(received) = dropped else { continue };
        let received = received.unwrap();
        assert!((1..=2).contains(&received.len()), "{}", received.len());
        assert!(received.len() == 1 || room.bytes == 250);
        for one in received {
            assert!(seen.insert(body(&one).to_owned()), "twice: {}", body(&one));
            settled(&session, one, Settlement::Ack).await;
        }
        assert!(calls < 1_000_000);
    }
    assert_eq!(seen, sent);
    // Without room it waits for the end of the session.
    broker.client.publish("orders", "one more").await;
    let no_room = Room { messages: 0, bytes: 9 };
    assert!(timeout(Duration::from_millis(50), session.next(no_room)).await.is_err(), "it has no room");
    broker.client.delete("orders").await;
    session.next(no_room).await.unwrap_err();
}

#[tokio::test]
async fn receipts_of_an_earlier_session_are_stale() {
    let Some(broker) = Broker::fresh("receipts_of_an_earlier_session_are_stale").await else { return };
    let mut source = broker.source();
    let mut first = open(&mut source).await;
    broker.client.publish("orders", "1").await;
    let old = next(&mut first).await;
    let old_settler = first.settler();
    drop(first);
    let mut second = open(&mut source).await;
    let new = next(&mut second).await;
    assert_eq!(body(&new), "1");
    // The delivery tags are equal. An acknowledgement by the old receipt would settle the new delivery.
    for settlement in [Settlement::Ack, retry_now(), Settlement::Reject] {
        for settler in [&old_settler, &second.settler()] {
            let settled = settler.settle(vec![decision(old.receipt.clone(), settlement)]).await;
            assert!(matches!(settled[..], [Settled::Stale]), "{settled:?}");
        }
    }
    let twice = new.clone();
    settled(&second, new, Settlement::Ack).await;
    let again = settle(&second, twice, Settlement::Ack).await;
    assert!(matches!(again, Settled::Stale), "{again:?}");
    // The channel still works.
    broker.client.publish("orders", "2").await;
    let next_one = next(&mut second).await;
    settled(&second, next_one, Settlement::Ack).await;
    second.close().await;
    for queue in ["orders", "orders.retry.1s", "orders.dead"] {
        assert_eq!(broker.client.count(queue).await, 0, "{queue}");
    }
}

#[tokio::test]
async fn many_settle_at_the_same_time() {
    let Some(broker) = Broker::fresh("many_settle_at_the_same_time").await else { return };
    let mut source = broker.source();
    let mut session = open(&mut source).await;
    let mut tasks = Vec::new();
    for n in 0..300_u32 {
        broker.client.publish("orders", &n.to_string()).await;
        let received = next(&mut session).await;
        let settler = session.settler();
        tasks.push(tokio::spawn(async move {
            let settlement = if n.is_multiple_of(10) { Settlement::Reject } else { Settlement::Ack };
            settler.settle(vec![decision(received.receipt, settlement)]).await
        }));
    }
    for task in tasks {
        let settled = timeout(LONG, task).await.unwrap().unwrap();
        assert!(matches!(settled[..], [Settled::Done]), "{settled:?}");
    }
    session.close().await;
    assert_eq!(broker.client.count("orders").await, 0);
    broker.client.until_count("orders.dead", 30).await;
}

#[tokio::test]
async fn a_source_has_the_name_of_its_queue_or_its_own() {
    let Some(broker) = Broker::fresh("a_source_has_the_name_of_its_queue_or_its_own").await else { return };
    assert_eq!(broker.source().name(), "orders");
    assert_eq!(broker.source().named("shop").name(), "shop");
    assert_eq!(ROOM.messages, 100);
}

#[tokio::test]
async fn unhandled_messages_are_not_abandoned_when_a_session_closes() {
    let test = "unhandled_messages_are_not_abandoned_when_a_session_closes";
    let Some(broker) = Broker::fresh(test).await else { return };
    let mut source = broker.source();
    let mut session = open(&mut source).await;
    for n in 0..10 {
        broker.client.publish("orders", &n.to_string()).await;
    }
    let first = next(&mut session).await;
    settled(&session, first, Settlement::Ack).await;
    // With the second one, others are in the buffer of the session.
    let second = next(&mut session).await;
    settled(&session, second, Settlement::Ack).await;
    session.close().await;
    broker.client.until_count("orders", 8).await;
    let mut session = open(&mut source).await;
    for _ in 0..8 {
        let received = next(&mut session).await;
        assert_eq!((received.message.attempt, received.message.abandoned), (Some(1), 0));
        settled(&session, received, Settlement::Ack).await;
    }
}
