//! What is set up wrongly says what is wrong, and what to do.

use std::time::Duration;

use lapin::types::{AMQPValue, FieldTable};
use oncebox_core::{Outgoing, Sink, Verdict};
use oncebox_rabbitmq::{Declare, QueueType, RabbitMq};
use tokio::net::TcpListener;

use crate::client::{Broker, LONG, open, open_error, open_with_warnings};

#[tokio::test]
async fn a_wrong_password_or_virtual_host_is_named_without_the_password() {
    let test = "a_wrong_password_or_virtual_host_is_named_without_the_password";
    let Some(broker) = Broker::fresh(test).await else { return };
    let url = broker.vhost.url();
    let rabbit = RabbitMq::new(url.replace(":guest@", ":s3cret@")).unwrap();
    let error = open_error(&mut rabbit.queue("orders")).await;
    assert!(error.contains("refused the login of user \"guest\""), "{error}");
    assert!(!error.contains("s3cret") && !format!("{rabbit:?}").contains("s3cret"), "{error} {rabbit:?}");

    let rabbit = RabbitMq::new(format!("{url}x")).unwrap();
    let error = open_error(&mut rabbit.queue("orders")).await;
    assert!(error.contains(&format!("{}x", broker.vhost.name())) && error.contains("add_vhost"), "{error}");
}

#[tokio::test]
async fn a_missing_queue_or_fault_exchange_is_named() {
    let Some(broker) = Broker::fresh("a_missing_queue_or_fault_exchange_is_named").await else { return };
    let error = open_error(&mut broker.rabbit.queue("orders")).await;
    assert!(error.contains("\"orders\" does not exist") && error.contains("`declare` = create"), "{error}");
    let error = open_error(&mut broker.source().fault_exchange("faults")).await;
    assert!(error.contains("faults") && error.contains("Create it"), "{error}");
    // Unchecked, it is the broker that reports it.
    let error = open_error(&mut broker.rabbit.queue("others").declare(Declare::Nothing)).await;
    assert!(error.contains("others"), "{error}");
    let error = open_error(&mut broker.rabbit.queue("q".repeat(256))).await;
    assert!(error.contains("at most 255"), "{error}");
}

#[tokio::test]
async fn other_arguments_are_reported_with_the_policy_that_mends_them() {
    let test = "other_arguments_are_reported_with_the_policy_that_mends_them";
    let Some(broker) = Broker::fresh(test).await else { return };
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    broker.client.queue_with("orders", arguments).await;
    let error = open_error(&mut broker.source()).await;
    for part in ["exists with other arguments", "rabbitmqctl set_policy", "at-least-once", "'^orders$'"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let (_session, warnings) = open_with_warnings(&mut broker.rabbit.queue("orders")).await;
    assert!(warnings.iter().any(|warning| warning.contains("rabbitmqctl set_policy")), "{warnings:?}");

    // The command works.
    let policy = error.split('\'').find(|part| part.starts_with('{')).unwrap();
    broker
        .vhost
        .ctl(&["set_policy", "oncebox-orders", "^orders$", policy, "--apply-to", "queues"])
        .await
        .unwrap();
    open(&mut broker.rabbit.queue("orders")).await;

    let error = open_error(&mut broker.source().queue_type(QueueType::Classic)).await;
    assert!(error.contains("queue_type"), "{error}");
}

#[tokio::test]
async fn a_complete_topology_has_no_warnings() {
    let Some(broker) = Broker::fresh("a_complete_topology_has_no_warnings").await else { return };
    let mut create = broker.source().handler_timeout(Duration::from_secs(30));
    assert_eq!(open_with_warnings(&mut create).await.1, Vec::<String>::new());
    assert_eq!(open_with_warnings(&mut create).await.1, Vec::<String>::new());
    let mut check = broker.rabbit.queue("orders");
    assert_eq!(open_with_warnings(&mut check).await.1, Vec::<String>::new());
    broker.client.delete("orders.retry.10s").await;
    let warnings = open_with_warnings(&mut check).await.1;
    assert!(warnings[0].contains("orders.retry.10s"), "{warnings:?}");
}

#[tokio::test]
async fn plaintext_stays_on_this_machine_unless_it_is_allowed() {
    // A documentation address: nothing is sent to it.
    let rabbit = RabbitMq::new("amqp://u:s3cret@192.0.2.1/v").unwrap();
    let error = open_error(&mut rabbit.queue("orders")).await;
    assert!(error.contains("amqps://") && error.contains("allow_plaintext"), "{error}");
    assert!(!error.contains("s3cret"), "{error}");
    let verdicts = rabbit.exchange("e").publish(&[Outgoing::new("k", "")]).await;
    assert!(matches!(verdicts[..], [Verdict::Unknown(_)]), "{verdicts:?}");
}

#[tokio::test]
async fn missing_files_of_certificates_are_named_with_their_setting() {
    for (rabbit, setting) in [
        (RabbitMq::new("amqps://127.0.0.1:1").unwrap().ca("/nowhere/ca.pem"), "`ca`"),
        (
            RabbitMq::new("amqps://127.0.0.1:1")
                .unwrap()
                .client_certificate("/nowhere/me.pem", "/nowhere/me.key"),
            "`client_certificate`",
        ),
    ] {
        let error = open_error(&mut rabbit.queue("orders")).await;
        assert!(error.contains("/nowhere/") && error.contains(setting), "{error}");
    }
}

#[tokio::test]
async fn a_broker_that_does_not_run_or_never_responds_is_reported_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let url = format!("amqp://127.0.0.1:{port}");
    let rabbit = RabbitMq::new(&url).unwrap().timeout(Duration::from_millis(300));
    let error = open_error(&mut rabbit.queue("orders")).await;
    assert!(error.contains("did not respond within 300ms while connecting"), "{error}");
    let verdicts = rabbit.exchange("e").publish(&[Outgoing::new("k", "")]).await;
    assert!(matches!(verdicts[..], [Verdict::Unknown(_)]), "{verdicts:?}");

    // No connection is left behind: each of them ends.
    for _ in 0..2 {
        let (mut socket, _) = silent.accept().await.unwrap();
        let mut nowhere = tokio::io::sink();
        let ended = tokio::io::copy(&mut socket, &mut nowhere);
        tokio::time::timeout(LONG, ended).await.expect("the client closes its connection").unwrap();
    }
    drop(silent);
    let error = open_error(&mut rabbit.queue("orders")).await;
    assert!(error.contains(&format!("cannot connect to RabbitMQ at 127.0.0.1:{port}")), "{error}");
}
