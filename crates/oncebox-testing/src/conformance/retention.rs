//! Retention: expired markers are deleted, the others are kept.

use std::time::Duration;

use oncebox_core::store::{Claims, Inspect, Store, Upkeep};
use oncebox_core::{Envelope, Inbox, Key, Outcome, Reply, Retention};

use crate::conformance::{Fixture, Sample, unit};

type Conn<F> = <<F as Fixture>::Store as Store>::Conn;

const PERIOD: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The inbox's own timer stays out of the way: time moves by the test's hand.
const RETENTION: Retention =
    Retention::new().period(PERIOD).automatic(false).every(Duration::from_secs(3600)).batch(100);
const TOLERANCE: Duration = Duration::from_secs(3600);

/// Lets time pass with a live process.
async fn live_for<F: Fixture>(fixture: &F, time: Duration) {
    let store = fixture.store();
    // Heartbeats further apart than the tolerance would count as downtime.
    let step = TOLERANCE / 2;
    let mut left = time;
    store.beat(TOLERANCE).await.unwrap();
    while !left.is_zero() {
        let now = left.min(step);
        fixture.travel(now);
        store.beat(TOLERANCE).await.unwrap();
        left -= now;
    }
}

/// Old markers go with their results, in bounded batches; younger ones stay.
pub async fn a_sweep_deletes_what_is_due_in_bounded_batches<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let inbox = Inbox::builder(store.clone())
        .retention(RETENTION)
        .on("h", async |sample: Sample, _: &mut Conn<F>| Reply(sample.id))
        .build()
        .await
        .unwrap();
    let old: Vec<_> = (0..250).map(|n| Key::from(n).stored()).collect();
    store.import_processed("h", "sample", &old).await.unwrap();
    inbox.call::<String, _>("h", &Sample::new("old")).await.unwrap();
    live_for(&fixture, PERIOD / 2).await;
    inbox.call::<String, _>("h", &Sample::new("young")).await.unwrap();
    assert_eq!(inbox.sweep().await.unwrap().deleted, 0, "nothing is due yet");

    live_for(&fixture, PERIOD / 2 + Duration::from_secs(60)).await;
    let report = inbox.sweep().await.unwrap();
    assert_eq!((report.deleted, report.batches), (251, 3));
    assert!(store.marker(&unit("h", "sample", "old")).await.unwrap().is_none());
    assert!(store.marker(&unit("h", "sample", "young")).await.unwrap().is_some());
    // Had its old result stayed, the second run could not store one.
    let again = inbox.call::<String, _>("h", &Sample::new("old")).await.unwrap();
    assert!(!again.is_replayed());
    assert!(inbox.call::<String, _>("h", &Sample::new("young")).await.unwrap().is_replayed());
}

/// Nothing expires while no process is alive: the broker may still hold messages that were handled before the stop.
pub async fn downtime_expires_nothing<F: Fixture>(fixture: F) {
    if !fixture.capabilities().counts_live_time {
        return;
    }
    let inbox = Inbox::builder(fixture.store())
        .retention(RETENTION)
        .on("h", {
            let fixture = fixture.clone();
            async move |sample: Sample, conn: &mut Conn<F>| fixture.effect(conn, &sample.id).await
        })
        .build()
        .await
        .unwrap();
    live_for(&fixture, PERIOD * 2).await;
    let deliver = || inbox.process(Envelope::of(&Sample::new("kept")).unwrap());
    assert!(matches!(deliver().await.unwrap().outcome("h"), Some(Outcome::Done)));

    // No heartbeat in between: this is downtime.
    fixture.travel(PERIOD * 2);
    live_for(&fixture, Duration::from_secs(60)).await;
    assert_eq!(inbox.sweep().await.unwrap().deleted, 0);
    assert!(matches!(deliver().await.unwrap().outcome("h"), Some(Outcome::Duplicate)));
    assert_eq!(fixture.effects("kept").await, 1);
}

/// During a sweep, messages with younger markers are still duplicates.
pub async fn a_duplicate_during_a_sweep_is_still_a_duplicate<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let inbox = Inbox::builder(store.clone())
        .retention(RETENTION.batch(50))
        .on("h", {
            let fixture = fixture.clone();
            async move |sample: Sample, conn: &mut Conn<F>| {
                fixture.effect(conn, "swept").await.map(|()| drop(sample))
            }
        })
        .build()
        .await
        .unwrap();
    let old: Vec<_> = (0..2_000).map(|n| Key::from(format!("old-{n}")).stored()).collect();
    store.import_processed("h", "sample", &old).await.unwrap();
    live_for(&fixture, PERIOD + Duration::from_secs(60)).await;
    let young = |n: u32| Envelope::of(&Sample::new(&format!("young-{n}"))).unwrap();
    for n in 0..50 {
        inbox.process(young(n)).await.unwrap();
    }
    let sweep = tokio::spawn({
        let inbox = inbox.clone();
        async move { inbox.sweep().await }
    });
    for n in 0..50 {
        let report = inbox.process(young(n)).await.unwrap();
        assert!(matches!(report.outcome("h"), Some(Outcome::Duplicate)), "{report:?}");
    }
    assert_eq!(sweep.await.unwrap().unwrap().deleted, 2_000);
    assert_eq!(fixture.effects("swept").await, 50);
}
