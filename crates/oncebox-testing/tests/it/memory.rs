//! The in-memory store, with effects that no transaction can take back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox_core::lease::{Lease, Leases};
use oncebox_core::store::{Store, Unit};
use oncebox_core::{
    BoxError, Envelope, ErrorKind, InFlight, Inbox, Json, Key, MemoryStore, Message, Once, Outcome,
};
use oncebox_testing::TestTime;
use oncebox_testing::{Capabilities, Fixture};

#[derive(Clone)]
pub(crate) struct Memory {
    store: MemoryStore,
    effects: Arc<Mutex<Vec<String>>>,
}

pub(crate) async fn fixture(_test: &str) -> Option<Memory> {
    Some(Memory { store: MemoryStore::in_memory(), effects: Arc::default() })
}

impl Fixture for Memory {
    type Store = MemoryStore;

    fn capabilities(&self) -> Capabilities {
        Capabilities { transactional: false, counts_live_time: false, counts_crashes: false }
    }

    fn store(&self) -> MemoryStore {
        self.store.clone()
    }

    async fn effect(&self, _lease: &mut Lease, name: &str) -> Result<(), BoxError> {
        self.effects.lock().unwrap().push(name.to_owned());
        Ok(())
    }

    async fn effects(&self, name: &str) -> u64 {
        self.effects.lock().unwrap().iter().filter(|effect| *effect == name).count() as u64
    }

    fn travel(&self, time: Duration) {
        self.store.leases().travel(time);
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Charge {
    id: String,
}

impl Message for Charge {
    const KIND: &'static str = "charge";
    type Codec = Json;
    fn key(&self) -> Option<Key> {
        Some(Key::from(&self.id))
    }
}

fn unit() -> Unit {
    Unit {
        handler: "h".into(),
        kind: "k".into(),
        key: Key::from("a").stored(),
        fingerprint: None,
        waited: Duration::ZERO,
    }
}

#[tokio::test]
async fn a_lost_lease_cannot_complete() {
    use oncebox_core::lease::LeaseClaim::{Held, Known, Ours};
    let store = MemoryStore::in_memory();
    let leases = store.leases();
    let Ours(first) = leases.claim(&unit(), Duration::from_secs(30)).await.unwrap() else { panic!() };
    assert!(matches!(leases.claim(&unit(), Duration::from_secs(30)).await.unwrap(), Held));
    leases.travel(Duration::from_secs(31));
    let Ours(second) = leases.claim(&unit(), Duration::from_secs(30)).await.unwrap() else { panic!() };
    assert!(second > first, "fences grow");
    assert!(!leases.complete(&unit(), first, None).await.unwrap(), "the first has lost its lease");
    leases.release(&unit(), first).await.unwrap();
    assert!(
        leases.complete(&unit(), second, Some(b"r")).await.unwrap(),
        "a late release took the second one's lease"
    );
    let Known(marker) = leases.claim(&unit(), Duration::from_secs(30)).await.unwrap() else { panic!() };
    assert_eq!(marker.result.as_deref(), Some(&b"r"[..]));
}

#[tokio::test]
async fn a_handler_that_overstays_its_lease_is_reported() {
    let store = MemoryStore::in_memory();
    let clock = store.leases().clone();
    let inbox = Inbox::builder(store)
        .on("h", async move |_: Charge, lease: &mut Lease| {
            assert_eq!(lease.fences().count(), 1);
            clock.travel(Duration::from_secs(3600));
            // Another process claims the lost lease, and works on it.
            clock.claim(&lost_unit(), Duration::from_secs(30)).await.map(drop)
        })
        .build()
        .await
        .unwrap();
    let report = inbox.process(Envelope::of(&Charge { id: "slow".into() }).unwrap()).await.unwrap();
    let Some(Outcome::Retry { cause, .. }) = report.outcome("h") else { panic!("{report:?}") };
    let error = cause.downcast_ref::<oncebox_core::Error>().expect("an error of ours");
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
}

fn lost_unit() -> Unit {
    Unit { handler: "h".into(), kind: "charge".into(), key: Key::from("slow").stored(), ..unit() }
}

#[tokio::test]
async fn busy_at_once_if_so_wished() {
    let store = MemoryStore::in_memory();
    let inbox = Inbox::builder(store.clone()).in_flight(InFlight::Busy).build().await.unwrap();
    let (entered, inside) = tokio::sync::oneshot::channel();
    let (leave, left) = tokio::sync::oneshot::channel::<()>();
    let first = tokio::spawn({
        let inbox = inbox.clone();
        async move {
            inbox
                .once("charge", "k", async |_: &mut Lease| -> Result<u8, oncebox_core::Error> {
                    let _ = entered.send(());
                    let _ = left.await;
                    Ok(7)
                })
                .await
        }
    });
    inside.await.unwrap();
    let body = async |_: &mut Lease| -> Result<u8, oncebox_core::Error> { Ok(8) };
    let second = inbox.once("charge", "k", body).await;
    assert_eq!(second.unwrap_err().kind(), ErrorKind::Busy);
    leave.send(()).unwrap();
    assert_eq!(first.await.unwrap().unwrap(), Once::Fresh(7));
    assert_eq!(inbox.once("charge", "k", body).await.unwrap(), Once::Replayed(7));
    assert_eq!(MemoryStore::GUARANTEE.to_string(), "effectively once");
}
