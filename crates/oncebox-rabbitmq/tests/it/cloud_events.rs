//! CloudEvents in both modes, in and out.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use oncebox_core::source::{Received, SourceRules};
use oncebox_core::{Envelope, Outgoing, Settlement, Sink, Verdict};
use oncebox_rabbitmq::RabbitReceipt;

use crate::client::{Broker, next, open, settled};

fn envelope(received: &Received<RabbitReceipt>) -> Envelope {
    SourceRules::new("orders").delivery(received.message.clone()).unwrap()
}

#[tokio::test]
async fn events_arrive_alike_in_binary_and_structured_mode() {
    let Some(broker) = Broker::fresh("events_arrive_alike_in_binary_and_structured_mode").await else {
        return;
    };
    let mut source = broker.source();
    let mut session = open(&mut source).await;
    let attributes =
        [("specversion", "1.0"), ("id", "e-1"), ("source", "/shop"), ("type", "order.paid"), ("num", "7")];
    for prefix in ["cloudEvents:", "cloudEvents_"] {
        let mut headers = FieldTable::default();
        for (name, value) in attributes {
            headers.insert(format!("{prefix}{name}").into(), AMQPValue::LongString(value.into()));
        }
        let properties =
            BasicProperties::default().with_headers(headers).with_content_type("application/json".into());
        broker.client.publish_with("", "orders", b"{\"n\":1}", properties).await;
    }
    let structured = BasicProperties::default().with_content_type("application/cloudevents+json".into());
    let event =
        br#"{"specversion":"1.0","id":"e-1","source":"/shop","type":"order.paid","num":7,"data":{"n":1}}"#;
    broker.client.publish_with("", "orders", event, structured).await;
    for _ in 0..3 {
        let received = next(&mut session).await;
        let envelope = envelope(&received);
        assert_eq!((envelope.kind(), envelope.body()), ("order.paid", &b"{\"n\":1}"[..]));
        for (name, value) in [("ce-id", "e-1"), ("ce-num", "7"), ("content-type", "application/json")] {
            assert_eq!(envelope.headers().get(name), Some(value), "{name}");
        }
        settled(&session, received, Settlement::Ack).await;
    }
}

#[tokio::test]
async fn an_event_of_a_sink_arrives_as_one_in_a_source() {
    let Some(broker) = Broker::fresh("an_event_of_a_sink_arrives_as_one_in_a_source").await else { return };
    let mut source = broker.source();
    let mut session = open(&mut source).await;
    let sink = broker.rabbit.exchange("").routing_key("orders").unwrap().source("/shop");
    let mut message = Outgoing::new("order.paid", "{\"n\":1}");
    message.order_by = Some("customer-1".into());
    message.headers.append("content-type", "application/json");
    message.headers.append("ce-subject", "7");
    let verdicts = sink.publish(std::slice::from_ref(&message)).await;
    assert!(matches!(verdicts[..], [Verdict::Confirmed]), "{verdicts:?}");
    let received = next(&mut session).await;
    let id = message.id.to_string();
    assert_eq!(received.message.message_id.as_deref(), Some(&*id));
    assert_eq!(received.message.order_by, Some("customer-1".into()));
    let envelope = envelope(&received);
    assert_eq!((envelope.kind(), envelope.body()), ("order.paid", &b"{\"n\":1}"[..]));
    for (name, value) in [("ce-id", &*id), ("ce-source", "/shop"), ("ce-subject", "7"), ("oncebox-id", &id)] {
        assert_eq!(envelope.headers().get(name), Some(value), "{name}");
    }
    settled(&session, received, Settlement::Ack).await;
}
