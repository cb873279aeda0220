//! What the broker in memory does beyond the suites: order, counts, faults, time.

use std::time::Duration;

use oncebox_core::source::{Decision, Received, ReceivedMessage, Room, Session, Settled, Settler, Source};
use oncebox_core::{ErrorKind, Inbox, Json, Key, MemoryStore, Message, Outbox, Relay, Settlement};
use oncebox_sqlite::SqliteStore;
use oncebox_testing::{MemoryBroker, MemoryReceipt, MemorySession};

const ROOM: Room = Room { messages: 100, bytes: 1 << 20 };
const ONE: Room = Room { messages: 1, ..ROOM };

fn publish(broker: &MemoryBroker, bodies: &[&str]) {
    for body in bodies {
        broker.publish_raw("orders", ReceivedMessage::new(*body)).unwrap();
    }
}

async fn open(source: &mut impl Source<Session = MemorySession>, messages: usize) -> MemorySession {
    source.open(Room { messages, ..ROOM }).await.unwrap().session
}

/// Receives what is there.
async fn receive(session: &mut MemorySession) -> Vec<(String, MemoryReceipt)> {
    let received = session.next(ROOM).await.unwrap();
    let body = |body| String::from_utf8(body).unwrap();
    received.into_iter().map(|received| (body(received.message.body), received.receipt)).collect()
}

async fn bodies(session: &mut MemorySession) -> Vec<String> {
    receive(session).await.into_iter().map(|(body, _)| body).collect()
}

async fn settle(session: &MemorySession, receipt: MemoryReceipt, settlement: Settlement) -> Settled {
    let reason = std::sync::Arc::new(std::io::Error::other("no such order"));
    let decision = Decision { receipt, settlement, reason: Some(reason) };
    session.settler().settle(vec![decision]).await.swap_remove(0)
}

#[tokio::test]
async fn unsettled_messages_return_to_the_front_in_their_order() {
    let broker = MemoryBroker::new();
    let mut orders = broker.queue("orders");
    publish(&broker, &["a", "b", "c", "d"]);
    let mut session = open(&mut orders, 3).await;
    let received = receive(&mut session).await;
    assert_eq!(broker.waiting("orders").len(), 1);
    settle(&session, received[1].1, Settlement::Ack).await;
    broker.end_sessions("orders");
    publish(&broker, &["e"]);
    let mut session = open(&mut orders, 10).await;
    let mut order = Vec::new();
    while order.len() < 4 {
        // Those that come back are sent one at a time.
        for (body, receipt) in receive(&mut session).await {
            order.push(body);
            settle(&session, receipt, Settlement::Ack).await;
        }
    }
    assert_eq!(order, ["a", "c", "d", "e"]);
}

/// How often a message was delivered, and how often without a settlement.
fn counts(received: &[Received<MemoryReceipt>]) -> Vec<(Option<u32>, u32)> {
    received.iter().map(|received| (received.message.attempt, received.message.abandoned)).collect()
}

/// The message that crashes a process is among them, and only one of them does. So they come back one at a time.
#[tokio::test]
async fn what_was_sent_ahead_counts_as_delivered() {
    let broker = MemoryBroker::new();
    let mut orders = broker.queue("orders");
    publish(&broker, &["a", "b"]);
    let mut session = open(&mut orders, 10).await;
    session.next(ONE).await.unwrap();
    drop(session);
    let mut session = open(&mut orders, 10).await;
    for _ in 0..2 {
        let again = session.next(ROOM).await.unwrap();
        assert_eq!(counts(&again), [(Some(2), 1)]);
        settle(&session, again[0].receipt, Settlement::Ack).await;
    }
    assert_eq!(broker.status("orders").backlog(), 0);
}

#[tokio::test]
async fn a_closed_session_has_crashed_nothing() {
    let broker = MemoryBroker::new();
    let mut orders = broker.queue("orders");
    publish(&broker, &["a", "b"]);
    let mut session = open(&mut orders, 10).await;
    session.next(ONE).await.unwrap();
    session.close().await;
    let mut session = open(&mut orders, 10).await;
    assert_eq!(counts(&session.next(ROOM).await.unwrap()), [(Some(2), 0), (Some(1), 0)]);
}

#[tokio::test(start_paused = true)]
async fn the_clock_is_tokios_and_can_be_moved() {
    let broker = MemoryBroker::new();
    let mut orders = broker.queue("orders");
    publish(&broker, &["a"]);
    let mut session = open(&mut orders, 10).await;
    let later = Settlement::Retry { after: Some(Duration::from_secs(3600)) };
    let receipt = receive(&mut session).await[0].1;
    settle(&session, receipt, later).await;
    assert_eq!(broker.status("orders").delayed, 1);
    broker.advance(Duration::from_secs(3600));
    assert_eq!(broker.status("orders").delayed, 0);
    let receipt = receive(&mut session).await[0].1;
    settle(&session, receipt, later).await;
    let before = broker.now();
    assert_eq!(bodies(&mut session).await, ["a"], "paused time has moved on");
    assert_eq!(broker.now() - before, Duration::from_secs(3600));
}

#[tokio::test]
async fn a_rejected_message_keeps_its_reason() {
    let broker = MemoryBroker::new();
    let mut orders = broker.queue("orders");
    publish(&broker, &["a"]);
    let mut session = open(&mut orders, 10).await;
    let receipt = receive(&mut session).await[0].1;
    settle(&session, receipt, Settlement::Reject).await;
    let rejected = broker.rejected("orders");
    assert_eq!((rejected.len(), rejected[0].reason.as_deref()), (1, Some("no such order")));
    assert_eq!(rejected[0].message.body, b"a");
    assert_eq!((broker.status("orders").rejected, broker.status("orders").backlog()), (1, 0));
}

#[tokio::test]
async fn a_lost_settlement_leaves_its_message_until_the_session_ends() {
    let broker = MemoryBroker::new();
    let mut orders = broker.queue("orders");
    publish(&broker, &["a", "b"]);
    let mut session = open(&mut orders, 10).await;
    let received = receive(&mut session).await;
    broker.lose_settlements(1);
    assert!(matches!(settle(&session, received[0].1, Settlement::Ack).await, Settled::Unknown(_)));
    assert!(matches!(settle(&session, received[1].1, Settlement::Ack).await, Settled::Done));
    assert_eq!(broker.status("orders").unsettled, 1);
    drop(session);
    assert_eq!(bodies(&mut open(&mut orders, 10).await).await, ["a"]);
}

#[tokio::test]
async fn a_paused_queue_delivers_nothing_until_it_is_resumed() {
    let broker = MemoryBroker::new();
    let mut orders = broker.queue("orders");
    let mut session = open(&mut orders, 10).await;
    broker.pause("orders");
    publish(&broker, &["a"]);
    assert_eq!(broker.status("orders").waiting, 1);
    broker.resume("orders");
    assert_eq!(bodies(&mut session).await, ["a"]);
}

#[tokio::test]
async fn the_second_session_of_a_stream_waits_for_the_first() {
    let broker = MemoryBroker::new();
    let mut orders = broker.stream("orders");
    let mut first = open(&mut orders, 10).await;
    let mut second = open(&mut orders, 10).await;
    publish(&broker, &["a", "b"]);
    let received = receive(&mut first).await;
    settle(&first, received[1].1, Settlement::Ack).await;
    let retry = settle(&first, received[0].1, Settlement::Retry { after: None }).await;
    assert!(matches!(retry, Settled::Unknown(_)), "a stream cannot go back for one message: {retry:?}");
    drop(first);
    assert_eq!(bodies(&mut second).await, ["a", "b"]);
}

#[tokio::test]
async fn errors_say_what_is_wrong() {
    let broker = MemoryBroker::new();
    let missing = broker.publish_raw("orders", ReceivedMessage::new("")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Configuration);
    assert!(missing.to_string().contains("no queue \"orders\""), "{missing}");
    let mut orders = broker.queue("orders");
    let other_kind = broker.stream("orders").open(ROOM).await.unwrap_err();
    assert!(other_kind.to_string().contains("another kind"), "{other_kind}");
    broker.stop();
    assert_eq!(orders.open(ROOM).await.unwrap_err().kind(), ErrorKind::Unavailable);
    broker.publish_raw("orders", ReceivedMessage::new("")).unwrap_err();
    broker.start();
    let mut session = open(&mut orders, 10).await;
    broker.delete_queue("orders");
    let deleted = session.next(ROOM).await.unwrap_err();
    assert!(deleted.to_string().contains("was deleted"), "{deleted}");
    assert_eq!(broker.status("orders").backlog(), 0);
}

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderPaid {
    id: String,
}

impl Message for OrderPaid {
    const KIND: &'static str = "order.paid";
    type Codec = Json;

    fn key(&self) -> Option<Key> {
        Some(Key::from(&self.id))
    }
}

/// The way of a message between two services: outbox, relay, broker, inbox. A lost confirm doubles it on the way.
#[tokio::test]
async fn a_message_takes_effect_once_from_outbox_to_inbox() {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    store.migrate().await.unwrap();
    let broker = MemoryBroker::new();
    let orders = broker.queue("orders");
    let relay = Relay::new("orders", broker.sink("orders"));
    let outbox = Outbox::builder(store.clone()).relay(relay).build().await.unwrap();
    broker.lose_confirms(1);
    let mut tx = store.pool().begin().await.unwrap();
    outbox.publish(&mut *tx, &OrderPaid { id: "o-1".into() }).await.unwrap();
    tx.commit().await.unwrap();
    while broker.status("orders").backlog() < 2 {
        outbox.flush().await.unwrap();
    }

    let (received, mut effects) = tokio::sync::mpsc::unbounded_channel();
    let inbox = Inbox::builder(MemoryStore::in_memory())
        .on("ledger", async move |order: OrderPaid, _: &mut oncebox_core::lease::Lease| {
            received.send(order.id).map_err(|error| error.to_string())
        })
        .build()
        .await
        .unwrap();
    let done = broker.clone();
    let shutdown = async move { _ = done.until("orders", |queue| queue.backlog() == 0).await };
    let report = inbox.consume(orders).run(shutdown).await.unwrap();
    assert_eq!(report.acknowledged, 2);
    drop(inbox);
    assert_eq!(effects.recv().await.as_deref(), Some("o-1"));
    assert_eq!(effects.recv().await, None);
}
