//! Dead messages return to their queue.

use lapin::BasicProperties;
use lapin::ExchangeKind;
use oncebox_core::Settlement;

use crate::client::{Broker, body, next, open, retry_now, settled};

#[tokio::test]
async fn a_redriven_message_runs_again_with_its_id_and_all_attempts() {
    let Some(broker) = Broker::fresh("a_redriven_message_runs_again_with_its_id_and_all_attempts").await
    else {
        return;
    };
    broker.client.exchange("events", ExchangeKind::Topic).await;
    let mut source = broker.source().max_retries(1);
    let mut session = open(&mut source).await;
    broker.client.bind("orders", "events", "#").await;
    let properties = BasicProperties::default().with_message_id("m-1".into()).with_priority(3);
    broker.client.publish_with("events", "paid", b"poison", properties).await;
    for _ in 0..2 {
        let received = next(&mut session).await;
        settled(&session, received, retry_now()).await;
    }
    broker.client.until_count("orders.dead", 1).await;

    assert_eq!(broker.rabbit.redrive("orders", 10).await.unwrap(), 1);
    assert_eq!(broker.client.count("orders.dead").await, 0);
    let received = next(&mut session).await;
    assert_eq!((received.message.attempt, received.message.message_id.as_deref()), (Some(1), Some("m-1")));
    let header = |name| received.message.headers.headers.get(name);
    assert_eq!((header("rabbitmq-exchange"), header("rabbitmq-routing-key")), (Some("events"), Some("paid")));
    assert_eq!((header("oncebox-error"), header("oncebox-attempts")), (None, None));
    settled(&session, received, Settlement::Ack).await;
    assert_eq!(broker.rabbit.redrive("orders", 10).await.unwrap(), 0);
}

#[tokio::test]
async fn a_redrive_moves_no_more_than_its_limit() {
    let Some(broker) = Broker::fresh("a_redrive_moves_no_more_than_its_limit").await else { return };
    let mut source = broker.source();
    let session = open(&mut source).await;
    drop(session);
    for n in 0..250 {
        broker.client.publish("orders.dead", &n.to_string()).await;
    }
    assert_eq!(broker.rabbit.redrive("orders", 120).await.unwrap(), 120);
    broker.client.until_count("orders.dead", 130).await;
    let mut session = open(&mut source).await;
    let first = next(&mut session).await;
    assert_eq!(body(&first), "0");
    let error = broker.rabbit.redrive("other", 1).await.unwrap_err().report().to_string();
    assert!(error.contains("other.dead"), "{error}");
}
