//! Relays in several processes, of which one is stopped or killed.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use oncebox::Outbox;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::every_store::on_every_store;
use crate::outbox_fixture::{OutboxFixture, assert_nothing_parked, is_sent, message, publish, until};
use crate::worker::LogWorker;

on_every_store!(
    a_relay_that_was_stopped_past_its_lease_changes_nothing,
    relays_that_are_killed_lose_nothing_and_keep_order,
);

const KEYS: usize = 5;
const MESSAGES: usize = 100;

/// A server to which relays of other processes send. It records keys in the order in which they come.
#[derive(Clone)]
struct LineReceiver {
    port: u16,
    received: Arc<Mutex<Vec<String>>>,
    /// Whether messages are confirmed. They are received all the same.
    is_open: watch::Sender<bool>,
}

impl LineReceiver {
    async fn start(is_open: bool) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let receiver = Self { port, received: Arc::default(), is_open: watch::Sender::new(is_open) };
        let serving = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        receiver
    }

    async fn serve(self, mut stream: TcpStream) {
        let (read, mut write) = stream.split();
        let mut keys = BufReader::new(read).lines();
        while let Ok(Some(key)) = keys.next_line().await {
            self.received.lock().unwrap().push(key);
            let _ = self.is_open.subscribe().wait_for(|is_open| *is_open).await;
            // A process that was killed does not read it.
            let _ = write.write_all(b"confirmed\n").await;
        }
    }

    fn received(&self) -> Vec<String> {
        self.received.lock().unwrap().clone()
    }

    /// Each message has come, and the first copies of each ordering key are in order.
    fn assert_complete_and_in_order(&self, messages: usize) {
        let mut seen = HashSet::new();
        let mut by_key: HashMap<String, Vec<String>> = HashMap::new();
        for key in self.received().into_iter().filter(|key| seen.insert(key.clone())) {
            let (order_by, number) = key.split_once(' ').unwrap();
            by_key.entry(order_by.to_owned()).or_default().push(number.to_owned());
        }
        assert_eq!(seen.len(), messages);
        assert!(by_key.values().all(|numbers| numbers.is_sorted()), "{by_key:?}");
    }
}

fn ordered(n: usize) -> oncebox::Envelope {
    let order_by = format!("key-{}", n % KEYS);
    message(&format!("{order_by} {n:04}")).with_order_by(order_by)
}

/// It is stopped while its messages have no verdict. Another process sends them, and all that follow. Then the first one goes on, with
/// its verdicts: what it would write is refused.
async fn a_relay_that_was_stopped_past_its_lease_changes_nothing<F: OutboxFixture>(fixture: F) {
    let receiver = LineReceiver::start(false).await;
    let (address, port) = (fixture.address(), u64::from(receiver.port));
    let outbox = Outbox::builder(fixture.store()).lanes(4).build().await.unwrap();
    publish(&fixture, &outbox, (0..MESSAGES).map(ordered).collect()).await;
    let first = LogWorker::start(&address, "relay", port, 1).await;
    until(async || receiver.received().len() >= KEYS.min(3)).await;
    let second = LogWorker::start(&address, "relay", port, 1).await;
    loop {
        first.signal("STOP").await;
        if !fixture.is_stuck().await {
            break;
        }
        // It was stopped in the middle of a write, and would keep all others waiting.
        first.signal("CONT").await;
    }
    fixture.remove_process(first.number()).await;
    receiver.is_open.send_replace(true);
    until(async || is_sent(&outbox).await).await;
    receiver.assert_complete_and_in_order(MESSAGES);
    let progress = outbox.operators().handler_statuses().await.unwrap()[0].passed;
    first.signal("CONT").await;
    let (_, [_, failed, dead, lost]) = first.stop().await;
    assert_eq!((failed, dead), (0, 0));
    assert!(lost > 0, "it was not told that its lease was lost");
    assert_eq!(second.stop().await.1[1..], [0, 0, 0]);
    receiver.assert_complete_and_in_order(MESSAGES);
    assert_eq!(outbox.operators().handler_statuses().await.unwrap()[0].passed, progress);
    assert!(is_sent(&outbox).await);
    assert_nothing_parked(&outbox).await;
}

/// Again and again, while messages are published.
async fn relays_that_are_killed_lose_nothing_and_keep_order<F: OutboxFixture>(fixture: F) {
    let receiver = LineReceiver::start(true).await;
    let (address, port) = (fixture.address(), u64::from(receiver.port));
    let outbox = Outbox::builder(fixture.store()).lanes(4).build().await.unwrap();
    let start = async || LogWorker::start(&address, "relay", port, 1).await;
    let mut relays = vec![start().await, start().await];
    let mut published = 0;
    for round in 0..6 {
        for _transaction in 0..10 {
            publish(&fixture, &outbox, (published..published + 10).map(ordered).collect()).await;
            published += 10;
        }
        let before = receiver.received().len();
        until(async || receiver.received().len() > before || is_sent(&outbox).await).await;
        let killed = relays.remove(0);
        let number = killed.number();
        killed.kill().await;
        // Its lease ends now, not in half a minute.
        fixture.remove_process(number).await;
        if round < 5 {
            relays.push(start().await);
        }
    }
    until(async || is_sent(&outbox).await).await;
    for relay in relays {
        assert_eq!(relay.stop().await.1[1..3], [0, 0]);
    }
    receiver.assert_complete_and_in_order(published);
    assert_nothing_parked(&outbox).await;
}
