//! Times are those of the process that writes. What one with a clock hours ahead has written keeps nobody waiting for hours.

use std::time::Duration;

use oncebox_core::store::{Action, End, ProcessId, Select, Unfinished};
use oncebox_sqlite::SqliteStore;
use oncebox_testing::one_handler::{
    LATER, LEASE, OneHandler, again, as_tasks, dead, failed_again, failure, unfinished, untried,
};
use uuid::Uuid;

use crate::fixture::{self, Sqlite};

/// A log, and the same one as a process sees it whose clock is hours ahead.
async fn with_one_ahead() -> (OneHandler<Sqlite>, OneHandler<Sqlite>) {
    let log = OneHandler::new(fixture::in_a_file("clocks").await.unwrap()).await;
    let there = log.seen_by(log.fixture.through(SqliteStore::new(log.fixture.store.pool().clone())));
    there.travel(LATER * 6);
    (log, there)
}

/// Whoever asks has listened for a lease by a clock that does not jump.
#[tokio::test]
async fn a_process_that_died_with_its_clock_ahead_is_taken_for_dead() {
    let (log, there) = with_one_ahead().await;
    let process = there.enter().await;
    log.append_keys(0, &["1"]).await;
    there.lease(process, &[untried(1)]).await.unwrap();
    let peers = log.peers(ProcessId(Uuid::nil())).await;
    assert!(peers[0].silent_for > LEASE, "{:?}", peers[0]);
    assert_eq!(log.remove_crashed(process).await, Some(1));
    assert_eq!(log.runnable().await, [1]);
}

#[tokio::test]
async fn a_task_waits_as_long_as_it_was_to_wait() {
    let (log, there) = with_one_ahead().await;
    log.append_keys(0, &["at once", "later", "in order", "at its time"]).await;
    let later = Unfinished { due_in: LATER, ..failure(2, 1, "x") };
    let scheduled = Unfinished { due_in: LATER, scheduled: true, ..untried(4) };
    let tasks = [failure(1, 1, "x"), later, unfinished(3, "k", Duration::ZERO), scheduled];
    there.pass(0, &as_tasks(tasks)).await;
    assert!(log.runnable().await.is_empty());

    // Said by whoever begins to work, and with every sign of life.
    let process = log.enter().await;
    assert_eq!(log.runnable().await, [1, 3]);
    log.travel(LATER);
    assert_eq!(log.runnable().await, [1, 2, 3], "one has a time of its own");
    log.travel(LATER * 6);
    assert_eq!(log.runnable().await, [1, 2, 3, 4]);

    there.travel(LATER * 6);
    let fence = there.lease_tasks(process, 1, again).await;
    let end = End::Retry { failures: 2, due_in: LATER * 9, error: None };
    assert!(there.complete(1, fence, end).await);
    log.beat(process).await;
    assert_eq!(log.runnable().await, [2, 3, 4]);
    log.travel(LATER * 9);
    assert_eq!(log.runnable().await, [1, 2, 3, 4]);
}

/// What runs again on an operator's word runs at once.
#[tokio::test]
async fn dead_letters_of_the_future_can_be_dealt_with() {
    let (log, there) = with_one_ahead().await;
    there.make_dead(&[("1", "e"), ("2", "e"), ("3", "e")]).await;
    let now = log.now().await;
    assert!(log.dead_letters().await.iter().all(|letter| letter.died_at > now));
    let first = log.act_after(&Select::all(), &Action::Retry, None, 2).await;
    assert_eq!(first.letters, 2);
    // One dies again meanwhile, and is not met a second time.
    let died = log.work_tasks(0, 1, |tasks| dead([failed_again(&tasks[0], "e")])).await;
    assert_eq!(died[0].place.pos, 1);
    let second = log.act_after(&Select::all(), &Action::Retry, first.next, 2).await;
    assert_eq!(second.letters, 1);
    assert_eq!(log.runnable().await, [2, 3]);
}
