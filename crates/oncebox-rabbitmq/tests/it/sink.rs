//! Messages of a relay reach their queues, or are refused one by one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lapin::ExchangeKind;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use oncebox_core::{Failure, Headers, Key, Outgoing, Sink, Verdict};
use oncebox_rabbitmq::RabbitSink;

use crate::client::Broker;

async fn verdict(sink: &RabbitSink, message: Outgoing) -> Verdict {
    let mut verdicts = sink.publish(&[message]).await;
    assert_eq!(verdicts.len(), 1);
    verdicts.remove(0)
}

#[tokio::test]
async fn of_a_thousand_messages_exactly_the_unroutable_ones_are_refused() {
    let Some(broker) = Broker::fresh("of_a_thousand_messages_exactly_the_unroutable_ones_are_refused").await
    else {
        return;
    };
    // What a queue stores durably is confirmed later. For the other one, confirms come for many messages at once, and the client
    // gives returned messages to the wrong ones.
    let transient = QueueDeclareOptions::default();
    broker.client.channel.queue_declare("transient".into(), transient, FieldTable::default()).await.unwrap();
    broker.client.queue("durable").await;
    for queue in ["transient", "durable"] {
        broker.client.exchange(&format!("to {queue}"), ExchangeKind::Direct).await;
        broker.client.bind(queue, &format!("to {queue}"), "known").await;
        refuses_exactly_the_unroutable_ones(&broker, queue).await;
    }
}

async fn refuses_exactly_the_unroutable_ones(broker: &Broker, queue: &str) {
    let sink = broker.rabbit.exchange(format!("to {queue}"));
    let waves: Vec<Vec<Outgoing>> = (0..2)
        .map(|_| {
            let kind = |n: u32| if n.is_multiple_of(10) { "unknown" } else { "known" };
            (0..1000).map(|n| Outgoing::new(kind(n), "{}")).collect()
        })
        .collect();
    // Several waves at the same time, as a relay sends them.
    let published = futures_util::future::join_all(waves.iter().map(|wave| sink.publish(wave))).await;
    for (wave, verdicts) in waves.iter().zip(&published) {
        assert_eq!(verdicts.len(), 1000);
        for (message, verdict) in wave.iter().zip(verdicts) {
            match verdict {
                Verdict::Confirmed => assert_eq!(message.kind, "known"),
                Verdict::Refused(failure) => {
                    assert_eq!(message.kind, "unknown");
                    let text = failure.to_string();
                    assert!(text.contains(&format!("to {queue}")) && text.contains("unknown"), "{text}");
                }
                Verdict::Unknown(error) => panic!("{error}"),
            }
        }
    }
    broker.client.until_count(queue, 1800).await;
    let mut ids: BTreeSet<String> = waves
        .iter()
        .flatten()
        .filter(|message| message.kind == "known")
        .map(|message| message.id.to_string())
        .collect();
    for _ in 0..1800 {
        let id = broker.client.read(queue).await.properties.message_id().as_ref().unwrap().to_string();
        assert!(ids.remove(&id), "{id}");
    }
    assert!(ids.is_empty());
}

#[tokio::test]
async fn a_message_has_its_properties_and_headers() {
    let Some(broker) = Broker::fresh("a_message_has_its_properties_and_headers").await else { return };
    broker.client.exchange("events", ExchangeKind::Topic).await;
    broker.client.queue("all").await;
    broker.client.bind("all", "events", "#").await;
    let sink = broker.rabbit.exchange("events").routing_key("shop.{kind}.{key}.{order_by}").unwrap();
    let mut message = Outgoing::new("order.paid", "{\"order\":7}");
    message.key = Key::from("order-7");
    message.order_by = Some(Key::new([0xff, b'1']));
    message.relay = Arc::from("to billing");
    message.is_replay = true;
    message.occurred_at = Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1_763_500_000_250));
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers: Headers = [
        ("Content-Type", "application/json"),
        ("tenant", "größe"),
        ("traceparent", trace),
        ("ce-subject", "7"),
        ("ce-id", "another"),
        ("oncebox-id", "another"),
        ("CC", "elsewhere"),
        ("BCC", "elsewhere"),
    ]
    .into_iter()
    .collect();
    message.headers = headers;
    let id = message.id.to_string();
    assert!(matches!(verdict(&sink, message).await, Verdict::Confirmed));
    let read = broker.client.read("all").await;
    assert_eq!((&read.body[..], &*read.routing_key), (&b"{\"order\":7}"[..], "shop.order.paid.order-7.%FF1"));
    let properties = &read.properties;
    let text = |property: &Option<lapin::types::ShortString>| property.as_ref().map(ToString::to_string);
    assert_eq!(text(properties.message_id()), Some(id.clone()));
    assert_eq!(text(properties.kind()).as_deref(), Some("order.paid"));
    assert_eq!(text(properties.content_type()).as_deref(), Some("application/json"));
    assert_eq!((properties.delivery_mode(), properties.timestamp()), (&Some(2), &Some(1_763_500_000)));
    for (name, value) in [
        ("oncebox-id", &*id),
        ("oncebox-kind", "order.paid"),
        ("oncebox-key", "order-7"),
        ("oncebox-relay", "to billing"),
        ("oncebox-replay", "true"),
        ("tenant", "größe"),
        ("traceparent", trace),
        ("cloudEvents:specversion", "1.0"),
        ("cloudEvents:id", &id),
        ("cloudEvents:type", "order.paid"),
        ("cloudEvents:source", "/relays/to%20billing"),
        ("cloudEvents:time", "2025-11-18T21:06:40.25Z"),
        ("cloudEvents:subject", "7"),
    ] {
        assert_eq!(read.header(name).as_deref(), Some(value), "{name}");
    }
    let headers = properties.headers().as_ref().unwrap();
    assert_eq!(
        headers.inner().get("oncebox-order-by"),
        Some(&AMQPValue::LongString(vec![0xff, b'1'].into()))
    );
    assert_eq!(headers.inner().get("CC"), None);

    // Without anything that is optional.
    assert!(matches!(verdict(&sink, Outgoing::new("k", "")).await, Verdict::Confirmed));
    let read = broker.client.read("all").await;
    for absent in ["oncebox-order-by", "oncebox-replay", "cloudEvents:time", "traceparent"] {
        assert_eq!(read.header(absent), None, "{absent}");
    }
}

#[tokio::test]
async fn what_the_broker_can_never_take_is_refused_for_good_and_others_go_on() {
    let test = "what_the_broker_can_never_take_is_refused_for_good_and_others_go_on";
    let Some(broker) = Broker::fresh(test).await else { return };
    broker.client.queue("fine").await;
    let sink = broker.rabbit.exchange("").routing_key("{kind}").unwrap();
    let mut long_header = Outgoing::new("fine", "");
    long_header.headers.append("x".repeat(256), "1");
    let wave = [
        Outgoing::new("k".repeat(256), ""),
        Outgoing::new("fine", "1"),
        long_header,
        Outgoing::new("fine", "2"),
    ];
    let verdicts = sink.publish(&wave).await;
    assert!(
        matches!(
            verdicts[..],
            [
                Verdict::Refused(Failure::Permanent(_)),
                Verdict::Confirmed,
                Verdict::Refused(Failure::Permanent(_)),
                Verdict::Confirmed
            ]
        ),
        "{verdicts:?}"
    );
    assert_eq!(broker.client.count("fine").await, 2);
    for template in ["{kin}", "{kind", "a{}"] {
        let error = broker.rabbit.exchange("e").routing_key(template).unwrap_err().to_string();
        assert!(error.contains("{kind}"), "{error}");
    }
}

#[tokio::test]
async fn a_full_queue_refuses_and_takes_again() {
    let Some(broker) = Broker::fresh("a_full_queue_refuses_and_takes_again").await else { return };
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    broker.client.queue_with("small", arguments).await;
    let sink = broker.rabbit.exchange("");
    let small = || Outgoing::new("small", "");
    assert!(matches!(verdict(&sink, small()).await, Verdict::Confirmed));
    let refused = verdict(&sink, small()).await;
    assert!(matches!(&refused, Verdict::Refused(Failure::Retry(_))), "{refused:?}");
    broker.client.read("small").await;
    assert!(matches!(verdict(&sink, small()).await, Verdict::Confirmed));
}

#[tokio::test]
async fn a_missing_exchange_is_an_outage_that_names_it() {
    let Some(broker) = Broker::fresh("a_missing_exchange_is_an_outage_that_names_it").await else { return };
    let sink = broker.rabbit.exchange("events");
    let unknown = verdict(&sink, Outgoing::new("k", "")).await;
    let Verdict::Unknown(error) = unknown else { panic!("{unknown:?}") };
    let error = error.source().unwrap().to_string();
    assert!(error.contains("no exchange 'events'") && error.contains("Create it"), "{error}");
    // The channel was closed; the next message gets another one.
    broker.client.exchange("events", ExchangeKind::Fanout).await;
    let sink = sink.mandatory(false);
    assert!(matches!(verdict(&sink, Outgoing::new("k", "")).await, Verdict::Confirmed));
}

#[tokio::test]
async fn dropped_waves_do_not_confuse_later_ones() {
    let Some(broker) = Broker::fresh("dropped_waves_do_not_confuse_later_ones").await else { return };
    broker.client.queue("known").await;
    let sink = broker.rabbit.exchange("");
    for round in 0..30 {
        let unroutable: Vec<Outgoing> = (0..50).map(|_| Outgoing::new("unknown", "")).collect();
        let _ = tokio::time::timeout(Duration::from_micros(100 * round), sink.publish(&unroutable)).await;
        let known = verdict(&sink, Outgoing::new("known", "")).await;
        assert!(matches!(known, Verdict::Confirmed), "{known:?}");
    }
    broker.client.until_count("known", 30).await;
}
