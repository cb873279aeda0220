//! Replay: a handler goes back in its lanes, and can see that it is a replay.

use std::ops::RangeInclusive;

use oncebox_core::store::{Account, ReplayFrom, Replayed, Spill, Spilled, TakeLimits};
use oncebox_core::{LogStore, Mode};

use super::refused;
use crate::Fixture;
use crate::one_handler::{
    ALL, LATER, OneHandler, all_done, as_tasks, dead, failure, message, place, positions,
};

/// Passes messages of lane 0; their positions, and whether each is a replay.
async fn pass<F: Fixture<Store: LogStore>>(log: &OneHandler<F>, messages: u32) -> Vec<(i64, bool)> {
    let batch = log.pass_up_to(0, TakeLimits { messages, ..ALL }, &all_done()).await;
    batch.messages.iter().map(|message| (message.place.pos, message.replay)).collect()
}

async fn append<F: Fixture<Store: LogStore>>(log: &OneHandler<F>, lane: u16, keys: RangeInclusive<i64>) {
    let messages: Vec<_> = keys.map(|key| message("a", &format!("{lane}-{key}"))).collect();
    log.append(lane, &messages).await;
}

/// The positions of due tasks in lane 0, and whether each is a replay.
async fn due<F: Fixture<Store: LogStore>>(log: &OneHandler<F>) -> Vec<(i64, bool)> {
    log.due_tasks(0).await.iter().map(|task| (task.place.pos, task.replay)).collect()
}

/// Tasks and dead letters from the place on are absorbed. Earlier ones, and other lanes, stay unchanged.
pub async fn a_replay_from_a_place_goes_back_in_its_lane<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    append(&log, 0, 1..=5).await;
    append(&log, 1, 1..=5).await;
    let tasks = vec![failure(2, 1, "x"), failure(4, 1, "x")];
    log.pass(0, &Account { tasks, ..dead([failure(5, 1, "y")]) }).await;
    log.pass(1, &as_tasks([failure(4, 1, "x")])).await;
    append(&log, 0, 6..=7).await;
    let replayed = log.replay(ReplayFrom::Place(place(0, 3))).await;
    assert_eq!(replayed, Replayed { positions: 3, tasks: 1, dead: 1 });
    let tasks: Vec<_> = log.tasks().await.iter().map(|task| task.place).collect();
    assert_eq!(tasks, [place(0, 2), place(1, 4)]);
    assert!(log.peek(1, ALL).await.unwrap().messages.is_empty());
    let batch = log.peek(0, ALL).await.unwrap();
    assert_eq!((batch.epoch, batch.from), (1, 2));
    assert_eq!(pass(&log, 10).await, [(3, true), (4, true), (5, true), (6, false), (7, false)]);
    let entry = log.audit().await.remove(0);
    assert_eq!((entry.action.as_str(), entry.handler.as_str()), ("replay", "ledger"));
    assert_eq!((entry.operator.as_str(), entry.place), ("ann", None));
    // Ahead of its progress there is nothing to go back to.
    assert_eq!(log.replay(ReplayFrom::Place(place(0, 8))).await, Replayed::default());
    assert_eq!(log.peek(0, ALL).await.unwrap().epoch, 1);
}

/// In every lane; one that never had a message is left alone.
pub async fn a_replay_from_the_beginning_starts_with_the_oldest_message_left<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let log = OneHandler::new(fixture).await;
    append(&log, 0, 1..=4).await;
    append(&log, 2, 1..=2).await;
    log.pass(0, &all_done()).await;
    log.pass(2, &all_done()).await;
    assert_eq!(log.prune(0, 0, 2, log.now_ms().await + 1).await.deleted, 2);
    assert_eq!(log.replay(ReplayFrom::Beginning).await, Replayed { positions: 4, tasks: 0, dead: 0 });
    assert_eq!(pass(&log, 10).await, [(3, true), (4, true)]);
    assert_eq!(positions(&log.peek(2, ALL).await.unwrap().messages), [1, 2]);
    assert_eq!(log.peek(1, ALL).await.unwrap().epoch, 0);
}

/// In every lane with messages since then.
pub async fn a_replay_from_a_time_starts_with_the_first_message_since<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let log = OneHandler::new(fixture).await;
    append(&log, 0, 1..=2).await;
    append(&log, 1, 1..=2).await;
    log.travel(LATER);
    let since = log.now().await;
    append(&log, 0, 3..=4).await;
    log.pass(0, &all_done()).await;
    log.pass(1, &all_done()).await;
    assert_eq!(log.replay(ReplayFrom::Time(since)).await, Replayed { positions: 2, tasks: 0, dead: 0 });
    assert_eq!(positions(&log.peek(0, ALL).await.unwrap().messages), [3, 4]);
    assert!(log.peek(1, ALL).await.unwrap().messages.is_empty());
}

/// The second replay covers the positions up to the end of the first one.
pub async fn a_replay_within_a_replay_is_still_one<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    append(&log, 0, 1..=6).await;
    assert_eq!(pass(&log, 5).await.len(), 5);
    log.replay(ReplayFrom::Place(place(0, 2))).await;
    assert_eq!(pass(&log, 3).await, [(2, true), (3, true), (4, true)]);
    assert_eq!(log.replay(ReplayFrom::Place(place(0, 4))).await.positions, 1);
    assert_eq!(log.peek(0, ALL).await.unwrap().epoch, 2);
    let pending = log.pending(10).await;
    assert_eq!(pending.iter().map(|one| one.replay).collect::<Vec<_>>(), [true, true, false]);
    log.settle(0, &as_tasks([failure(3, 1, "x")])).await;
    assert_eq!(due(&log).await, [(3, true)], "a task of the first replay is still one");
    let further_back = log.replay(ReplayFrom::Place(place(0, 1))).await;
    assert_eq!(further_back, Replayed { positions: 3, tasks: 1, dead: 0 });
    let expected = [(1, true), (2, true), (3, true), (4, true), (5, true), (6, false)];
    assert_eq!(pass(&log, 10).await, expected);
    // The replay has ended: the next one covers its own positions only.
    log.replay(ReplayFrom::Place(place(0, 6))).await;
    assert_eq!(pass(&log, 10).await, [(6, true)]);
    log.settle(0, &as_tasks([failure(5, 1, "x")])).await;
    assert_eq!(due(&log).await, [(5, false)]);
}

/// A spilled message is not replayed, because its lane does not take it again.
pub async fn a_replay_leaves_spilled_messages_alone<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::in_mode(fixture, Mode::Mixed).await;
    append(&log, 0, 1..=1).await;
    for is_dead in [false, true] {
        let spill = Spill { is_dead, ..log.failed_inline(0, "spilled") };
        assert!(matches!(log.spill(&spill).await, Spilled::New(_)));
    }
    append(&log, 0, 4..=4).await;
    let settled =
        Account { tasks: vec![failure(4, 1, "x")], dead: vec![failure(1, 1, "x")], ..Account::default() };
    let batch = log.pass(0, &settled).await;
    assert_eq!((positions(&batch.messages), batch.reached), (vec![1, 4], 4));
    assert_eq!(log.replay(ReplayFrom::Beginning).await, Replayed { positions: 4, tasks: 1, dead: 1 });
    assert_eq!(due(&log).await, [(2, false)]);
    let letters: Vec<_> = log.dead_letters().await.iter().map(|letter| letter.place).collect();
    assert_eq!(letters, [place(0, 3)]);
    assert_eq!(pass(&log, 10).await, [(1, true), (4, true)]);
}

/// Without an entry in the audit.
pub async fn a_handler_that_does_not_read_the_log_cannot_be_replayed<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let log = OneHandler::in_mode(fixture, Mode::inline().spill()).await;
    refused(log.try_replay("ledger", ReplayFrom::Beginning).await);
    assert_eq!(log.try_replay("unknown", ReplayFrom::Beginning).await.unwrap(), None);
    assert!(log.audit().await.is_empty());
}
