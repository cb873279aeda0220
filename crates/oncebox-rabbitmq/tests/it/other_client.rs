//! pika, Python's client, publishes to a source and reads from a sink.

use std::process::Command;

use oncebox_core::{Outgoing, Settlement, Sink, Verdict};
use oncebox_servers::skip::skip_or_fail;

use crate::client::{Broker, next, open, session_error, settled};

const PUBLISH: &str = r#"
import pika, sys
connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
channel.confirm_delivery()
properties = pika.BasicProperties(
    content_type="application/json", message_id="m-1", type="order.paid", timestamp=7,
    headers={"tenant": "größe", "count": 3, "flag": True, "oncebox-order-by": "customer-1"})
channel.basic_publish("", "orders", '{"from": "pika"}', properties, mandatory=True)
connection.close()
"#;

const PUBLISH_UNREADABLE: &str = r#"
import pika, sys
connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
connection.channel().basic_publish("", "orders", "x", pika.BasicProperties(message_id=b"\xff"))
connection.close()
"#;

const READ: &str = r#"
import pika, sys
connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
method, properties, body = channel.basic_get("events")
channel.basic_ack(method.delivery_tag)
h = properties.headers
print(body.decode(), properties.message_id, properties.type, properties.delivery_mode, h["oncebox-kind"],
      h["cloudEvents:specversion"], h["cloudEvents:id"], h["tenant"], sep="|")
connection.close()
"#;

/// Python with pika, or `None`; the test returns then.
fn python(test: &str) -> Option<String> {
    // The tests' command names one that has it.
    let python = std::env::var("ONCEBOX_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_pika = Command::new(&python)
        .args(["-c", "import pika"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !has_pika {
        skip_or_fail(test, "Python's pika is not installed; `cargo xtask test` installs it");
    }
    has_pika.then_some(python)
}

fn run(python: &str, program: &str, url: &str) -> String {
    let output = Command::new(python).args(["-c", program, url]).env("PYTHONUTF8", "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn another_client_publishes_to_a_source_and_reads_from_a_sink() {
    let test = "another_client_publishes_to_a_source_and_reads_from_a_sink";
    let Some(python) = python(test) else { return };
    let Some(broker) = Broker::fresh(test).await else { return };
    let mut source = broker.source();
    let mut session = open(&mut source).await;
    run(&python, PUBLISH, &broker.vhost.url());
    let received = next(&mut session).await;
    let message = &received.message;
    assert_eq!(message.body, br#"{"from": "pika"}"#);
    assert_eq!((message.kind.as_deref(), message.message_id.as_deref()), (Some("order.paid"), Some("m-1")));
    assert_eq!(message.order_by, Some("customer-1".into()));
    for (name, value) in
        [("tenant", "größe"), ("count", "3"), ("flag", "true"), ("content-type", "application/json")]
    {
        assert_eq!(message.headers.headers.get(name), Some(value), "{name}");
    }
    settled(&session, received, Settlement::Ack).await;

    broker.client.queue("events").await;
    let mut message = Outgoing::new("order.paid", "{}");
    message.headers.append("tenant", "größe");
    let id = message.id;
    let verdicts = broker.rabbit.exchange("").routing_key("events").unwrap().publish(&[message]).await;
    assert!(matches!(verdicts[..], [Verdict::Confirmed]), "{verdicts:?}");
    let read = run(&python, READ, &broker.vhost.url());
    assert_eq!(read.trim(), format!("{{}}|{id}|order.paid|2|order.paid|1.0|{id}|größe"));
}

/// The client cannot read such a message, so the source cannot reject it. The error says what to do.
#[tokio::test]
async fn a_property_that_is_not_utf8_ends_the_session_with_a_hint() {
    let test = "a_property_that_is_not_utf8_ends_the_session_with_a_hint";
    let Some(python) = python(test) else { return };
    let Some(broker) = Broker::fresh(test).await else { return };
    let mut source = broker.source();
    let mut session = open(&mut source).await;
    run(&python, PUBLISH_UNREADABLE, &broker.vhost.url());
    let error = session_error(&mut session).await.report().to_string();
    assert!(error.contains("not UTF-8") && error.contains("remove the message"), "{error}");
}
