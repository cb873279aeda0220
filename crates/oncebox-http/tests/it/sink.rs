//! The sink: requests and verdicts.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use oncebox_core::store::{ReplayFrom, Select};
use oncebox_core::{Envelope, Failure, Headers, MessageId, Operator, Outbox, Outgoing, Relay, Sink, Verdict};
use oncebox_http::HttpSink;
use oncebox_sqlite::SqliteStore;
use tokio::net::TcpListener;

use crate::server::Server;

/// A sink that keeps what it gets, and passes it on.
#[derive(Clone)]
struct Tap {
    sink: HttpSink,
    seen: Arc<Mutex<Vec<Outgoing>>>,
}

impl Sink for Tap {
    const WAVE: usize = HttpSink::WAVE;

    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        self.seen.lock().unwrap().extend_from_slice(wave);
        self.sink.publish(wave).await
    }
}

/// An outbox whose relay sends to a sink, and what the relay has given to the sink.
async fn outbox(name: &str, sink: HttpSink) -> (Outbox<SqliteStore>, Arc<Mutex<Vec<Outgoing>>>) {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    store.migrate().await.unwrap();
    let tap = Tap { sink, seen: Arc::default() };
    let seen = tap.seen.clone();
    // One lane: several requests in flight are then those of one range.
    let outbox = Outbox::builder(store).lanes(1).relay(Relay::new(name, tap));
    (outbox.build().await.unwrap(), seen)
}

async fn publish(outbox: &Outbox<SqliteStore>, envelopes: Vec<Envelope>) -> Vec<MessageId> {
    let mut tx = outbox.store().pool().begin().await.unwrap();
    let ids = outbox.publish_envelopes(&mut tx, envelopes).await.unwrap();
    tx.commit().await.unwrap();
    ids
}

fn sink(url: &str) -> HttpSink {
    HttpSink::new(url).unwrap().allow_private()
}

/// Messages as a relay gives them to its sink.
async fn outgoing(count: u32) -> Vec<Outgoing> {
    let server = Server::start().await;
    let (outbox, seen) = outbox("billing", sink(&server.url("/200"))).await;
    let messages = (0..count).map(|n| Envelope::new("order.paid", format!("{{\"order\":{n}}}")));
    publish(&outbox, messages.collect()).await;
    outbox.flush().await.unwrap();
    assert_eq!(server.requests().len(), count as usize);
    let seen = seen.lock().unwrap();
    seen.clone()
}

/// The verdict on one message.
async fn verdict(sink: &HttpSink, message: &Outgoing) -> Verdict {
    let mut verdicts = sink.publish(std::slice::from_ref(message)).await;
    assert_eq!(verdicts.len(), 1);
    verdicts.remove(0)
}

#[tokio::test]
async fn a_request_has_the_message_its_id_and_what_a_receiver_needs() {
    let server = Server::start().await;
    let (outbox, _) = outbox("to billing", sink(&server.url("/in/orders?x=1"))).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers: Headers =
        [("content-type", "application/json"), ("x-tenant", "größe"), ("traceparent", trace)]
            .into_iter()
            .collect();
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_763_500_000_250);
    let message =
        Envelope::new("order.paid", "{\"order\":7}").with_key("order-7").with_order_by("customer\n1");
    let message = message.with_headers(headers).with_occurred_at(at);
    let id = publish(&outbox, vec![message, Envelope::new("größe", "")]).await;
    assert_eq!(outbox.flush().await.unwrap(), 2);
    let requests = server.requests();
    let [paid, other] = ["order.paid", "größe"]
        .map(|kind| requests.iter().find(|request| request.header("ce-type") == Some(kind)).unwrap());
    assert_eq!((&*paid.path, &paid.body[..]), ("/in/orders", &b"{\"order\":7}"[..]));
    let id_text = id[0].to_string();
    for (name, value) in [
        ("idempotency-key", &*id_text),
        ("oncebox-id", &id_text),
        ("oncebox-kind", "order.paid"),
        ("oncebox-key", "order-7"),
        ("oncebox-order-by", "customer%0A1"),
        ("oncebox-relay", "to billing"),
        ("ce-specversion", "1.0"),
        ("ce-id", &id_text),
        ("ce-type", "order.paid"),
        ("ce-source", "/relays/to%20billing"),
        ("ce-time", "2025-11-18T21:06:40.25Z"),
        ("content-type", "application/json"),
        ("x-tenant", "größe"),
    ] {
        assert_eq!(paid.header(name), Some(value), "{name}");
    }
    let continued = paid.header("traceparent").unwrap();
    assert!(
        continued.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && continued != trace,
        "{continued}"
    );
    assert_eq!(paid.header("oncebox-replay"), None);
    assert!(paid.header("user-agent").unwrap().starts_with("oncebox/"));

    // Without anything that is optional.
    let id = id[1].to_string();
    assert_eq!((other.header("oncebox-key"), other.header("idempotency-key")), (Some(&*id), Some(&*id)));
    for absent in ["oncebox-order-by", "ce-time", "content-type"] {
        assert_eq!(other.header(absent), None, "{absent}");
    }
    assert_eq!((other.header("content-length"), &other.body[..]), (Some("0"), &b""[..]));
    let started = format!("00-{}-", id.replace('-', ""));
    assert!(other.header("traceparent").unwrap().starts_with(&started), "{other:?}");
}

#[tokio::test]
async fn a_publisher_cannot_set_the_headers_of_the_relay() {
    let server = Server::start().await;
    let configured = sink(&server.url("/")).source("/shop").header("x-tenant", "ours").unwrap();
    let (outbox, _) = outbox("billing", configured).await;
    let names = [
        "Idempotency-Key",
        "Oncebox-Id",
        "Oncebox-Kind",
        "Oncebox-Key",
        "Oncebox-Order-By",
        "Oncebox-Relay",
        "Oncebox-Replay",
        "Traceparent",
        "CE-SpecVersion",
        "CE-Id",
        "CE-Type",
        "CE-Source",
        "CE-Time",
        "X-Tenant",
        "Authorization",
        "Cookie",
        "Content-Length",
        "Transfer-Encoding",
        "Host",
        "Connection",
        "X-Other",
    ];
    let headers: Headers = names.map(|name| (name, "forged")).into_iter().collect();
    let id = publish(&outbox, vec![Envelope::new("order.paid", "{}").with_headers(headers)]).await;
    outbox.flush().await.unwrap();
    let request = server.requests().remove(0);
    let forged: Vec<&str> = request
        .headers
        .iter()
        .filter(|(_, value)| value.as_bytes() == b"forged")
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(forged, ["x-other"]);
    assert_eq!(request.header("idempotency-key"), Some(&*id[0].to_string()));
    assert_eq!((request.header("ce-source"), request.header("x-tenant")), (Some("/shop"), Some("ours")));
    assert_eq!(&request.body[..], b"{}");
}

#[tokio::test]
async fn a_replay_is_marked_and_has_the_same_id() {
    let server = Server::start().await;
    let (outbox, _) = outbox("billing", sink(&server.url("/"))).await;
    publish(&outbox, vec![Envelope::new("order.paid", "{}")]).await;
    outbox.flush().await.unwrap();
    let ann = Operator::new("ann").unwrap();
    outbox.operators().replay("billing", ReplayFrom::Beginning, &ann).await.unwrap();
    outbox.flush().await.unwrap();
    let requests = server.requests();
    let [first, again] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!((first.header("oncebox-replay"), again.header("oncebox-replay")), (None, Some("true")));
    assert_eq!(first.header("idempotency-key"), again.header("idempotency-key"));
    let trace = |request: &crate::server::Request| request.header("traceparent").unwrap()[..35].to_owned();
    assert_eq!(trace(first), trace(again), "all copies share a trace");
}

#[tokio::test]
async fn each_response_has_its_verdict() {
    let server = Server::start().await;
    let message = outgoing(1).await.remove(0);
    for (status, expected) in [
        (200, "confirmed"),
        (201, "confirmed"),
        (202, "confirmed"),
        (204, "confirmed"),
        (408, "unknown"),
        (425, "unknown"),
        (429, "unknown"),
        (502, "unknown"),
        (503, "unknown"),
        (504, "unknown"),
        (400, "permanent"),
        (401, "permanent"),
        (404, "permanent"),
        (410, "permanent"),
        (413, "permanent"),
        (422, "permanent"),
        (302, "after 7s"),
        (304, "after 7s"),
        (409, "after 7s"),
        (500, "after 7s"),
        (501, "after 7s"),
    ] {
        let (found, error) = match verdict(&sink(&server.url(&format!("/{status}"))), &message).await {
            Verdict::Confirmed => ("confirmed".to_owned(), String::new()),
            Verdict::Unknown(error) => ("unknown".to_owned(), error.to_string()),
            Verdict::Refused(Failure::Permanent(error)) => ("permanent".to_owned(), error.to_string()),
            Verdict::Refused(Failure::After(wait, error)) => (format!("after {wait:?}"), error.to_string()),
            other => panic!("{status}: {other:?}"),
        };
        assert_eq!(found, expected, "{status}: {error}");
        let has_text = error.starts_with(&status.to_string())
            && (status == 304 || error.ends_with(": not today, maybe tomorrow"));
        assert!(expected == "confirmed" || has_text, "{error}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let server = Server::start().await;
    let message = outgoing(1).await.remove(0);
    for status in [301, 302, 307, 308] {
        let refused = verdict(&sink(&server.url(&format!("/{status}"))), &message).await;
        assert!(matches!(refused, Verdict::Refused(Failure::After(..))), "{refused:?}");
    }
    assert!(server.requests().iter().all(|request| request.path != "/200"));
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn a_connection_that_fails_is_unknown() {
    let message = outgoing(1).await.remove(0);
    // Nothing listens on a port that was free a moment ago.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let refused = verdict(&sink(&format!("http://{closed}/")), &message).await;
    assert!(
        matches!(&refused, Verdict::Unknown(error) if error.to_string().contains("refused")),
        "{refused:?}"
    );
    // A server that closes the connection without a response.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mute = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let unanswered = verdict(&sink(&mute), &message).await;
    assert!(matches!(unanswered, Verdict::Unknown(_)), "{unanswered:?}");
}

/// Nothing is installed in this process, and the server does not speak TLS.
#[tokio::test]
async fn https_needs_no_set_up_by_the_program() {
    let message = outgoing(1).await.remove(0);
    let server = Server::start().await;
    let secure = sink(&format!("https://{}/", server.address));
    let unknown = verdict(&secure, &message).await;
    assert!(
        matches!(&unknown, Verdict::Unknown(error) if error.to_string().contains("InvalidContentType")),
        "{unknown:?}"
    );
    assert!(server.requests().is_empty());
}

/// The message is not lost, and the error says what to do.
#[tokio::test]
async fn a_private_address_is_refused_before_anything_is_sent() {
    let server = Server::start().await;
    let message = outgoing(1).await.remove(0);
    let port = server.address.rsplit_once(':').unwrap().1;
    for host in ["127.0.0.1", "localhost", "[::ffff:7f00:1]"] {
        let unknown = verdict(&HttpSink::new(format!("http://{host}:{port}/")).unwrap(), &message).await;
        let Verdict::Unknown(error) = unknown else { panic!("{host}: {unknown:?}") };
        let error = error.to_string();
        assert!(error.starts_with(host) && error.contains("set allow_private"), "{error}");
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn requests_of_a_wave_are_sent_together_and_have_their_own_verdicts() {
    let messages = outgoing(8).await;
    // It responds to nothing until all eight requests are there.
    let server = Server::start_with_barrier(8).await;
    let verdicts = sink(&server.url("/202")).publish(&messages).await;
    assert_eq!(verdicts.len(), 8);
    assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Confirmed)), "{verdicts:?}");
    assert_eq!(server.requests().len(), 8);
}

#[tokio::test]
async fn a_relay_has_several_requests_in_flight() {
    let server = Server::start_with_barrier(4).await;
    let (outbox, _) = outbox("billing", sink(&server.url("/"))).await;
    let messages = (0..4).map(|n| Envelope::new("order.paid", "{}").with_order_by(format!("c-{n}")));
    publish(&outbox, messages.collect()).await;
    outbox.flush().await.unwrap();
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn a_refused_message_is_parked_and_a_conflict_is_tried_again() {
    for (status, dead, tasks) in [(422, 1, 0), (409, 0, 1)] {
        let server = Server::start().await;
        let (outbox, _) = outbox("billing", sink(&server.url(&format!("/{status}")))).await;
        publish(&outbox, vec![Envelope::new("order.paid", "{}")]).await;
        outbox.flush().await.unwrap();
        let operators = outbox.operators();
        let relay = operators.handler_statuses().await.unwrap().remove(0);
        assert_eq!((relay.dead, relay.tasks), (dead, tasks), "{status}");
        let letters = operators.dead_letters(Select::all().handler("billing"), 9).await.unwrap();
        assert!(letters.iter().all(|letter| letter.error.starts_with("422")), "{letters:?}");
        outbox.health().unwrap();
    }
}

/// Nothing was confirmed since the outage, but the endpoint is there.
#[tokio::test]
async fn an_endpoint_that_refuses_is_not_down() {
    let server = Server::start_with_statuses([503, 422]).await;
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    store.migrate().await.unwrap();
    let relay = Relay::new("billing", sink(&server.url("/")));
    // A long lease: without the second response, health would report the outage for ten minutes.
    let outbox = Outbox::builder(store).relay(relay).lease(Duration::from_secs(600)).build().await.unwrap();
    publish(&outbox, vec![Envelope::new("order.paid", "{}")]).await;
    while outbox.operators().handler_statuses().await.unwrap()[0].dead == 0 {
        outbox.flush().await.unwrap();
    }
    assert_eq!(server.requests().len(), 2);
    outbox.health().unwrap();
}

/// Another process may have sent the messages meanwhile, so an old failure says nothing.
#[tokio::test]
async fn health_reports_an_outage_for_as_long_as_this_process_tries() {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    store.migrate().await.unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let relay = Relay::new("billing", sink(&format!("http://{closed}/")));
    let outbox = Outbox::builder(store).relay(relay).lease(Duration::from_secs(1)).build().await.unwrap();
    outbox.health().unwrap();
    publish(&outbox, vec![Envelope::new("order.paid", "{}")]).await;
    outbox.flush().await.unwrap();
    let error = outbox.health().unwrap_err().to_string();
    assert!(error.starts_with("the relay \"billing\" waits: ") && error.contains("refused"), "{error}");
    while outbox.health().is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_sink_that_cannot_work_is_refused() {
    for url in ["", "example.com", "ftp://example.com/", "http://", "/path"] {
        let error = HttpSink::new(url).unwrap_err().to_string();
        assert!(error.contains("write http://HOST/PATH"), "{url:?}: {error}");
    }
    let sink = HttpSink::new("https://user:secret@example.com/secret?secret").unwrap();
    for (name, value, problem) in [
        ("Oncebox-Kind", "x", "reserved"),
        ("ce-id", "x", "reserved"),
        ("host name", "x", "invalid header name"),
        ("content-length", "1", "belongs to the connection"),
        ("x-tenant", "a\nb", "invalid value of the header x-tenant"),
    ] {
        let error = sink.clone().header(name, value).unwrap_err().to_string();
        assert!(error.contains(problem), "{name}: {error}");
    }
    let with_secret = sink.header("authorization", "Bearer secret").unwrap();
    assert!(!format!("{with_secret:?}").contains("secret"), "{with_secret:?}");
}
