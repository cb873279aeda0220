//! The messages that a handler publishes: one set for each effect, whatever happens around it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oncebox::store::ReplayFrom;
use oncebox::{Attempt, BoxError, Envelope, Inbox, Message, Outbox, Publish, Relay};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::every_store::{Conn, OrderPaid, envelope, on_every_store};
use crate::outbox_fixture::{OutboxFixture, RELAY, Receiver, RunningOutbox, is_sent, until};

on_every_store!(
    a_duplicate_a_failed_neighbour_and_a_replay_publish_none_none_and_new_messages,
    a_run_that_lost_its_lease_publishes_nothing_further,
);

/// It has no key, so that each copy of it would be sent.
#[derive(Serialize, Deserialize, Message)]
#[message(kind = "output")]
struct Output {
    order_id: String,
}

fn outputs(receiver: &Receiver) -> Relay {
    receiver.relay().kinds(["output"])
}

/// The number of outputs so far: all are sent.
async fn sent<F: OutboxFixture>(outbox: &Outbox<F::Store>, receiver: &Receiver) -> usize {
    until(async || is_sent(outbox).await).await;
    receiver.confirmed().len()
}

async fn a_duplicate_a_failed_neighbour_and_a_replay_publish_none_none_and_new_messages<F: OutboxFixture>(
    fixture: F,
) {
    let receiver = Receiver::confirming();
    let outbox = Outbox::builder(fixture.store()).lanes(1).relay(outputs(&receiver)).build().await.unwrap();
    let handler = async |order: OrderPaid, Attempt(attempt): Attempt, _: &mut Conn<F>| match order
        .order_id
        .starts_with("bad")
        && attempt == 1
    {
        true => Err(BoxError::from("at first")),
        false => Ok(Publish::new(&Output { order_id: order.order_id })),
    };
    let retry =
        oncebox::Retry::new().first_delay(std::time::Duration::ZERO).max_delay(std::time::Duration::ZERO);
    let builder = Inbox::builder(fixture.store()).stored().retry(retry).outbox(&outbox);
    let inbox = builder.on("h", handler).build().await.unwrap();
    let running = RunningOutbox::start(&outbox);
    let work = async || {
        inbox.work_until_idle().await.unwrap();
        sent::<F>(&outbox, &receiver).await
    };

    assert!(inbox.accept(envelope("first")).await.unwrap().is_new());
    assert_eq!(work().await, 1);
    // A duplicate, accepted and published.
    assert!(inbox.accept(envelope("first")).await.unwrap().is_duplicate());
    crate::outbox_fixture::publish(&fixture, &outbox, vec![envelope("first")]).await;
    outbox.flush().await.unwrap();
    assert_eq!(work().await, 1);
    // Neighbours in one batch, of which some fail at first.
    let batch: Vec<Envelope> =
        (0..20).map(|n| envelope(&format!("{}-{n}", if n % 4 == 1 { "bad" } else { "good" }))).collect();
    for accept in inbox.accept_all(batch).await {
        assert!(accept.unwrap().is_new());
    }
    assert_eq!(work().await, 21);
    // A replay repeats the effect, and its message with a new id.
    let ann = oncebox_testing::operator("ann");
    inbox.operators().replay("h", ReplayFrom::Beginning, &ann).await.unwrap();
    assert_eq!(work().await, 42);
    let ids: std::collections::HashSet<_> = receiver.copies().iter().map(|copy| copy.id).collect();
    assert_eq!(ids.len(), 42);
    // A replay of the relay sends the same messages again.
    outbox.operators().replay(RELAY, ReplayFrom::Beginning, &ann).await.unwrap();
    assert_eq!(work().await, 84);
    let copies = receiver.copies();
    assert!(copies[42..].iter().all(|copy| ids.contains(&copy.id) && copy.is_replay));
    running.stop().await;
}

/// The message runs again in its place, and only that run publishes.
async fn a_run_that_lost_its_lease_publishes_nothing_further<F: OutboxFixture>(fixture: F) {
    let receiver = Receiver::confirming();
    let outbox = Outbox::builder(fixture.store()).relay(outputs(&receiver)).build().await.unwrap();
    let is_first = Arc::new(AtomicBool::new(true));
    let (begun, has_begun) = oneshot::channel::<()>();
    let (go, may_go) = oneshot::channel::<()>();
    let gate = Arc::new(std::sync::Mutex::new(Some((begun, may_go))));
    let handler = move |order: OrderPaid| {
        let gate = is_first.swap(false, Ordering::SeqCst).then(|| gate.lock().unwrap().take()).flatten();
        async move {
            if let Some((begun, may_go)) = gate {
                let _ = begun.send(());
                let _ = may_go.await;
            }
            Ok::<_, BoxError>(Publish::new(&Output { order_id: order.order_id }))
        }
    };
    let builder = Inbox::builder(fixture.store()).stored().outbox(&outbox);
    let inbox = builder.on_with("h", handler, |options| options.detached()).build().await.unwrap();
    assert!(inbox.accept(envelope("o")).await.unwrap().is_new());
    let working = tokio::spawn({
        let inbox = inbox.clone();
        async move { inbox.work_until_idle().await }
    });
    has_begun.await.unwrap();
    // Its lease ends: to the others this process has crashed.
    fixture.remove_process(std::process::id()).await;
    // That was done by a process whose clock is ahead.
    fixture.travel(std::time::Duration::from_secs(60));
    go.send(()).unwrap();
    let report = working.await.unwrap().unwrap();
    until(async || {
        inbox.work_until_idle().await.unwrap();
        outbox.flush().await.unwrap();
        is_sent(&outbox).await && receiver.received() > 0
    })
    .await;
    assert_eq!(report.lease_lost, 1, "{report:?}");
    inbox.work_until_idle().await.unwrap();
    outbox.flush().await.unwrap();
    assert_eq!(receiver.confirmed().len(), 1);
}
