//! Many messages that were published while no mover and no relay ran.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use oncebox::{Error, Outbox, OutboxStore, Outgoing, Sink, Verdict};
use oncebox_testing::{Faults, Faulty, Point};

use crate::every_store::{judged, on_every_store};
use crate::outbox_fixture::{
    OutboxFixture, RELAY, RunningOutbox, assert_nothing_parked, is_sent, message, publish, until,
};

on_every_store!(messages_that_waited_for_a_relay_are_all_sent);

/// The number of messages of one publishing transaction.
const BATCH: usize = 1_000;
/// The number of ordering keys.
const KEYS: usize = 1_000;
/// The maximum number of messages that a mover takes at once.
const MOVE: u64 = 10_000;

/// Records how many messages are left after each move.
#[derive(Clone)]
struct MoveSizes<S> {
    store: S,
    waiting: Arc<Mutex<Vec<u64>>>,
}

impl<S: OutboxStore> Faults for MoveSizes<S> {
    async fn at(&self, point: Point) -> Result<(), Error> {
        if point == Point::AfterCommit {
            let waiting = self.store.outbox_status().await?.waiting;
            self.waiting.lock().unwrap().push(waiting);
        }
        Ok(())
    }
}

/// Checks completeness and order, and keeps numbers only.
#[derive(Clone, Default)]
struct CountingReceiver(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    messages: usize,
    /// The number that each ordering key has reached.
    reached: HashMap<String, usize>,
}

impl Sink for CountingReceiver {
    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        let mut counts = self.0.lock().unwrap();
        for message in wave {
            let number: usize = message.key.to_string().parse().unwrap();
            let key = message.order_by.as_ref().unwrap().to_string();
            // The messages of a key are each KEYS apart.
            let reached = counts.reached.insert(key, number);
            assert_eq!(number, reached.map_or(number % KEYS, |reached| reached + KEYS));
            counts.messages += 1;
        }
        wave.iter().map(|_| Verdict::Confirmed).collect()
    }
}

/// In moves of a limited size.
async fn messages_that_waited_for_a_relay_are_all_sent<F: OutboxFixture>(fixture: F) {
    let messages = judged(1_000_000);
    let publisher = Outbox::builder(fixture.store()).build().await.unwrap();
    for first in (0..messages).step_by(BATCH) {
        let batch = first..(first + BATCH).min(messages);
        let numbered = batch.map(|n| message(&n.to_string()).with_order_by(format!("{}", n % KEYS)));
        publish(&fixture, &publisher, numbered.collect()).await;
    }
    let total = messages as u64;
    assert_eq!(publisher.status().await.unwrap().waiting, total);

    let sizes = MoveSizes { store: fixture.store(), waiting: Arc::default() };
    let mover = Outbox::builder(Faulty::new(fixture.store(), sizes.clone())).build().await.unwrap();
    assert_eq!(mover.flush().await.unwrap(), total);
    let waiting = sizes.waiting.lock().unwrap().clone();
    let mut before = total;
    for after in waiting {
        assert!(before - after <= MOVE, "{} messages in one move", before - after);
        before = after;
    }
    assert_eq!(before, 0);

    let receiver = CountingReceiver::default();
    let relay = oncebox::Relay::new(RELAY, receiver.clone());
    let outbox = Outbox::builder(fixture.store()).relay(relay).build().await.unwrap();
    let running = RunningOutbox::start(&outbox);
    until(async || receiver.0.lock().unwrap().messages >= messages && is_sent(&outbox).await).await;
    assert_eq!(running.stop().await.done, total);
    assert_eq!(receiver.0.lock().unwrap().messages, messages);
    assert_nothing_parked(&outbox).await;
}
