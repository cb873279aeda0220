//! The inbox's own timer: signs of life, sweeps, health.

use std::time::Duration;

use oncebox::store::{Claims, Upkeep};
use oncebox::{ErrorKind, Inbox, Key, Retention};
use oncebox_testing::Fixture;

use crate::every_store::on_every_store;

on_every_store!(
    old_markers_go_by_themselves,
    nothing_is_swept_if_so_wished,
    a_failing_sweep_fails_the_health
);

const EVERY: Duration = Duration::from_millis(20);
const SHORT: Retention =
    Retention::new().period(Duration::from_secs(20)).automatic(true).every(EVERY).batch(10);

async fn marked<F: Fixture>(fixture: &F) -> F::Store {
    let store = fixture.store();
    let keys: Vec<_> = (0..25).map(|n| Key::from(n).stored()).collect();
    store.import_processed("h", "k", &keys).await.unwrap();
    store.beat(Duration::from_secs(60)).await.unwrap();
    fixture.travel(Duration::from_secs(30));
    store.beat(Duration::from_secs(60)).await.unwrap();
    store
}

async fn old_markers_go_by_themselves<F: Fixture>(fixture: F) {
    let inbox = Inbox::builder(marked(&fixture).await).retention(SHORT).build().await.unwrap();
    while inbox.marker("h", "k", 24).await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    inbox.health().await.unwrap();
}

async fn nothing_is_swept_if_so_wished<F: Fixture>(fixture: F) {
    let retention = SHORT.automatic(false);
    let inbox = Inbox::builder(marked(&fixture).await).retention(retention).build().await.unwrap();
    // Several times the interval; a sweep by hand afterwards still finds them all.
    tokio::time::sleep(EVERY * 10).await;
    let report = inbox.sweep().await.unwrap();
    assert_eq!((report.deleted, report.batches), (25, 3));
}

async fn a_failing_sweep_fails_the_health<F: Fixture + Breakable>(fixture: F) {
    let inbox = Inbox::builder(marked(&fixture).await).retention(SHORT).build().await.unwrap();
    inbox.health().await.unwrap();
    fixture.break_it().await;
    let error = loop {
        match inbox.health().await {
            Ok(()) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // Signs of life go on; the trouble is still there.
    for _ in 0..50 {
        assert!(inbox.health().await.is_err());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A fixture whose markers can be taken away under the inbox's feet.
trait Breakable {
    async fn break_it(&self);
}

impl Breakable for crate::sqlite::Sqlite {
    async fn break_it(&self) {
        sqlx::query("alter table oncebox_marker rename to gone").execute(self.store.pool()).await.unwrap();
    }
}

impl Breakable for crate::postgres::Postgres {
    async fn break_it(&self) {
        sqlx::query("alter table oncebox.marker rename to gone").execute(self.store.pool()).await.unwrap();
    }
}
