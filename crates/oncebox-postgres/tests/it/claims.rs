//! Claims of batches, beside transactions that know nothing of them.

use std::time::Duration;

use oncebox_core::Key;
use oncebox_core::store::{Claims, Limits, Store, Unit};

use crate::fixture;

const LIMITS: Limits = Limits {
    lock_timeout: Duration::from_secs(600),
    body_lock_timeout: None,
    handler_timeout: Duration::from_secs(600),
};

fn unit(key: &str) -> Unit {
    Unit {
        handler: "h".to_owned(),
        kind: "k".to_owned(),
        key: Key::from(key).stored(),
        fingerprint: None,
        waited: Duration::ZERO,
    }
}

/// Whoever claims in the order of the keys never waits in a circle with a batch, in whatever order that was put together.
#[tokio::test]
async fn a_batch_is_claimed_in_the_order_of_its_keys() {
    let Some(postgres) = fixture::as_owner("a_batch_is_claimed_in_the_order_of_its_keys").await else {
        return;
    };
    let store = &postgres.store;
    let mut user = store.pool().begin().await.unwrap();
    assert!(store.claim_in(&mut user, &unit("a")).await.unwrap().is_fresh());

    let batch = tokio::spawn({
        let store = store.clone();
        async move {
            let mut tx = store.begin(LIMITS).await.unwrap();
            let claimed = store.claim(&mut tx, &[unit("b"), unit("a")]).await;
            store.rollback(tx).await;
            claimed
        }
    });
    let waiting = "select count(*) from pg_stat_activity
        where wait_event_type = 'Lock' and datname = current_database()";
    while sqlx::query_scalar::<_, i64>(waiting).fetch_one(store.pool()).await.unwrap() == 0 {
        assert!(!batch.is_finished(), "the batch did not wait for the key that is taken");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The batch waits for the first key, and has none of the others.
    assert!(store.claim_in(&mut user, &unit("b")).await.unwrap().is_fresh());
    user.commit().await.unwrap();
    let claimed = batch.await.unwrap().unwrap();
    assert!(claimed.iter().all(|claimed| !claimed.is_fresh()), "{claimed:?}");
}
