//! Copies that arrive while the first one runs.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use oncebox::{BoxError, Envelope, InFlight, Inbox, InboxBuilder, Outcome};
use oncebox_testing::Fixture;
use tokio::sync::{Semaphore, mpsc};

use crate::every_store::{Conn, OrderPaid, envelope, on_every_store};

on_every_store!(
    a_copy_is_busy_at_once_if_so_wished,
    a_copy_is_busy_after_the_waiting_time,
    a_copy_shares_the_failure_of_the_first,
    a_copy_with_another_body_is_a_key_reuse,
    other_keys_are_not_busy,
    a_copy_goes_next_when_the_first_caller_goes_away,
);

/// A handler that says when it has begun and ends when it is let go.
struct HeldHandler {
    begun: mpsc::UnboundedReceiver<String>,
    let_go: Arc<Semaphore>,
    runs: Arc<AtomicU32>,
}

async fn held<F: Fixture>(
    fixture: &F,
    fails: bool,
    options: impl FnOnce(InboxBuilder<F::Store>) -> InboxBuilder<F::Store>,
) -> (Inbox<F::Store>, HeldHandler) {
    let (begins, begun) = mpsc::unbounded_channel();
    let held = HeldHandler { begun, let_go: Arc::new(Semaphore::new(0)), runs: Arc::default() };
    let (effects, let_go, runs) = (fixture.clone(), held.let_go.clone(), held.runs.clone());
    let handler = async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), BoxError> {
        runs.fetch_add(1, Ordering::SeqCst);
        effects.effect(conn, &order.order_id).await?;
        let _ = begins.send(order.order_id);
        let_go.acquire().await?.forget();
        if fails { Err("on purpose".into()) } else { Ok(()) }
    };
    let inbox = options(Inbox::builder(fixture.store())).on("h", handler).build().await.unwrap();
    (inbox, held)
}

fn spawn<F: Fixture>(inbox: &Inbox<F::Store>, envelope: Envelope) -> tokio::task::JoinHandle<Outcome> {
    let inbox = inbox.clone();
    tokio::spawn(async move { inbox.process(envelope).await.unwrap().outcome("h").unwrap().clone() })
}

async fn busy_while_the_first_runs<F: Fixture>(fixture: F, policy: InFlight) {
    let (inbox, mut held) = held(&fixture, false, |inbox| inbox.in_flight(policy)).await;
    let first = spawn::<F>(&inbox, envelope("a"));
    held.begun.recv().await.unwrap();
    let copy = spawn::<F>(&inbox, envelope("a")).await.unwrap();
    assert!(matches!(copy, Outcome::Busy), "{copy:?}");
    held.let_go.add_permits(1);
    assert!(matches!(first.await.unwrap(), Outcome::Done));
    let copy = spawn::<F>(&inbox, envelope("a")).await.unwrap();
    assert!(matches!(copy, Outcome::Duplicate), "{copy:?}");
    assert_eq!(fixture.effects("a").await, 1);
}

async fn a_copy_is_busy_at_once_if_so_wished<F: Fixture>(fixture: F) {
    busy_while_the_first_runs(fixture, InFlight::Busy).await;
}

async fn a_copy_is_busy_after_the_waiting_time<F: Fixture>(fixture: F) {
    busy_while_the_first_runs(fixture, InFlight::Wait { max: Duration::from_millis(50) }).await;
}

async fn a_copy_shares_the_failure_of_the_first<F: Fixture>(fixture: F) {
    let (inbox, mut held) = held(&fixture, true, |inbox| inbox).await;
    let first = spawn::<F>(&inbox, envelope("a"));
    held.begun.recv().await.unwrap();
    let mut copies = Box::pin(join_all((0..8).map(|_| inbox.process(envelope("a")))));
    // One poll brings them to the gate, where they wait.
    std::future::poll_fn(|cx| {
        assert!(copies.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    held.let_go.add_permits(1);
    assert!(matches!(first.await.unwrap(), Outcome::Retry { .. }));
    for copy in copies.await {
        assert!(matches!(copy.unwrap().outcome("h"), Some(Outcome::Retry { .. })));
    }
    assert_eq!(held.runs.load(Ordering::SeqCst), 1);
    assert_eq!(fixture.effects("a").await, 0);
}

async fn a_copy_with_another_body_is_a_key_reuse<F: Fixture>(fixture: F) {
    let (inbox, mut held) = held(&fixture, false, |inbox| inbox).await;
    let first = spawn::<F>(&inbox, envelope("a"));
    held.begun.recv().await.unwrap();
    let copy = spawn::<F>(&inbox, Envelope::new("order.paid", r#"{"order_id":"a","cents":1}"#));
    held.let_go.add_permits(2);
    assert!(matches!(first.await.unwrap(), Outcome::Done));
    assert!(matches!(copy.await.unwrap(), Outcome::KeyReuse));
    assert_eq!(fixture.effects("a").await, 1);
}

/// Not even on a store with one writer for all keys.
async fn other_keys_are_not_busy<F: Fixture>(fixture: F) {
    let (inbox, mut held) = held(&fixture, false, |inbox| inbox.in_flight(InFlight::Busy)).await;
    let first = spawn::<F>(&inbox, envelope("a"));
    held.begun.recv().await.unwrap();
    let other = spawn::<F>(&inbox, envelope("b"));
    held.let_go.add_permits(2);
    assert!(matches!(first.await.unwrap(), Outcome::Done));
    assert!(matches!(other.await.unwrap(), Outcome::Done));
}

async fn a_copy_goes_next_when_the_first_caller_goes_away<F: Fixture>(fixture: F) {
    let (inbox, mut held) = held(&fixture, false, |inbox| inbox).await;
    let first = spawn::<F>(&inbox, envelope("a"));
    held.begun.recv().await.unwrap();
    let copy = spawn::<F>(&inbox, envelope("a"));
    first.abort();
    held.begun.recv().await.unwrap();
    held.let_go.add_permits(1);
    assert!(matches!(copy.await.unwrap(), Outcome::Done));
    assert_eq!(fixture.effects("a").await, 1);
}
