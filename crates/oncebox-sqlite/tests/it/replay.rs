//! Replay: a handler goes back in its lanes, and knows it.

use std::time::SystemTime;

use oncebox_core::store::{
    DeadLetters, LaneChoice, Log, Operate, Registration, ReplayFrom, Replayed, Settled, Spill, Spilled,
    Survey,
};
use oncebox_core::{ErrorKind, Mode};
use std::time::Duration;

use crate::one_handler::{ALL, LATER, OneHandler, failure, message, place, positions, stored};

async fn replay(log: &OneHandler, from: ReplayFrom) -> Replayed {
    log.store.replay("ledger", from, "ann").await.unwrap().unwrap()
}

/// Takes and passes so many messages of lane 0; their positions, and whether each is a replay.
async fn pass(log: &OneHandler, messages: u32) -> Vec<(i64, bool)> {
    use oncebox_core::store::{Store, TakeLimits, Work};
    let mut tx = log.store.begin(crate::one_handler::LIMITS).await.unwrap();
    let limits = TakeLimits { messages, ..ALL };
    let batch = log.store.take(&mut tx, log.taker(0), limits).await.unwrap().unwrap();
    log.finish(tx, 0, &batch).await;
    batch.messages.iter().map(|message| (message.place.pos, message.replay)).collect()
}

async fn keys(log: &OneHandler, lane: u16, keys: std::ops::RangeInclusive<i64>) {
    let messages: Vec<_> = keys.map(|key| message("a", &format!("{lane}-{key}"))).collect();
    log.append(lane, &messages).await;
}

/// Sets a message apart for the handler alone, in lane 0.
async fn spill(log: &OneHandler, is_dead: bool) {
    let spill = Spill {
        handler: log.handler,
        marker: None,
        message: message("a", "spilled"),
        lane: LaneChoice::Only(0),
        failures: 1,
        due_in: Duration::ZERO,
        error: Some("x".into()),
        is_dead,
    };
    let spilled = log.store.spill(&spill, LATER).await.unwrap();
    assert!(matches!(spilled, Spilled::New(_)), "{spilled:?}");
}

#[tokio::test]
async fn from_a_place_in_its_lane_only() {
    let log = OneHandler::new().await;
    keys(&log, 0, 1..=5).await;
    keys(&log, 1, 1..=5).await;
    log.pass(
        0,
        &Settled { apart: vec![failure(2, 1, "x"), failure(4, 1, "x")], dead: vec![failure(5, 1, "y")] },
    )
    .await;
    log.pass(1, &Settled { apart: vec![failure(4, 1, "x")], dead: vec![] }).await;
    keys(&log, 0, 6..=7).await;
    let replayed = replay(&log, ReplayFrom::Place(place(0, 3))).await;
    assert_eq!(replayed, Replayed { positions: 3, tasks: 1, dead: 1 });
    let tasks: Vec<_> = log.store.tasks(None, 10).await.unwrap().iter().map(|task| task.place).collect();
    assert_eq!(tasks, [place(0, 2), place(1, 4)]);
    assert_eq!(log.peek(1, ALL).await.unwrap().messages.len(), 0);
    // What it had passed is a replay, what is behind is not.
    let batch = log.peek(0, ALL).await.unwrap();
    assert_eq!((batch.epoch, batch.from), (1, 2));
    assert_eq!(pass(&log, 10).await, [(3, true), (4, true), (5, true), (6, false), (7, false)]);
    let audit = log.store.audit(10).await.unwrap().remove(0);
    assert_eq!(
        (audit.action.as_str(), audit.handler.as_str(), audit.operator.as_str()),
        ("replay", "ledger", "ann")
    );
    assert_eq!(
        audit.detail.as_deref(),
        Some("from position 3 of lane 0; 3 positions, 1 tasks, 1 dead letters")
    );
    // Ahead of its progress there is nothing to go back to.
    let replayed = replay(&log, ReplayFrom::Place(place(0, 8))).await;
    assert_eq!((replayed, log.peek(0, ALL).await.unwrap().epoch), (Replayed::default(), 1));
}

#[tokio::test]
async fn from_the_beginning_means_what_is_still_there() {
    let log = OneHandler::new().await;
    keys(&log, 0, 1..=4).await;
    keys(&log, 2, 1..=2).await;
    log.pass(0, &Settled::default()).await;
    log.pass(2, &Settled::default()).await;
    log.store.travel(LATER);
    sqlx::query("delete from oncebox_message where lane = 0 and pos < 3")
        .execute(log.store.pool())
        .await
        .unwrap();
    let replayed = replay(&log, ReplayFrom::Beginning).await;
    assert_eq!(replayed, Replayed { positions: 4, tasks: 0, dead: 0 });
    assert_eq!(pass(&log, 10).await, [(3, true), (4, true)]);
    assert_eq!(positions(&log.peek(2, ALL).await.unwrap().messages), [1, 2]);
    // Lanes that never had anything are left alone.
    assert_eq!(log.peek(1, ALL).await.unwrap().epoch, 0);
    let detail = log.store.audit(1).await.unwrap().remove(0).detail.unwrap();
    assert_eq!(detail, "from the beginning; 4 positions, 0 tasks, 0 dead letters");
}

#[tokio::test]
async fn from_a_time_in_every_lane_that_has_something_since() {
    let log = OneHandler::new().await;
    keys(&log, 0, 1..=2).await;
    keys(&log, 1, 1..=2).await;
    log.store.travel(LATER);
    let since = log.now_ms().await;
    keys(&log, 0, 3..=4).await;
    log.pass(0, &Settled::default()).await;
    log.pass(1, &Settled::default()).await;
    let since = SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(since).unwrap());
    assert_eq!(replay(&log, ReplayFrom::Time(since)).await, Replayed { positions: 2, tasks: 0, dead: 0 });
    assert_eq!(positions(&log.peek(0, ALL).await.unwrap().messages), [3, 4]);
    assert!(log.peek(1, ALL).await.unwrap().messages.is_empty());
    let detail = log.store.audit(1).await.unwrap().remove(0).detail.unwrap();
    assert!(detail.starts_with("from 20") && detail.contains("Z; 2 positions"), "{detail}");
}

#[tokio::test]
async fn a_replay_within_a_replay_is_one_still() {
    let log = OneHandler::new().await;
    keys(&log, 0, 1..=6).await;
    assert_eq!(pass(&log, 5).await.len(), 5);
    replay(&log, ReplayFrom::Place(place(0, 2))).await;
    assert_eq!(pass(&log, 3).await, [(2, true), (3, true), (4, true)]);
    // Back once more, not so far; up to 5 it is still the first one.
    assert_eq!(replay(&log, ReplayFrom::Place(place(0, 4))).await.positions, 1);
    assert_eq!(log.peek(0, ALL).await.unwrap().epoch, 2);
    let pending = log.store.pending(log.handler, 10).await.unwrap();
    assert_eq!(pending.iter().map(|one| one.replay).collect::<Vec<_>>(), [true, true, false]);
    // A task of the first one remains a replay.
    log.settle(0, &Settled { apart: vec![failure(3, 1, "x")], dead: vec![] }).await;
    let tasks = log.peek_tasks(0, crate::one_handler::at_most(10)).await.unwrap();
    assert_eq!(tasks.iter().map(|task| (task.place.pos, task.replay)).collect::<Vec<_>>(), [(3, true)]);
    // And further back.
    assert_eq!(
        replay(&log, ReplayFrom::Place(place(0, 1))).await,
        Replayed { positions: 3, tasks: 1, dead: 0 }
    );
    let expected = [(1, true), (2, true), (3, true), (4, true), (5, true), (6, false)];
    assert_eq!(pass(&log, 10).await, expected);
    // That one has ended: the next one begins for itself.
    replay(&log, ReplayFrom::Place(place(0, 6))).await;
    assert_eq!(pass(&log, 10).await, [(6, true)]);
    log.settle(0, &Settled { apart: vec![failure(5, 1, "x")], dead: vec![] }).await;
    assert!(!log.peek_tasks(0, crate::one_handler::at_most(10)).await.unwrap()[0].replay);
    assert_eq!(log.count("oncebox_replay").await, 1);
}

#[tokio::test]
async fn what_is_for_the_handler_alone_is_left_alone() {
    let log = OneHandler::of(Registration { mode: Mode::Mixed, ..stored("ledger", &["a"]) }).await;
    keys(&log, 0, 1..=1).await;
    spill(&log, false).await;
    spill(&log, true).await;
    keys(&log, 0, 4..=4).await;
    let batch =
        log.pass(0, &Settled { apart: vec![failure(4, 1, "x")], dead: vec![failure(1, 1, "x")] }).await;
    // The lane passes them by.
    assert_eq!((positions(&batch.messages), batch.reached), (vec![1, 4], 4));
    assert_eq!(replay(&log, ReplayFrom::Beginning).await, Replayed { positions: 4, tasks: 1, dead: 1 });
    let tasks = log.peek_tasks(0, crate::one_handler::at_most(10)).await.unwrap();
    assert_eq!(tasks.iter().map(|task| (task.place.pos, task.replay)).collect::<Vec<_>>(), [(2, false)]);
    assert_eq!(log.count("oncebox_dead where pos = 3").await, 1);
    assert_eq!(pass(&log, 10).await, [(1, true), (4, true)]);
}

#[tokio::test]
async fn only_what_reads_the_log_goes_back() {
    let log = OneHandler::of(Registration { mode: Mode::inline().spill(), ..stored("ledger", &["a"]) }).await;
    let error = log.store.replay("ledger", ReplayFrom::Beginning, "ann").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert_eq!(log.store.replay("nobody", ReplayFrom::Beginning, "ann").await.unwrap(), None);
    assert_eq!(log.count("oncebox_audit").await, 0);
}
