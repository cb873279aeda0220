//! Retention can be tested without waiting for it.

use std::time::Duration;

use oncebox_core::{Envelope, Retention};
use oncebox_sqlite::SqliteStore;
use oncebox_testing::{Harness, TestTime};
use sqlx::SqliteConnection;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn handle(_: Envelope, _: &mut SqliteConnection) {}

async fn harness() -> Harness<SqliteStore> {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    store.migrate().await.unwrap();
    let retention = Retention::default().automatic(false);
    Harness::new(store, |inbox| inbox.retention(retention).on_raw("h", ["paid"], handle)).await.unwrap()
}

fn paid() -> Envelope {
    Envelope::new("paid", "{}").with_key("o-1")
}

#[tokio::test]
async fn after_its_retention_a_key_is_forgotten() {
    let harness = harness().await;
    assert_eq!(harness.deliver_envelope(paid()).await.unwrap().done("h"), 1);

    harness.travel(6 * DAY).await.unwrap();
    assert_eq!(harness.inbox().sweep().await.unwrap().deleted, 0);
    assert_eq!(harness.deliver_envelope(paid()).await.unwrap().duplicates("h"), 1);

    harness.travel(2 * DAY).await.unwrap();
    assert_eq!(harness.inbox().sweep().await.unwrap().deleted, 1);
    assert_eq!(harness.deliver_envelope(paid()).await.unwrap().done("h"), 1);
}

#[tokio::test]
async fn time_without_a_process_expires_nothing() {
    let harness = harness().await;
    harness.deliver_envelope(paid()).await.unwrap();
    harness.inbox().store().travel(30 * DAY);
    assert_eq!(harness.inbox().sweep().await.unwrap().deleted, 0);
    assert_eq!(harness.deliver_envelope(paid()).await.unwrap().duplicates("h"), 1);
}
