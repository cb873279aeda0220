//! Times are those of the process that writes. What one with a clock hours ahead has written keeps nobody waiting for hours.

use std::time::Duration;

use oncebox_core::store::{
    Action, Completion, DeadLetters, End, NewProcess, ProcessId, Processes, Select, SetApart, Settled, Work,
};
use oncebox_sqlite::SqliteStore;
use uuid::Uuid;

use crate::one_handler::{LATER, OneHandler, apart, failure, message, place};

const LEASE: Duration = Duration::from_secs(10);

/// A log as a process sees it whose clock is hours ahead.
async fn ahead(log: &OneHandler) -> OneHandler {
    let store = SqliteStore::new(log.store.pool().clone());
    store.travel(LATER * 6);
    log.seen_by(store)
}

async fn enter(log: &OneHandler) -> ProcessId {
    let id = ProcessId(Uuid::now_v7());
    let (name, handlers) = ("elsewhere 1 first".to_owned(), vec![log.handler]);
    log.store.enter(&NewProcess { id, name, handlers, lease: LEASE, in_hand: 3 }).await.unwrap();
    id
}

/// Whoever asks has listened for a lease by a clock that does not jump.
#[tokio::test]
async fn a_process_that_died_with_its_clock_ahead_is_taken_for_dead() {
    let log = OneHandler::new().await;
    let there = ahead(&log).await;
    let process = enter(&there).await;
    log.append(0, &[message("a", "1")]).await;
    there.lease(process, &[failure(1, 0, "x")]).await;
    let peers = log.store.peers(ProcessId(Uuid::nil())).await.unwrap();
    assert!(peers[0].silent_for > LEASE, "{:?}", peers[0]);
    assert_eq!(log.store.bury_process(process, false).await.unwrap(), Some(1));
    assert_eq!(log.runnable().await, [1]);
}

#[tokio::test]
async fn a_task_waits_as_long_as_it_was_to_wait() {
    let log = OneHandler::new().await;
    let there = ahead(&log).await;
    log.append_keys(0, &["at once", "later", "in order", "at its time"]).await;
    let later = SetApart { due_in: LATER, ..failure(2, 1, "x") };
    let scheduled = SetApart { due_in: LATER, scheduled: true, error: None, ..failure(4, 0, "") };
    let tasks = vec![failure(1, 1, "x"), later, apart(3, "k", Duration::ZERO), scheduled];
    there.pass(0, &Settled { apart: tasks, dead: vec![] }).await;
    assert!(log.runnable().await.is_empty());

    // Said by whoever begins to work, and with every sign of life.
    let process = enter(&log).await;
    assert_eq!(log.runnable().await, [1, 3]);
    log.store.travel(LATER);
    assert_eq!(log.runnable().await, [1, 3, 2], "one has a time of its own");
    log.store.travel(LATER * 6);
    assert_eq!(log.runnable().await, [1, 3, 2, 4]);

    there.store.travel(LATER * 6);
    let fence = there.lease(process, &[failure(1, 1, "x")]).await;
    let end = End::Retry { failures: 2, due_in: LATER * 9, error: None };
    let ended = Completion { handler: log.handler, place: place(0, 1), fence, end };
    assert_eq!(there.store.complete(&[ended]).await.unwrap(), [true]);
    log.store.beat_process(process).await.unwrap();
    assert_eq!(log.runnable().await, [3, 2, 4]);
    log.store.travel(LATER * 9);
    assert_eq!(log.runnable().await, [3, 2, 4, 1]);
}

/// What runs again on an operator's word runs at once.
#[tokio::test]
async fn dead_letters_of_the_future_can_be_dealt_with() {
    let log = OneHandler::new().await;
    let there = ahead(&log).await;
    there.bury(&[("1", "e"), ("2", "e"), ("3", "e")]).await;
    let now = std::time::UNIX_EPOCH + Duration::from_millis(log.now_ms().await.unsigned_abs());
    let letters = log.store.dead_letters(&Select::all(), 10).await.unwrap();
    assert!(letters.iter().all(|letter| letter.died_at > now));
    let mut after = None;
    let mut steps = Vec::new();
    loop {
        let step = log.store.act(&Select::all(), &Action::Retry, "ann", after, 2).await.unwrap();
        steps.push(step.letters);
        if after.is_none() {
            // One dies again meanwhile, and is not met a second time.
            let (mut tx, tasks) = log.take_tasks(0, 1).await;
            assert_eq!(tasks[0].place.pos, 1);
            let dead = vec![failure(1, 2, "e")];
            log.store.settle(&mut tx, log.taker(0), &Settled { apart: vec![], dead }).await.unwrap();
            log.store.finish(tx, None).await.unwrap();
        }
        after = step.next;
        if step.letters < 2 {
            break;
        }
    }
    assert_eq!(steps, [2, 1]);
    assert_eq!(log.runnable().await, [2, 3]);
}
