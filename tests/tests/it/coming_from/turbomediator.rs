//! TurboMediator: three kinds of key, cleanup, a store of one's own, cached responses, waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oncebox::lease::{Fence, Lease, LeaseClaim, Leased, Leases};
use oncebox::store::{Marker, Unit, Upkeep};
use oncebox::{
    BoxError, Envelope, Error, Inbox, Json, Key, MemoryStore, Message, Once, Outcome, Reply, Retention,
    StoredKey,
};
use oncebox_testing::Fixture;
use serde::{Deserialize, Serialize};

use crate::every_store::{Conn, OrderPaid, envelope, on_every_store};

on_every_store!(
    a_key_that_the_message_computes,
    a_key_from_a_property,
    a_key_from_the_content,
    a_cached_response_is_returned_to_duplicates,
    a_concurrent_request_waits_for_the_first_and_gets_its_response,
    recording_cannot_fail_after_the_handler_has_succeeded,
    cleanup_removes_records_older_than_the_retention,
);

/// The key by implementing the trait.
#[derive(Serialize, Deserialize)]
struct ProcessPayment {
    payment_id: u64,
}

impl Message for ProcessPayment {
    const KIND: &'static str = "payment.process";
    type Codec = Json;
    fn key(&self) -> Option<Key> {
        Some(Key::from(format!("payment:{}", self.payment_id)))
    }
}

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "order.process", key = "order_id")]
struct ProcessOrder {
    order_id: String,
    data: String,
}

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "data.import", key = content)]
struct ImportData {
    source: String,
    batch_number: u32,
}

async fn counting<M: Message, F: Fixture>(fixture: &F) -> Inbox<F::Store> {
    let effects = fixture.clone();
    let handler = async move |_: M, conn: &mut Conn<F>| effects.effect(conn, M::KIND).await;
    Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap()
}

async fn a_key_that_the_message_computes<F: Fixture>(fixture: F) {
    let inbox = counting::<ProcessPayment, F>(&fixture).await;
    for payment_id in [1, 1, 2] {
        inbox.process(Envelope::of(&ProcessPayment { payment_id }).unwrap()).await.unwrap();
    }
    assert_eq!(fixture.effects("payment.process").await, 2);
    assert!(inbox.marker("h", "payment.process", "payment:1").await.unwrap().is_some());
}

async fn a_key_from_a_property<F: Fixture>(fixture: F) {
    let inbox = counting::<ProcessOrder, F>(&fixture).await;
    for (order_id, data) in [("o-1", "first"), ("o-1", "second"), ("o-2", "first")] {
        let message = ProcessOrder { order_id: order_id.into(), data: data.into() };
        inbox.process(Envelope::of(&message).unwrap()).await.unwrap();
    }
    assert_eq!(fixture.effects("order.process").await, 2);
}

async fn a_key_from_the_content<F: Fixture>(fixture: F) {
    let inbox = counting::<ImportData, F>(&fixture).await;
    // Another order of members and other white space are the same content.
    for body in [
        r#"{"source":"crm","batch_number":1}"#,
        r#"{ "batch_number": 1, "source": "crm" }"#,
        r#"{"source":"crm","batch_number":2}"#,
    ] {
        inbox.process(Envelope::new("data.import", body)).await.unwrap();
    }
    let typed = ImportData { source: "crm".into(), batch_number: 1 };
    inbox.process(Envelope::of(&typed).unwrap()).await.unwrap();
    assert_eq!(fixture.effects("data.import").await, 2);
}

fn receipts<F: Fixture>(
    fixture: &F,
    pause: Duration,
) -> impl oncebox::Handler<F::Store, (oncebox::One, OrderPaid, Result<Reply<u32>, BoxError>), Input = OrderPaid>
{
    let (fixture, receipts) = (fixture.clone(), Arc::new(AtomicU32::new(0)));
    async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<Reply<u32>, BoxError> {
        fixture.effect(conn, &order.order_id).await?;
        tokio::time::sleep(pause).await;
        Ok(Reply(receipts.fetch_add(1, Ordering::SeqCst)))
    }
}

async fn a_cached_response_is_returned_to_duplicates<F: Fixture>(fixture: F) {
    let handler = receipts(&fixture, Duration::ZERO);
    let inbox = Inbox::builder(fixture.store()).on("charge", handler).build().await.unwrap();
    let call = |id: &str| inbox.call_envelope::<u32>("charge", envelope(id));
    assert_eq!(call("a").await.unwrap(), Once::Fresh(0));
    assert_eq!(call("b").await.unwrap(), Once::Fresh(1));
    assert_eq!(call("a").await.unwrap(), Once::Replayed(0));
    assert_eq!(fixture.effects("a").await, 1);
}

async fn a_concurrent_request_waits_for_the_first_and_gets_its_response<F: Fixture>(fixture: F) {
    let handler = receipts(&fixture, Duration::from_millis(50));
    let inbox = Inbox::builder(fixture.store()).on("charge", handler).build().await.unwrap();
    let call = || inbox.call_envelope::<u32>("charge", envelope("a"));
    let (one, two, three) = tokio::join!(call(), call(), call());
    let mut answers = [one, two, three].map(Result::unwrap);
    answers.sort_by_key(Once::is_replayed);
    assert_eq!(answers, [Once::Fresh(0), Once::Replayed(0), Once::Replayed(0)]);
    assert_eq!(fixture.effects("a").await, 1);
}

/// Where the record is written after the work, a failed write lets the work happen twice. Here it is one commit.
async fn recording_cannot_fail_after_the_handler_has_succeeded<F: Fixture>(fixture: F) {
    let effects = fixture.clone();
    let harness = oncebox_testing::Harness::new(fixture.store(), |inbox| {
        inbox.on("h", async move |order: OrderPaid, conn: &mut Conn<F>| {
            effects.effect(conn, &order.order_id).await
        })
    });
    let harness = harness.await.unwrap();
    let delivered = harness.deliver_envelope(envelope("a")).crash_before_commit(3).await.unwrap();
    assert_eq!((delivered.crashes, delivered.done("h")), (3, 1));
    assert_eq!(fixture.effects("a").await, 1);
}

async fn cleanup_removes_records_older_than_the_retention<F: Fixture>(fixture: F) {
    let retention = Retention::new().period(Duration::from_secs(3600)).automatic(false);
    let handler = async |_: OrderPaid, _: &mut Conn<F>| {};
    let inbox = Inbox::builder(fixture.store()).retention(retention).on("h", handler).build().await.unwrap();
    let store = fixture.store();
    inbox.process(envelope("old")).await.unwrap();
    store.beat(Duration::from_secs(600)).await.unwrap();
    for _ in 0..10 {
        fixture.travel(Duration::from_secs(370));
        store.beat(Duration::from_secs(600)).await.unwrap();
    }
    inbox.process(envelope("new")).await.unwrap();
    let report = inbox.sweep().await.unwrap();
    assert_eq!((report.deleted, report.batches), (1, 1));
    assert!(inbox.markers("old").await.unwrap().is_empty());
    assert_eq!(inbox.markers("new").await.unwrap().len(), 1);
}

/// A store of one's own: here one that forwards to memory and counts.
#[derive(Clone)]
struct Counting {
    memory: MemoryStore,
    claims: Arc<AtomicU32>,
}

impl Leases for Counting {
    const NAME: &'static str = "counting";

    async fn claim(&self, unit: &Unit, lease: Duration) -> Result<LeaseClaim, Error> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        self.memory.leases().claim(unit, lease).await
    }

    async fn complete(&self, unit: &Unit, fence: Fence, result: Option<&[u8]>) -> Result<bool, Error> {
        self.memory.leases().complete(unit, fence, result).await
    }

    async fn release(&self, unit: &Unit, fence: Fence) -> Result<(), Error> {
        self.memory.leases().release(unit, fence).await
    }

    async fn wait(&self, unit: &Unit, max: Duration) {
        self.memory.leases().wait(unit, max).await;
    }

    async fn marker(&self, unit: &Unit) -> Result<Option<Marker>, Error> {
        self.memory.leases().marker(unit).await
    }

    async fn import_processed(&self, handler: &str, kind: &str, keys: &[StoredKey]) -> Result<u64, Error> {
        self.memory.leases().import_processed(handler, kind, keys).await
    }

    async fn now_ms(&self) -> Result<i64, Error> {
        self.memory.leases().now_ms().await
    }

    async fn sweep(&self, before_ms: i64, limit: u32) -> Result<u64, Error> {
        self.memory.leases().sweep(before_ms, limit).await
    }
}

#[tokio::test]
async fn a_custom_store_can_be_used() {
    let counting = Counting { memory: MemoryStore::in_memory(), claims: Arc::default() };
    let inbox = Inbox::builder(Leased::new(counting.clone()))
        .on("h", async |_: OrderPaid, _: &mut Lease| {})
        .build()
        .await
        .unwrap();
    for expected in ["done", "duplicate"] {
        let report = inbox.process(envelope("a")).await.unwrap();
        assert_eq!(report.outcome("h").map(Outcome::name), Some(expected));
    }
    assert_eq!(counting.claims.load(Ordering::SeqCst), 2);
}
