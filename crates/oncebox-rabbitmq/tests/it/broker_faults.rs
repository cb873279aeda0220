//! Connections are lost, queues are deleted, the broker stops.

use std::time::Duration;

use oncebox_core::source::{Session, Settled, Settler};
use oncebox_core::{Outgoing, Settlement, Sink, Verdict};
use oncebox_rabbitmq::{Declare, RabbitMq};
use oncebox_servers::rabbitmq::{self, RabbitOptions, RabbitServer};
use oncebox_servers::skip::skip_or_fail;
use tokio::time::{sleep, timeout};

use crate::client::{
    Broker, Client, LONG, body, decision, next, open, retry_now, session_error, settle, settled,
};

#[tokio::test]
async fn a_deleted_queue_ends_the_session_and_a_new_one_works() {
    let Some(broker) = Broker::fresh("a_deleted_queue_ends_the_session_and_a_new_one_works").await else {
        return;
    };
    let mut source = broker.source();
    // Once while messages arrive one by one, and once at full speed.
    for is_full in [false, true] {
        let mut session = open(&mut source).await;
        if is_full {
            broker.client.publish("orders", "1").await;
            next(&mut session).await;
        }
        broker.client.delete("orders").await;
        let error = session_error(&mut session).await.report().to_string();
        assert!(error.contains("\"orders\"") && error.contains("deleted"), "{error}");
        let mut session = open(&mut source).await;
        broker.client.publish("orders", "2").await;
        let received = next(&mut session).await;
        assert_eq!(body(&received), "2");
        settled(&session, received, Settlement::Ack).await;
    }
}

#[tokio::test]
async fn connections_that_the_broker_closes_are_replaced() {
    let Some(broker) = Broker::fresh("connections_that_the_broker_closes_are_replaced").await else { return };
    let mut source = broker.source();
    let mut session = open(&mut source).await;
    let sink = broker.rabbit.exchange("").routing_key("orders").unwrap();
    let verdicts = sink.publish(&[Outgoing::new("k", "1")]).await;
    assert!(matches!(verdicts[..], [Verdict::Confirmed]), "{verdicts:?}");
    let received = next(&mut session).await;

    broker.vhost.ctl(&["close_all_connections", "maintenance"]).await.unwrap();
    let error = session_error(&mut session).await.report().to_string();
    assert!(error.contains("maintenance"), "{error}");
    let stale = settle(&session, received, Settlement::Ack).await;
    assert!(matches!(stale, Settled::Stale), "{stale:?}");
    // The connection for publishing was closed too. A wave may be the first to see it.
    let published = async {
        while !matches!(sink.publish(&[Outgoing::new("k", "2")]).await[..], [Verdict::Confirmed]) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, published).await.unwrap();
    let mut session = open(&mut source).await;
    for (text, abandoned) in [("1", 1), ("2", 0)] {
        let received = next(&mut session).await;
        assert_eq!((body(&received), received.message.abandoned), (text, abandoned));
        settled(&session, received, Settlement::Ack).await;
    }
}

async fn private_server(test: &str) -> Option<RabbitServer> {
    if rabbitmq::find().unwrap().is_none() {
        skip_or_fail(test, "RabbitMQ's server programs are not installed");
        return None;
    }
    Some(RabbitServer::start(RabbitOptions::default()).await.unwrap())
}

/// One test, because each start of a server takes seconds.
#[tokio::test]
async fn a_broker_out_of_memory_paused_or_killed_loses_nothing() {
    let Some(mut server) = private_server("a_broker_out_of_memory_paused_or_killed_loses_nothing").await
    else {
        return;
    };
    let rabbit = RabbitMq::new(server.url()).unwrap();
    let mut source = rabbit.queue("orders").declare(Declare::Create);
    let sink = rabbit.exchange("").routing_key("orders").unwrap();
    let mut session = open(&mut source).await;
    let send = async |text: &str| sink.publish(&[Outgoing::new("k", text)]).await.remove(0);
    for text in ["1", "2", "3"] {
        assert!(matches!(send(text).await, Verdict::Confirmed));
    }
    let first = next(&mut session).await;
    let second = next(&mut session).await;
    let third = next(&mut session).await;

    // Out of memory: acknowledgements go on, because they have a connection of their own.
    server.ctl(&["set_vm_memory_high_watermark", "0.000001"]).await.unwrap();
    let blocked = async {
        while !matches!(send("4").await, Verdict::Unknown(_)) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, blocked).await.unwrap();
    settled(&session, first, Settlement::Ack).await;
    let unknown = settle(&session, second, retry_now()).await;
    assert!(matches!(unknown, Settled::Unknown(_)), "{unknown:?}");
    server.ctl(&["set_vm_memory_high_watermark", "0.6"]).await.unwrap();
    let works_again = async {
        while !matches!(send("5").await, Verdict::Confirmed) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, works_again).await.unwrap();

    // Paused: nothing responds, and everything has a limit.
    server.pause().unwrap();
    assert!(matches!(send("6").await, Verdict::Unknown(_)));
    // Stale, if the missing heartbeats were noticed first.
    let unknown = settle(&session, third, retry_now()).await;
    assert!(matches!(unknown, Settled::Unknown(_) | Settled::Stale), "{unknown:?}");
    server.resume().unwrap();

    // Killed: the session ends, and after a restart everything that was confirmed is there, unless it was acknowledged.
    server.kill().unwrap();
    session_error(&mut session).await;
    assert!(matches!(send("7").await, Verdict::Unknown(_)));
    let old = session.settler();
    drop(session);
    server.restart().await.unwrap();
    let mut session = open(&mut source).await;
    let mut seen = Vec::new();
    while !["2", "3", "5"].iter().all(|text| seen.iter().any(|other| other == text)) {
        let received = next(&mut session).await;
        seen.push(body(&received).to_owned());
        let stale = old.settle(vec![decision(received.receipt.clone(), Settlement::Ack)]).await;
        assert!(matches!(stale[..], [Settled::Stale]), "{stale:?}");
        settled(&session, received, Settlement::Ack).await;
    }
    assert!(!seen.contains(&"1".to_owned()), "{seen:?}");
    assert!(matches!(send("8").await, Verdict::Confirmed));
    Client::connect(&server.url()).await;
}
