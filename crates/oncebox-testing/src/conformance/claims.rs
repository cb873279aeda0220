//! Claims: which copy of a message may run.

use std::time::{Duration, SystemTime};

use oncebox_core::Fingerprint;
use oncebox_core::store::{Claimed, Claims, Fault, Inspect, Limits, MarkerState, Store};

use crate::conformance::{Fixture, LIMITS, unit};

/// Claims one unit in a transaction of its own and commits; whether it was fresh.
async fn claim_and_commit<S: Claims>(store: &S, unit: &oncebox_core::store::Unit) -> bool {
    let mut tx = store.begin(LIMITS).await.unwrap();
    let fresh = store.claim(&mut tx, std::slice::from_ref(unit)).await.unwrap()[0].is_fresh();
    // As the engine does: a store may refuse a commit without its guard.
    store.arm(&mut tx).await.unwrap();
    store.guard(&mut tx).await.unwrap();
    store.commit(tx).await.unwrap();
    fresh
}

/// A key is fresh once, known ever after.
pub async fn a_key_is_fresh_once<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let unit = unit("h", "k", "a");
    assert!(claim_and_commit(&store, &unit).await);
    for _ in 0..3 {
        assert!(!claim_and_commit(&store, &unit).await);
    }
}

/// A rollback takes the marker back.
pub async fn a_claim_that_is_rolled_back_is_free_again<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let unit = unit("h", "k", "a");
    let mut tx = store.begin(LIMITS).await.unwrap();
    assert!(store.claim(&mut tx, std::slice::from_ref(&unit)).await.unwrap()[0].is_fresh());
    store.rollback(tx).await;
    assert!(store.marker(&unit).await.unwrap().is_none());
    assert!(claim_and_commit(&store, &unit).await);
}

/// Dropping a transaction, as a cancelled caller does, takes the marker back.
pub async fn a_dropped_transaction_frees_its_claim<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let unit = unit("h", "k", "a");
    let mut tx = store.begin(LIMITS).await.unwrap();
    assert!(store.claim(&mut tx, std::slice::from_ref(&unit)).await.unwrap()[0].is_fresh());
    drop(tx);
    assert!(claim_and_commit(&store, &unit).await);
}

/// One of several units in a transaction can be taken back, with what it wrote and its marker.
pub async fn a_unit_that_is_undone_leaves_its_neighbours_alone<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let names = ["a", "b", "c", "d"];
    let units = names.map(|name| unit("h", "k", name));
    let mut tx = store.begin(LIMITS).await.unwrap();
    assert!(store.claim(&mut tx, &units).await.unwrap().iter().all(Claimed::is_fresh));
    store.arm(&mut tx).await.unwrap();
    store.isolate(&mut tx).await.unwrap();
    for (n, unit) in units.iter().enumerate() {
        fixture.effect(F::Store::connection(&mut tx), names[n]).await.unwrap();
        let next = n + 1 < units.len();
        match n % 2 {
            0 => store.keep(&mut tx, next).await.unwrap(),
            _ => store.undo(&mut tx, Some(unit), next).await.unwrap(),
        }
    }
    store.commit(tx).await.unwrap();
    for (n, unit) in units.iter().enumerate() {
        let kept = n % 2 == 0;
        assert_eq!(store.marker(unit).await.unwrap().is_some(), kept, "{n}");
        if fixture.capabilities().transactional {
            assert_eq!(fixture.effects(names[n]).await, u64::from(kept), "{n}");
        }
        assert_eq!(claim_and_commit(&store, unit).await, !kept, "{n}");
    }
}

/// A concurrent copy waits, and is a duplicate if the first one commits.
pub async fn a_copy_waits_for_the_first_and_is_a_duplicate_when_that_commits<F: Fixture>(fixture: F) {
    assert!(!second_is_fresh_after(fixture, true).await);
}

/// A concurrent copy waits, and takes over if the first one rolls back.
pub async fn a_copy_takes_over_when_the_first_rolls_back<F: Fixture>(fixture: F) {
    assert!(second_is_fresh_after(fixture, false).await);
}

async fn second_is_fresh_after<F: Fixture>(fixture: F, commit: bool) -> bool {
    let store = fixture.store();
    let unit = unit("h", "k", "a");
    let mut first = store.begin(LIMITS).await.unwrap();
    assert!(store.claim(&mut first, std::slice::from_ref(&unit)).await.unwrap()[0].is_fresh());

    let second = tokio::spawn({
        let (store, unit) = (store.clone(), unit.clone());
        async move { claim_and_commit(&store, &unit).await }
    });
    // The copy must not end before the first one. A slow machine makes this check weaker, never wrong.
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(!second.is_finished(), "the copy did not wait");
    }
    match commit {
        true => {
            store.arm(&mut first).await.unwrap();
            store.guard(&mut first).await.unwrap();
            store.commit(first).await.unwrap();
        }
        false => store.rollback(first).await,
    }
    second.await.unwrap()
}

/// A claim that waits too long says so, in a way that the engine understands.
pub async fn a_copy_waits_no_longer_than_its_time_limit<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let unit = unit("h", "k", "a");
    let mut first = store.begin(LIMITS).await.unwrap();
    store.claim(&mut first, std::slice::from_ref(&unit)).await.unwrap();

    let limits = Limits { lock_timeout: Duration::from_millis(50), ..LIMITS };
    let error = async {
        let mut second = store.begin(limits).await?;
        let claimed = store.claim(&mut second, std::slice::from_ref(&unit)).await.map(drop);
        store.rollback(second).await;
        claimed
    };
    let error = error.await.expect_err("the claim did not wait for the first one");
    assert_eq!(F::Store::classify(&error), Fault::LockTimeout, "{error:?}");
    store.rollback(first).await;
}

/// Each part of a unit's identity makes another unit.
pub async fn handler_kind_and_key_all_count<F: Fixture>(fixture: F) {
    let store = fixture.store();
    for (handler, kind, key) in
        [("h", "k", "a"), ("h2", "k", "a"), ("h", "k2", "a"), ("h", "k", "a2"), ("hk", "", "a")]
    {
        assert!(claim_and_commit(&store, &unit(handler, kind, key)).await, "{handler} {kind} {key}");
    }
}

/// The results of a batch are in the order of its units.
pub async fn a_batch_of_claims_answers_in_order<F: Fixture>(fixture: F) {
    let store = fixture.store();
    assert!(claim_and_commit(&store, &unit("h", "k", "2")).await);
    let mut units: Vec<_> = ["3", "2", "1"].into_iter().map(|key| unit("h", "k", key)).collect();
    // `claim` takes sorted units, so that two batches cannot deadlock.
    units.sort_by(|a, b| a.key.cmp(&b.key));
    let mut tx = store.begin(LIMITS).await.unwrap();
    let claimed = store.claim(&mut tx, &units).await.unwrap();
    store.rollback(tx).await;
    assert_eq!(claimed.iter().map(Claimed::is_fresh).collect::<Vec<_>>(), [true, false, true]);
    let markers = store.markers(&units).await.unwrap();
    assert_eq!(markers.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(markers[1].as_ref().map(|marker| marker.key.to_string()), Some("2".to_owned()));
}

/// A result that was recorded comes back with the marker, byte for byte.
pub async fn results_come_back_with_the_marker<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let unit = unit("h", "k", "a");
    let result = [0, 255, b'"', b'\'', 10];
    let mut tx = store.begin(LIMITS).await.unwrap();
    store.claim(&mut tx, std::slice::from_ref(&unit)).await.unwrap();
    store.arm(&mut tx).await.unwrap();
    store.guard(&mut tx).await.unwrap();
    store.record_results(&mut tx, &[(&unit, &result)]).await.unwrap();
    store.commit(tx).await.unwrap();

    let mut tx = store.begin(LIMITS).await.unwrap();
    match store.claim(&mut tx, std::slice::from_ref(&unit)).await.unwrap().remove(0) {
        Claimed::Known(marker) => assert_eq!(marker.result.as_deref(), Some(&result[..])),
        Claimed::Fresh | Claimed::Busy => panic!("the marker is gone"),
    }
    store.rollback(tx).await;
}

/// Imported keys are duplicates, and importing them again changes nothing.
pub async fn imported_keys_are_known<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let keys: Vec<_> = (0..500).map(|n| oncebox_core::Key::from(n).stored()).collect();
    assert_eq!(store.import_processed("h", "k", &keys[..300]).await.unwrap(), 300);
    assert_eq!(store.import_processed("h", "k", &keys).await.unwrap(), 200);
    assert!(!claim_and_commit(&store, &unit("h", "k", 299)).await);
    assert!(claim_and_commit(&store, &unit("h", "k", 500)).await);
}

/// A marker says who did what, when, with which body.
pub async fn the_marker_tells_when_and_what<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let mut unit = unit("h", "k", "a");
    unit.fingerprint = Some(Fingerprint::of(b"body"));
    unit.waited = Duration::from_secs(10);
    assert!(claim_and_commit(&store, &unit).await);
    let marker = store.marker(&unit).await.unwrap().unwrap();
    assert_eq!((&*marker.handler, &*marker.kind, marker.key.to_string()), ("h", "k", "a".to_owned()));
    assert_eq!(marker.fingerprint, Some(Fingerprint::of(b"body")));
    assert_eq!(marker.state, MarkerState::Done);
    assert_eq!(marker.result, None);
    let waited = marker.processed_at.duration_since(marker.received_at).unwrap();
    assert!(waited >= Duration::from_secs(9), "{waited:?}");
    let ago = SystemTime::now().duration_since(marker.processed_at).unwrap_or_default();
    assert!(ago < Duration::from_secs(600), "{ago:?}");
}
