//! Leases: tasks that run outside of a transaction, under fences, and the processes that run them.

use std::time::Duration;

use oncebox_core::store::{
    Completion, DeadLetters, End, Fence, HandlerId, Inspect, MarkerState, NewProcess, Peer, ProcessId,
    Processes, Registration, Registry, Select, SetApart, Settled, Store, Survey, Waits, Work,
};
use oncebox_core::{Key, Mode};
use uuid::Uuid;

use crate::one_handler::{
    A_WHILE, ALL, FOUR_LANES, LATER, LIMITS, OneHandler, at_most, failure, message, place, positions, stored,
};

const LEASE: Duration = LATER;

fn process() -> ProcessId {
    ProcessId(Uuid::now_v7())
}

fn entering(id: ProcessId, handlers: &[HandlerId]) -> NewProcess {
    NewProcess { id, name: "host 7".into(), handlers: handlers.to_vec(), lease: LEASE, in_hand: 3 }
}

fn untried(pos: i64) -> SetApart {
    SetApart { error: None, ..failure(pos, 0, "") }
}

fn ended(log: &OneHandler, pos: i64, fence: Fence, end: End) -> Completion {
    Completion { handler: log.handler, place: place(0, pos), fence, end }
}

fn done() -> End {
    End::Done { marker: None, result: None }
}

async fn complete(log: &OneHandler, pos: i64, fence: Fence, end: End) -> bool {
    let [ended] = log.store.complete(&[ended(log, pos, fence, end)]).await.unwrap()[..] else { panic!() };
    ended
}

/// A log with three messages in lane 0, all of them passed.
async fn three() -> OneHandler {
    let log = OneHandler::new().await;
    log.append_keys(0, &["1", "2", "3"]).await;
    log.pass(0, &Settled::default()).await;
    log
}

#[tokio::test]
async fn only_the_newest_fence_ends_a_task() {
    let log = three().await;
    let first = log.lease(process(), &[untried(1), untried(2)]).await;
    assert!(log.runnable().await.is_empty());
    assert_eq!(log.store.tasks(None, 10).await.unwrap()[0].waits, Waits::Running);
    // Given to another process meanwhile.
    let second = log.lease(process(), &[untried(1)]).await;
    assert!(second > first);
    let ends = [
        ended(&log, 1, first, done()),
        ended(&log, 1, first, End::Retry { failures: 1, due_in: LATER, error: Some("x".into()) }),
        ended(&log, 1, first, End::Dead { failures: 1, error: "x".into() }),
        ended(&log, 2, first, done()),
        ended(&log, 1, second, done()),
        ended(&log, 1, second, done()),
    ];
    assert_eq!(log.store.complete(&ends).await.unwrap(), [false, false, false, true, true, false]);
    assert_eq!(log.count("oncebox_task").await, 0);
    assert_eq!(log.count("oncebox_dead").await, 0);
}

#[tokio::test]
async fn fences_grow_on_when_nothing_else_is_left() {
    let log = three().await;
    let first = log.lease(process(), &[untried(1)]).await;
    assert!(complete(&log, 1, first, done()).await);
    let again = oncebox_sqlite::SqliteStore::new(log.store.pool().clone());
    let known = log.store.peers(process()).await.unwrap()[0].id;
    let mut tx = again.begin(LIMITS).await.unwrap();
    let unknown = again.lease(&mut tx, log.taker(0), process(), &[untried(1)]).await.unwrap();
    assert_eq!(unknown, None, "one that never entered, or is taken for dead");
    let second = again.lease(&mut tx, log.taker(0), known, &[untried(1)]).await.unwrap().unwrap();
    again.commit(tx).await.unwrap();
    assert!(second > first);
    assert!(!complete(&log, 1, first, done()).await);
}

#[tokio::test]
async fn what_fails_waits_with_its_history_and_dies_with_it() {
    let log = three().await;
    let me = process();
    let fence = log.lease(me, &[SetApart { order_by: Some(Key::from("A")), ..untried(1) }]).await;
    let retry = End::Retry { failures: 1, due_in: LATER, error: Some("first".into()) };
    assert!(complete(&log, 1, fence, retry).await);
    // Its fence is gone with it.
    assert!(!complete(&log, 1, fence, done()).await);
    assert!(log.runnable().await.is_empty());
    let task = log.store.tasks(None, 10).await.unwrap().remove(0);
    assert_eq!((task.failures, task.error.as_deref(), task.waits), (1, Some("first"), Waits::Turn));
    log.store.travel(LATER);
    let (mut tx, tasks) = log.take_tasks(0, 10).await;
    let again = SetApart {
        order_by: tasks[0].order_by.clone().or(Some(Key::from("A"))),
        attempts: tasks[0].attempts.clone(),
        body: Some(b"better".to_vec()),
        failures: 1,
        ..untried(1)
    };
    log.store.guard(&mut tx).await.unwrap();
    let fence = log.store.lease(&mut tx, log.taker(0), me, &[again]).await.unwrap().unwrap();
    log.store.commit(tx).await.unwrap();
    // Not its fault: nothing is added to its history.
    assert!(complete(&log, 1, fence, End::Retry { failures: 1, due_in: Duration::ZERO, error: None }).await);
    let task = log.store.tasks(None, 10).await.unwrap().remove(0);
    assert_eq!((task.failures, task.error.as_deref()), (1, Some("first")));
    let (mut tx, tasks) = log.take_tasks(0, 10).await;
    let again = SetApart {
        order_by: Some(Key::from("A")),
        attempts: tasks[0].attempts.clone(),
        body: tasks[0].edited.then(|| tasks[0].body.clone()),
        failures: 1,
        ..untried(1)
    };
    log.store.guard(&mut tx).await.unwrap();
    let fence = log.store.lease(&mut tx, log.taker(0), me, &[again]).await.unwrap().unwrap();
    log.store.commit(tx).await.unwrap();
    assert!(complete(&log, 1, fence, End::Dead { failures: 2, error: "second".into() }).await);
    assert_eq!(log.count("oncebox_task").await, 0);
    let dead = log.store.dead_letters(&Select::all(), 10).await.unwrap().remove(0);
    let history: Vec<_> = dead.attempts.iter().map(|one| (one.attempt, one.error.as_str())).collect();
    assert_eq!(history, [(1, "first"), (2, "second")]);
    assert_eq!((dead.error.as_str(), dead.body.as_slice()), ("second", &b"better"[..]));
    assert_eq!(log.count("oncebox_dead where order_by = x'41'").await, 1);
}

#[tokio::test]
async fn a_marker_that_was_not_done_is_with_its_result() {
    let log = three().await;
    let claim = async |key: &str, state| {
        let mut tx = log.store.begin(LIMITS).await.unwrap();
        let unit = log.unit(key);
        oncebox_core::store::Claims::claim(&log.store, &mut tx, std::slice::from_ref(&unit)).await.unwrap();
        let absent = log.unit("nobody");
        log.store.settle_markers(&mut tx, &[&unit, &absent], state).await.unwrap();
        log.store.commit(tx).await.unwrap();
    };
    claim("1", MarkerState::Spilled).await;
    claim("2", MarkerState::Done).await;
    assert_eq!(log.marker("nobody").await, None);
    assert_eq!(log.marker("1").await, Some(MarkerState::Spilled));
    let before = log.store.marker(&log.unit("1")).await.unwrap().unwrap();
    log.store.travel(LATER);
    let fence = log.lease(process(), &[untried(1), untried(2), untried(3)]).await;
    let with = |key: &str| End::Done { marker: Some(log.unit(key)), result: Some(b"42".to_vec()) };
    // Without its fence it changes nothing.
    assert!(!complete(&log, 1, Fence(fence.0 + 1), with("1")).await);
    assert_eq!(log.marker("1").await, Some(MarkerState::Spilled));
    for (pos, key) in [(1, "1"), (2, "2"), (3, "3")] {
        assert!(complete(&log, pos, fence, with(key)).await);
    }
    let marker = log.store.marker(&log.unit("1")).await.unwrap().unwrap();
    assert_eq!((marker.state, marker.result.as_deref()), (MarkerState::Done, Some(&b"42"[..])));
    assert!(marker.processed_at.duration_since(before.processed_at).unwrap() >= LATER);
    // One that was done keeps what it has; one that was not there is not made.
    assert_eq!(log.store.marker(&log.unit("2")).await.unwrap().unwrap().result, None);
    assert_eq!(log.marker("3").await, None);
    assert_eq!(log.count("oncebox_result").await, 1);
}

#[tokio::test]
async fn a_process_is_known_as_long_as_it_is_at_work() {
    let log = three().await;
    let (one, two) = (process(), process());
    log.store.enter(&entering(one, &[log.handler])).await.unwrap();
    assert_eq!(log.store.peers(one).await.unwrap(), []);
    assert!(!log.store.beat_process(two).await.unwrap());
    log.store.travel(LEASE);
    let peer = async || log.store.peers(two).await.unwrap().remove(0);
    let seen = peer().await;
    assert!(seen.silent_for >= LEASE && seen.silent_for < LEASE + A_WHILE, "{seen:?}");
    let expected = Peer {
        id: one,
        name: "host 7".into(),
        handlers: vec![log.handler],
        beats: 0,
        silent_for: seen.silent_for,
        lease: LEASE,
    };
    assert_eq!(seen, expected);
    assert!(log.store.beat_process(one).await.unwrap());
    let seen = peer().await;
    assert_eq!(seen.beats, 1);
    assert!(seen.silent_for < A_WHILE, "{seen:?}");
    log.store.leave(one).await.unwrap();
    assert_eq!(log.store.peers(two).await.unwrap(), []);
    assert!(!log.store.beat_process(one).await.unwrap());
}

#[tokio::test]
async fn who_leaves_frees_what_it_had_in_hand() {
    let log = three().await;
    let (one, two) = (process(), process());
    log.store.enter(&entering(one, &[log.handler])).await.unwrap();
    let fence = log.lease(one, &[SetApart { due_in: LATER, crashes: 1, ..untried(1) }]).await;
    log.lease(two, &[untried(2)]).await;
    log.store.note_attempt(log.handler, place(0, 3), one).await.unwrap();
    log.store.leave(one).await.unwrap();
    let tasks = log.peek_tasks(0, at_most(10)).await.unwrap();
    assert_eq!(positions(&tasks), [1]);
    assert_eq!(tasks[0].crashes, 1);
    assert!(!complete(&log, 1, fence, done()).await);
    assert_eq!(log.count("oncebox_attempting").await, 0);
    assert_eq!(log.count("oncebox_careful").await, 0);
}

#[tokio::test]
async fn a_silent_process_is_buried_once_and_its_death_is_noted() {
    let log = three().await;
    let other = log.store.register(FOUR_LANES, &[stored("other", &["b"])]).await.unwrap().handlers[0];
    let (one, two) = (process(), process());
    log.store.enter(&entering(one, &[log.handler])).await.unwrap();
    log.store.enter(&entering(two, &[log.handler, other])).await.unwrap();
    let fence = log.lease(one, &[SetApart { due_in: LATER, ..untried(1) }, untried(2)]).await;
    log.lease(two, &[untried(3)]).await;
    log.store.note_attempt(log.handler, place(1, 1), one).await.unwrap();
    log.store.travel(LEASE - A_WHILE);
    assert_eq!(log.store.bury_process(one, false).await.unwrap(), None);
    log.store.beat_process(two).await.unwrap();
    log.store.travel(A_WHILE * 2);
    assert_eq!(log.store.bury_process(two, false).await.unwrap(), None);
    assert_eq!(log.store.bury_process(one, false).await.unwrap(), Some(2));
    assert_eq!(log.store.bury_process(one, false).await.unwrap(), None);
    assert!(!log.store.beat_process(one).await.unwrap());
    let tasks = log.peek_tasks(0, at_most(10)).await.unwrap();
    assert_eq!(tasks.iter().map(|task| (task.place.pos, task.crashes)).collect::<Vec<_>>(), [(1, 1), (2, 1)]);
    assert!(!complete(&log, 1, fence, done()).await);
    // The note stays: it tells who is to blame.
    assert_eq!(log.count("oncebox_attempting").await, 1);
    let care = async || -> Vec<(i32, i64, i64)> {
        sqlx::query_as("select handler, count(*), min(messages_left) from oncebox_careful group by handler")
            .fetch_all(log.store.pool())
            .await
            .unwrap()
    };
    // Two tasks wait there, and nothing else does. One death is noted, and no reason for care yet.
    assert_eq!(care().await, [(log.handler.0, 1, 0)]);
    // The next one had less in hand; what is left of the care is more.
    sqlx::query("update oncebox_careful set messages_left = 10").execute(log.store.pool()).await.unwrap();
    log.store.travel(LEASE);
    assert_eq!(log.store.bury_process(two, false).await.unwrap(), Some(1));
    let of_handler = care().await.into_iter().find(|(handler, ..)| *handler == log.handler.0);
    assert_eq!(of_handler, Some((log.handler.0, 1, 10)));
}

#[tokio::test]
async fn with_so_many_tasks_a_lane_gives_nothing_more() {
    let log = three().await;
    log.append_keys(0, &["4"]).await;
    let taken = async |open_tasks| {
        let limits = oncebox_core::store::TakeLimits { open_tasks: Some(open_tasks), ..ALL };
        let batch = log.peek(0, limits).await.unwrap();
        (positions(&batch.messages), batch.from, batch.reached, batch.head)
    };
    assert_eq!(taken(1).await, (vec![4], 3, 4, 4));
    log.lease(process(), &[untried(1), untried(2)]).await;
    assert_eq!(taken(3).await, (vec![4], 3, 4, 4));
    assert_eq!(taken(2).await, (vec![], 3, 3, 4));
    assert_eq!(taken(1).await, (vec![], 3, 3, 4));
    // Other lanes count for themselves.
    log.append(1, &[message("a", "5")]).await;
    let limits = oncebox_core::store::TakeLimits { open_tasks: Some(1), ..ALL };
    assert_eq!(positions(&log.peek(1, limits).await.unwrap().messages), [1]);
}

#[tokio::test]
async fn a_handler_that_spills_has_its_tasks_without_progress() {
    let spill = Registration { mode: Mode::inline().spill(), ..stored("ledger", &["a"]) };
    let log = OneHandler::of(spill).await;
    assert_eq!(log.count("oncebox_progress").await, 0);
    assert!(log.peek(0, ALL).await.is_none());
    log.append_keys(0, &["1"]).await;
    log.settle(0, &Settled { apart: vec![failure(1, 1, "x")], dead: vec![] }).await;
    assert_eq!(log.runnable().await, [1]);
    let look = log.store.look(&[log.handler]).await.unwrap();
    assert_eq!(look.waiting.iter().map(|one| (one.messages, one.tasks)).collect::<Vec<_>>(), [(false, true)]);
    let status = log.store.handler_statuses().await.unwrap().remove(0);
    assert_eq!((status.lag, status.oldest_waiting, status.tasks), (0, None, 1));
    // Its kinds may have changed since: what is set apart for it is for nobody else. Not so where it reads the log.
    let kinds = ["b".to_owned()];
    let mut tx = log.store.begin(LIMITS).await.unwrap();
    let taker = oncebox_core::store::Taker { kinds: &kinds, ..log.taker(0) };
    assert_eq!(log.store.take_tasks(&mut tx, taker, at_most(10)).await.unwrap().unwrap().len(), 1);
    log.store.rollback(tx).await;
    let mut log = log;
    log.become_mode(Mode::Mixed).await.unwrap();
    let mut tx = log.store.begin(LIMITS).await.unwrap();
    let taker = oncebox_core::store::Taker { kinds: &kinds, ..log.taker(0) };
    assert!(log.store.take_tasks(&mut tx, taker, at_most(10)).await.unwrap().is_none());
}
