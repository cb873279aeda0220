//! Processes: their registration, and their in-flight tasks when they end.

use oncebox_core::LogStore;
use oncebox_core::store::{Peer, Unfinished};

use super::leases::{done, three_passed};
use crate::Fixture;
use crate::one_handler::{A_WHILE, LATER, LEASE, place, positions, stored, untried};

/// With its heartbeats, until it leaves.
pub async fn a_process_is_known_while_it_is_at_work<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = three_passed(fixture).await;
    let (one, two) = (log.enter().await, log.enter().await);
    log.leave(two).await;
    assert_eq!(log.peers(one).await, []);
    assert!(!log.beat(two).await);
    log.travel(LEASE);
    let peer = async || log.peers(two).await.remove(0);
    let seen = peer().await;
    assert!(seen.silent_for >= LEASE && seen.silent_for < LEASE + A_WHILE, "{seen:?}");
    let expected = Peer {
        id: one,
        name: "host 7".into(),
        handlers: vec![log.handler],
        beats: 0,
        silent_for: seen.silent_for,
        lease: LEASE,
        moves: false,
    };
    assert_eq!(seen, expected);
    assert!(log.beat(one).await);
    let seen = peer().await;
    assert_eq!(seen.beats, 1);
    assert!(seen.silent_for < A_WHILE, "{seen:?}");
    log.leave(one).await;
    assert_eq!(log.peers(two).await, []);
    assert!(!log.beat(one).await);
}

/// The tasks are free at once and keep their crash counts. The notes of the process are removed.
pub async fn a_process_that_leaves_frees_its_tasks<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = three_passed(fixture).await;
    let (one, two) = (log.enter().await, log.enter().await);
    let fence = log.lease(one, &[Unfinished { due_in: LATER, crashes: 1, ..untried(1) }]).await.unwrap();
    log.lease(two, &[untried(2)]).await.unwrap();
    assert_eq!(log.note_attempt(place(0, 3), one).await, Some(1));
    log.leave(one).await;
    let tasks = log.due_tasks(0).await;
    assert_eq!((positions(&tasks), tasks[0].crashes), (vec![1], 1));
    assert!(!log.complete(1, fence, done()).await);
    assert_eq!(log.note_attempt(place(0, 3), two).await, Some(1));
    assert!(log.careful_lanes().await.is_empty());
}

/// Its tasks may run again, each with one more crash; its note stays, to show which message caused the crash.
pub async fn a_crashed_process_is_removed_once_when_its_lease_has_expired<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let log = three_passed(fixture).await;
    let other = log.beside(stored("other", &["b"])).await;
    let one = log.enter().await;
    let two = log.enter_with(&[log.handler, other.handler], 3).await;
    let fence = log.lease(one, &[Unfinished { due_in: LATER, ..untried(1) }, untried(2)]).await.unwrap();
    log.lease(two, &[untried(3)]).await.unwrap();
    assert_eq!(log.note_attempt(place(1, 1), one).await, Some(1));
    log.travel(LEASE - A_WHILE);
    assert_eq!(log.remove_crashed(one).await, None);
    assert!(log.beat(two).await);
    // Beyond the lease of the first process, and within that of the second, which has sent a heartbeat.
    log.travel(A_WHILE * 2);
    assert_eq!(log.remove_crashed(two).await, None);
    assert_eq!(log.remove_crashed(one).await, Some(2));
    assert_eq!(log.remove_crashed(one).await, None);
    assert!(!log.beat(one).await);
    let tasks = log.due_tasks(0).await;
    assert_eq!(tasks.iter().map(|task| (task.place.pos, task.crashes)).collect::<Vec<_>>(), [(1, 1), (2, 1)]);
    assert!(!log.complete(1, fence, done()).await);
    let crashes = if log.fixture.capabilities().counts_crashes { 2 } else { 1 };
    assert_eq!(log.note_attempt(place(1, 1), two).await, Some(crashes));
    assert!(log.careful_lanes().await.is_empty(), "one crash is no reason for care");
    log.travel(LEASE);
    assert_eq!(log.remove_crashed(two).await, Some(1));
}
