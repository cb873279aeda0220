//! Leases: tasks that run outside of a transaction, each under a fence.

use std::time::Duration;

use oncebox_core::store::{End, Fence, MarkerState, ProcessId, Unfinished, Waits};
use oncebox_core::{DeadHead, Key, LogStore, Mode};
use uuid::Uuid;

use super::order::holding;
use crate::Fixture;
use crate::one_handler::{
    ALL, LATER, NOW, OneHandler, again, all_done, as_tasks, at_most, failure, in_order, unfinished, untried,
};

pub(super) fn done() -> End {
    End::Done { marker: None, result: None, published: Vec::new() }
}

/// A handler that has passed three messages in lane 0.
pub(in crate::conformance) async fn three_passed<F: Fixture<Store: LogStore>>(fixture: F) -> OneHandler<F> {
    let log = OneHandler::new(fixture).await;
    log.append_keys(0, &["1", "2", "3"]).await;
    log.pass(0, &all_done()).await;
    log
}

/// An older fence does not change a task that another process has leased since.
pub async fn only_the_newest_fence_ends_a_task<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = three_passed(fixture).await;
    let (slow, steady, quick) = (log.enter().await, log.enter().await, log.enter().await);
    let old = log.lease(slow, &[untried(1)]).await.unwrap();
    let other = log.lease(steady, &[untried(2)]).await.unwrap();
    assert!(log.runnable().await.is_empty());
    assert!(log.tasks().await.iter().all(|task| task.waits == Waits::Running));
    log.leave(slow).await;
    let new = log.lease_tasks(quick, 10, again).await;
    assert!(new > other && other > old);
    let ends = [
        (1, old, done()),
        (1, old, End::Retry { failures: 1, due_in: LATER, error: Some("x".into()) }),
        (1, old, End::Dead { failures: 1, error: "x".into() }),
        (2, other, done()),
        (1, new, done()),
    ];
    assert_eq!(log.complete_all(&ends).await, [false, false, false, true, true]);
    assert!(!log.complete(1, new, done()).await, "it has ended");
    assert!(log.tasks().await.is_empty() && log.dead_letters().await.is_empty());
}

/// Also when no lease is left that they could be compared with.
pub async fn fences_only_grow<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = three_passed(fixture).await;
    let process = log.enter().await;
    let first = log.lease(process, &[untried(1)]).await.unwrap();
    assert!(log.complete(1, first, done()).await);
    let unknown = ProcessId(Uuid::now_v7());
    assert_eq!(log.lease(unknown, &[untried(1)]).await, None, "it never entered, or its lease has expired");
    let second = log.lease(process, &[untried(1)]).await.unwrap();
    assert!(second > first);
    assert!(!log.complete(1, first, done()).await);
}

/// Its ordering key, its attempts and an operator's correction go along.
pub async fn a_failed_lease_keeps_what_its_task_had<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::of(fixture, holding(DeadHead::Hold)).await;
    log.append(0, &[in_order("1", Some("A")), in_order("2", Some("A"))]).await;
    log.pass(0, &all_done()).await;
    let process = log.enter().await;
    let first = Unfinished { order_by: Some(Key::from("A")), ..untried(1) };
    let fence = log.lease(process, &[first]).await.unwrap();
    let retry = End::Retry { failures: 1, due_in: LATER, error: Some("first".into()) };
    assert!(log.complete(1, fence, retry).await);
    assert!(!log.complete(1, fence, done()).await, "its fence is gone");
    assert!(log.runnable().await.is_empty());
    let task = log.tasks().await.remove(0);
    assert_eq!((task.failures, task.error.as_deref(), task.waits), (1, Some("first"), Waits::Turn));

    log.travel(LATER);
    let corrected = |task: &_| Unfinished { body: Some(b"better".to_vec()), ..again(task) };
    let fence = log.lease_tasks(process, 10, corrected).await;
    let not_its_fault = End::Retry { failures: 1, due_in: Duration::ZERO, error: None };
    assert!(log.complete(1, fence, not_its_fault).await);
    let task = log.tasks().await.remove(0);
    assert_eq!((task.failures, task.error.as_deref()), (1, Some("first")));
    let fence = log.lease_tasks(process, 10, again).await;
    assert!(log.complete(1, fence, End::Dead { failures: 2, error: "second".into() }).await);
    assert!(log.tasks().await.is_empty());
    let letter = log.dead_letters().await.remove(0);
    let history: Vec<_> = letter.attempts.iter().map(|one| (one.attempt, one.error.as_str())).collect();
    assert_eq!(history, [(1, "first"), (2, "second")]);
    assert_eq!((letter.error.as_str(), letter.body.as_slice()), ("second", &b"better"[..]));
    log.settle(0, &as_tasks([unfinished(2, "A", NOW)])).await;
    assert!(log.runnable().await.is_empty(), "the dead letter holds its ordering key");
}

/// A marker that is done already stays unchanged, and no marker is created.
pub async fn a_completed_lease_settles_its_spilled_marker<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = three_passed(fixture).await;
    log.claim("1", MarkerState::Spilled).await;
    log.claim("2", MarkerState::Done).await;
    log.settle_markers(&["1", "unknown"], MarkerState::Spilled).await;
    assert_eq!(log.marker_state("unknown").await, None);
    let (spilled, was_done) = (log.marker("1").await.unwrap(), log.marker("2").await.unwrap());
    assert_eq!(spilled.state, MarkerState::Spilled);
    log.travel(LATER);
    let process = log.enter().await;
    let fence = log.lease(process, &[untried(1), untried(2), untried(3)]).await.unwrap();
    let with = |key: &str| End::Done {
        marker: Some(log.unit(key)),
        result: Some(b"42".to_vec()),
        published: Vec::new(),
    };
    assert!(!log.complete(1, Fence(fence.0 + 1), with("1")).await);
    assert_eq!(log.marker_state("1").await, Some(MarkerState::Spilled), "not under its fence");
    for (pos, key) in [(1, "1"), (2, "2"), (3, "3")] {
        assert!(log.complete(pos, fence, with(key)).await);
    }
    let marker = log.marker("1").await.unwrap();
    assert_eq!((marker.state, marker.result.as_deref()), (MarkerState::Done, Some(&b"42"[..])));
    assert!(marker.processed_at.duration_since(spilled.processed_at).unwrap() >= LATER);
    assert_eq!(log.marker("2").await.unwrap(), was_done);
    assert_eq!(log.marker("3").await, None);
}

/// Whatever its kinds are by now, unless it reads the log.
pub async fn a_handler_that_spills_has_tasks_without_progress<F: Fixture<Store: LogStore>>(fixture: F) {
    let mut log = OneHandler::in_mode(fixture, Mode::inline().spill()).await;
    assert!(log.peek(0, ALL).await.is_none());
    log.append_keys(0, &["1"]).await;
    log.settle(0, &as_tasks([failure(1, 1, "x")])).await;
    assert_eq!(log.runnable().await, [1]);
    let waiting = log.look().await.waiting;
    assert_eq!(waiting.iter().map(|one| (one.messages, one.tasks)).collect::<Vec<_>>(), [(false, true)]);
    let status = log.status().await;
    assert_eq!((status.lag, status.oldest_waiting, status.tasks), (0, None, 1));
    let of_other_kinds = |log: &OneHandler<F>| {
        let mut other = log.clone();
        other.registration.kinds = vec!["b".into()];
        other
    };
    assert_eq!(of_other_kinds(&log).runnable().await, [1]);
    log.change(|wanted| wanted.mode = Mode::Mixed).await.unwrap();
    assert!(of_other_kinds(&log).peek_tasks(0, at_most(10)).await.is_none());
}
