//! An inbox consumes a queue while its connections are closed again and again.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox_core::lease::Lease;
use oncebox_core::{Failure, Inbox, Json, MemoryStore, Message, Outgoing, Sink, Verdict};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::client::{Broker, LONG};

const MESSAGES: usize = 2000;

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    n: usize,
}

impl Message for Order {
    const KIND: &'static str = "order";
    type Codec = Json;
}

/// How often each handler took effect, and which ones have failed once.
#[derive(Default)]
struct Effects {
    counts: BTreeMap<usize, u32>,
    failed: HashSet<usize>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_takes_effect_once_however_often_connections_are_lost() {
    let test = "each_message_takes_effect_once_however_often_connections_are_lost";
    let Some(broker) = Broker::fresh(test).await else { return };
    let effects: Arc<Mutex<Effects>> = Arc::default();
    let handled = effects.clone();
    let inbox = Inbox::builder(MemoryStore::in_memory())
        .on("orders", async move |order: Order, _: &mut Lease| {
            let mut effects = handled.lock().unwrap();
            if order.n == 13 {
                return Err(Failure::permanent("an unlucky order"));
            }
            if order.n % 50 == 1 && effects.failed.insert(order.n) {
                return Err(Failure::from("a failure that passes"));
            }
            *effects.counts.entry(order.n).or_default() += 1;
            Ok(())
        })
        .build()
        .await
        .unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let consumer = inbox.consume(broker.source()).prefetch(100);
    let consuming = tokio::spawn(consumer.run(async move { _ = stopped.await }));

    let sink = broker.rabbit.exchange("").routing_key("orders").unwrap();
    let mut left: Vec<Outgoing> =
        (0..MESSAGES).map(|n| Outgoing::new("order", serde_json::to_vec(&Order { n }).unwrap())).collect();
    let mut closed = 0;
    let publishing = async {
        while !left.is_empty() {
            let wave = left.split_off(left.len().saturating_sub(250));
            let verdicts = sink.publish(&wave).await;
            // As a relay does: what is not known to be stored is sent again. The queue may not be there yet.
            let again = wave.into_iter().zip(verdicts);
            let again = again.filter(|(_, verdict)| !matches!(verdict, Verdict::Confirmed));
            let before = left.len();
            left.extend(again.map(|(message, _)| message));
            if left.len() > before {
                sleep(Duration::from_millis(50)).await;
            } else if closed < 4 {
                closed += 1;
                broker.vhost.ctl(&["close_all_connections", "maintenance"]).await.unwrap();
            }
        }
    };
    timeout(LONG, publishing).await.expect("everything is published");
    let done = async {
        while effects.lock().unwrap().counts.len() < MESSAGES - 1 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, done).await.expect("everything is handled");
    stop.send(()).unwrap();
    let report = timeout(LONG, consuming).await.unwrap().unwrap().unwrap();
    let counts = std::mem::take(&mut effects.lock().unwrap().counts);
    let repeated: Vec<_> = counts.iter().filter(|(_, count)| **count != 1).collect();
    assert!(repeated.is_empty(), "{repeated:?}");
    assert!(report.retried >= 1 && report.rejected >= 1, "{report:?}");

    // The client of this test has lost its connection too.
    let client = crate::client::Client::connect(&broker.vhost.url()).await;
    client.until_count("orders", 0).await;
    let dead = client.read("orders.dead").await;
    assert!(dead.header("oncebox-error").unwrap().contains("an unlucky order"));
    assert_eq!(dead.body, b"{\"n\":13}");
}
