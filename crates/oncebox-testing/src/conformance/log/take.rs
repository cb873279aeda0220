//! Taking messages from a lane, and looking for lanes with work.

use oncebox_core::LogStore;
use oncebox_core::store::{NewMessage, TakeLimits, Unfinished};

use crate::Fixture;
use crate::one_handler::{
    A_WHILE, ALL, LATER, OneHandler, all_done, as_tasks, failure, message, positions, untried,
};

/// The progress moves with the commit, not before.
pub async fn a_batch_is_taken_again_until_it_is_finished<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    log.append_keys(2, &["1", "2", "3"]).await;
    let batch = log.peek(2, ALL).await.unwrap();
    assert_eq!((batch.epoch, batch.from, batch.reached, batch.head), (0, 0, 3, 3));
    assert_eq!(positions(&batch.messages), [1, 2, 3]);
    assert_eq!(positions(&log.pass(2, &all_done()).await.messages), [1, 2, 3]);
    log.append_keys(2, &["4"]).await;
    let batch = log.peek(2, ALL).await.unwrap();
    assert_eq!((batch.from, batch.reached, batch.head), (3, 4, 4));
    assert_eq!(positions(&batch.messages), [4]);
    log.pass(2, &all_done()).await;
    let batch = log.peek(2, ALL).await.unwrap();
    assert_eq!((batch.from, batch.reached, batch.head, batch.messages.len()), (4, 4, 4, 0));
}

/// By messages, by positions and by bytes; messages of other kinds are passed.
pub async fn limits_end_a_batch<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    let sized = |key: &str, bytes| NewMessage { body: vec![7; bytes], ..message("a", key) };
    let other = |key: &str| message("b", key);
    // 1: a, 2: b, 3: a, 4: a, 5: b, 6: b
    let messages = [sized("1", 10), other("2"), sized("3", 10), sized("4", 10), other("5"), other("6")];
    log.append(0, &messages).await;
    let taken = async |messages, positions_max, bytes| {
        let limits = TakeLimits { messages, positions: positions_max, bytes, ..ALL };
        let batch = log.peek(0, limits).await.unwrap();
        assert_eq!((batch.from, batch.head), (0, 6));
        (positions(&batch.messages), batch.reached)
    };
    // No more of these kinds: all positions are passed.
    assert_eq!(taken(10, 100, 1000).await, (vec![1, 3, 4], 6));
    assert_eq!(taken(3, 100, 1000).await, (vec![1, 3, 4], 4));
    assert_eq!(taken(2, 100, 1000).await, (vec![1, 3], 3));
    assert_eq!(taken(10, 2, 1000).await, (vec![1], 2));
    assert_eq!(taken(10, 5, 1000).await, (vec![1, 3, 4], 5));
    // The message that reaches the limit is the last one.
    assert_eq!(taken(10, 100, 20).await, (vec![1, 3], 3));
    assert_eq!(taken(10, 100, 21).await.0, [1, 3, 4]);
    assert_eq!(taken(10, 100, 31).await, (vec![1, 3, 4], 6));
    assert_eq!(taken(10, 100, 10).await, (vec![1], 1));
    // One message in any case. Otherwise a message above the limit would block its lane.
    assert_eq!(taken(10, 100, 0).await, (vec![1], 1));
}

/// Until some of them are done; other lanes count for themselves.
pub async fn a_lane_with_too_many_open_tasks_gives_no_messages<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    log.append_keys(0, &["1", "2", "3"]).await;
    log.pass(0, &all_done()).await;
    log.append_keys(0, &["4"]).await;
    log.append_keys(1, &["5"]).await;
    let taken = async |lane, open_tasks| {
        let limits = TakeLimits { open_tasks: Some(open_tasks), ..ALL };
        let batch = log.peek(lane, limits).await.unwrap();
        (positions(&batch.messages), batch.from, batch.reached, batch.head)
    };
    assert_eq!(taken(0, 1).await, (vec![4], 3, 4, 4));
    let process = log.enter().await;
    log.lease(process, &[untried(1), untried(2)]).await.unwrap();
    assert_eq!(taken(0, 3).await, (vec![4], 3, 4, 4));
    assert_eq!(taken(0, 2).await, (vec![], 3, 3, 4));
    assert_eq!(taken(0, 1).await, (vec![], 3, 3, 4));
    assert_eq!(taken(1, 1).await, (vec![1], 0, 1, 1));
}

/// And the time of the next task, if none is due; tasks in flight are no work for others.
pub async fn a_look_finds_messages_and_due_tasks<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    let seen = async || {
        let look = log.look().await;
        let waiting: Vec<_> = look.waiting.iter().map(|one| (one.lane, one.messages, one.tasks)).collect();
        (waiting, look.next_due)
    };
    assert_eq!(seen().await, (vec![], None));
    log.append_keys(1, &["1"]).await;
    // Of another kind: still a position to pass.
    log.append(3, &[message("b", "2")]).await;
    assert_eq!(seen().await, (vec![(1, true, false), (3, true, false)], None));
    log.pass(1, &as_tasks([Unfinished { due_in: LATER, ..failure(1, 1, "x") }])).await;
    log.pass(3, &all_done()).await;
    let (waiting, next_due) = seen().await;
    let next_due = next_due.unwrap();
    assert_eq!(waiting, []);
    assert!(next_due > LATER - A_WHILE && next_due <= LATER, "{next_due:?}");
    log.travel(LATER - A_WHILE);
    assert_eq!(seen().await.0, []);
    log.travel(A_WHILE);
    assert_eq!(seen().await, (vec![(1, false, true)], None));
    log.append_keys(0, &["3"]).await;
    log.pass(0, &all_done()).await;
    log.finish_tasks(1, 1).await;
    let process = log.enter().await;
    log.lease(process, &[untried(1)]).await.unwrap();
    assert_eq!(seen().await, (vec![], None));
}
