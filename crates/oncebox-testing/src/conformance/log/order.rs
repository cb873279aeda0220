//! Order: the messages that an earlier message of the same ordering key holds back.

use std::time::Duration;

use oncebox_core::store::{Account, Action, Registration, Select, TaskLimits, Unfinished};
use oncebox_core::{DeadHead, LogStore};

use crate::Fixture;
use crate::one_handler::{
    ALL, LATER, NOW, OneHandler, all_done, as_tasks, at_most, dead, failure, in_order, message, positions,
    sorted, stored, unfinished,
};

/// An ordered handler.
pub(super) fn holding(dead_head: DeadHead) -> Registration {
    Registration { ordered: Some(dead_head), ..stored("ledger", &["a"]) }
}

/// One that has passed this many messages in lane 0.
pub(super) async fn ordered<F: Fixture<Store: LogStore>>(
    fixture: F,
    dead_head: DeadHead,
    messages: i64,
) -> OneHandler<F> {
    let log = OneHandler::of(fixture, holding(dead_head)).await;
    let messages: Vec<_> = (1..=messages).map(|n| message("a", &n.to_string())).collect();
    log.append(0, &messages).await;
    log.pass(0, &all_done()).await;
    log
}

/// A message that waits for the time that its sender set.
pub(super) fn scheduled(pos: i64, order_by: &str, due_in: Duration) -> Unfinished {
    Unfinished { scheduled: true, ..unfinished(pos, order_by, due_in) }
}

/// The first runnable task of each ordering key.
async fn heads<F: Fixture<Store: LogStore>>(log: &OneHandler<F>) -> Vec<i64> {
    let limits = TaskLimits { tasks: 100, heads_only: true };
    sorted(&log.peek_tasks(0, limits).await.unwrap_or_default())
}

async fn finds_tasks<F: Fixture<Store: LogStore>>(log: &OneHandler<F>) -> bool {
    log.look().await.waiting.iter().any(|waiting| waiting.tasks)
}

/// Tasks of other ordering keys, and those without one, run meanwhile.
pub async fn only_tasks_of_one_ordering_key_wait_for_each_other<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = ordered(fixture, DeadHead::Hold, 6).await;
    let waiting = [unfinished(1, "A", LATER), unfinished(2, "A", NOW), unfinished(4, "A", NOW)];
    log.settle(0, &as_tasks(waiting)).await;
    log.settle(0, &as_tasks([unfinished(3, "B", NOW), unfinished(5, "C", NOW)])).await;
    assert_eq!(log.runnable().await, [3, 5]);
    assert_eq!(heads(&log).await, [3, 5]);
    log.travel(LATER);
    assert_eq!(heads(&log).await, [1, 3, 5]);
    let mut of_one_key = positions(&log.due_tasks(0).await);
    of_one_key.retain(|pos| ![3, 5].contains(pos));
    assert_eq!(of_one_key, [1, 2, 4], "in the order of their positions");
    // The longest due heads come first, then the tasks behind them.
    for (limit, expected) in [(2, &[3, 5][..]), (4, &[1, 2, 3, 5])] {
        assert_eq!(sorted(&log.peek_tasks(0, at_most(limit)).await.unwrap()), expected);
    }
    log.finish_tasks(0, 3).await;
    assert_eq!(heads(&log).await, [2]);
    log.settle(0, &as_tasks([failure(6, 1, "no key")])).await;
    assert_eq!(log.runnable().await, [2, 4, 6]);
}

/// Neither tasks nor messages are held back.
pub async fn an_unordered_handler_holds_nothing_back<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    log.append(0, &[in_order("1", Some("A")), in_order("2", Some("A")), in_order("3", Some("A"))]).await;
    let batch = log.pass(0, &as_tasks([unfinished(1, "A", LATER), unfinished(2, "A", NOW)])).await;
    assert!(batch.messages.iter().all(|message| !message.held));
    assert_eq!(log.runnable().await, [2]);
    log.append(0, &[in_order("4", Some("A"))]).await;
    assert!(!log.peek(0, ALL).await.unwrap().messages[0].held);
}

/// A task in flight holds back the later messages of its ordering key.
pub async fn a_task_in_flight_holds_its_ordering_key<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = ordered(fixture, DeadHead::Hold, 3).await;
    let process = log.enter().await;
    log.lease(process, &[unfinished(1, "A", NOW)]).await.unwrap();
    log.settle(0, &as_tasks([unfinished(2, "A", NOW)])).await;
    assert!(log.runnable().await.is_empty());
    assert!(!finds_tasks(&log).await);
    log.settle(0, &as_tasks([unfinished(3, "B", NOW)])).await;
    assert_eq!(log.runnable().await, [3]);
    assert!(finds_tasks(&log).await);
    log.leave(process).await;
    assert_eq!(heads(&log).await, [1, 3]);
}

/// A dead letter at 2 of the key A, with tasks around it: 1, 3 and 4 of its key, and 5 of another.
async fn around_a_dead_letter<F: Fixture<Store: LogStore>>(fixture: F, dead_head: DeadHead) -> OneHandler<F> {
    let log = ordered(fixture, dead_head, 5).await;
    log.settle(0, &dead([unfinished(2, "A", NOW)])).await;
    let tasks =
        [unfinished(1, "A", NOW), unfinished(3, "A", NOW), unfinished(4, "A", NOW), unfinished(5, "B", NOW)];
    log.settle(0, &as_tasks(tasks)).await;
    assert_eq!(heads(&log).await, [1, 5]);
    log
}

/// The tasks behind it, until an operator has acted on it.
pub async fn a_dead_letter_holds_the_tasks_behind_it<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = around_a_dead_letter(fixture, DeadHead::Hold).await;
    assert_eq!(log.runnable().await, [1, 5]);
    log.finish_tasks(0, 2).await;
    assert!(!finds_tasks(&log).await);
    assert!(heads(&log).await.is_empty());
    log.act(&Select::all(), &Action::Discard, 10).await;
    assert_eq!(log.runnable().await, [3, 4]);
}

/// With `DeadHead::Skip`, a dead letter holds back no task.
pub async fn a_skipped_dead_letter_holds_no_task<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = around_a_dead_letter(fixture, DeadHead::Skip).await;
    assert_eq!(log.runnable().await, [1, 3, 4, 5]);
    log.finish_tasks(0, 2).await;
    assert!(finds_tasks(&log).await);
    assert_eq!(heads(&log).await, [3]);
    assert_eq!(log.runnable().await, [3, 4]);
}

/// Before it is due, later messages of its key run.
pub async fn a_scheduled_task_holds_its_ordering_key_when_it_is_due<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = ordered(fixture, DeadHead::Hold, 4).await;
    let tasks = [
        scheduled(1, "A", LATER),
        unfinished(2, "A", NOW),
        scheduled(3, "A", 2 * LATER),
        unfinished(4, "A", NOW),
    ];
    log.settle(0, &as_tasks(tasks)).await;
    assert_eq!(heads(&log).await, [2]);
    assert_eq!(log.runnable().await, [2, 4]);
    log.travel(LATER);
    assert_eq!(heads(&log).await, [1]);
    assert_eq!(log.runnable().await, [1, 2, 4]);
    log.travel(LATER);
    assert_eq!(log.runnable().await, [1, 2, 3, 4]);
    // Once it has failed it waits for its next try, and the others wait for it.
    log.work_tasks(0, 1, |_| as_tasks([unfinished(1, "A", LATER)])).await;
    assert!(log.runnable().await.is_empty());
}

/// A task that is not due yet, or is in flight.
pub async fn tasks_behind_one_that_cannot_run_wait<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = ordered(fixture, DeadHead::Hold, 7).await;
    let not_due = [
        unfinished(1, "A", NOW),
        unfinished(2, "A", NOW),
        unfinished(3, "A", LATER),
        unfinished(4, "A", NOW),
    ];
    log.settle(0, &as_tasks(not_due)).await;
    assert_eq!(log.runnable().await, [1, 2]);
    let process = log.enter().await;
    log.lease(process, &[unfinished(6, "B", NOW)]).await.unwrap();
    log.settle(0, &as_tasks([unfinished(5, "B", NOW), unfinished(7, "B", NOW)])).await;
    assert_eq!(log.runnable().await, [1, 2, 5]);
    log.travel(LATER);
    assert_eq!(log.runnable().await, [1, 2, 3, 4, 5]);
}

/// The positions of messages that come as held, before and after a scheduled task is due.
async fn held_messages<F: Fixture<Store: LogStore>>(fixture: F, dead_head: DeadHead) -> [Vec<i64>; 2] {
    let log = OneHandler::of(fixture, holding(dead_head)).await;
    let keys = [Some("A"), Some("B"), Some("C"), Some("A"), Some("B"), Some("C"), None, Some("D")];
    let messages: Vec<_> =
        keys.iter().zip(1..).map(|(order_by, n)| in_order(&n.to_string(), *order_by)).collect();
    log.append(0, &messages[..3]).await;
    let apart_now = vec![unfinished(1, "A", LATER), scheduled(3, "C", LATER)];
    let batch = log
        .pass(0, &Account { tasks: apart_now, dead: vec![unfinished(2, "B", NOW)], ..Account::default() })
        .await;
    assert!(batch.messages.iter().all(|message| !message.held));
    log.append(0, &messages[3..]).await;
    let held = async || {
        let batch = log.peek(0, ALL).await.unwrap();
        batch.messages.iter().filter(|one| one.held).map(|one| one.place.pos).collect::<Vec<_>>()
    };
    let before = held().await;
    log.travel(LATER);
    [before, held().await]
}

/// Behind a task, a dead letter, and a scheduled task that is due.
pub async fn messages_behind_a_task_of_their_ordering_key_are_held<F: Fixture<Store: LogStore>>(fixture: F) {
    assert_eq!(held_messages(fixture, DeadHead::Hold).await, [vec![4, 5], vec![4, 5, 6]]);
}

/// With `DeadHead::Skip`, only tasks hold messages back.
pub async fn messages_behind_a_skipped_dead_letter_are_not_held<F: Fixture<Store: LogStore>>(fixture: F) {
    assert_eq!(held_messages(fixture, DeadHead::Skip).await, [vec![4], vec![4, 6]]);
}

/// With the next registration; nothing else about the handler changes.
pub async fn a_handler_may_change_what_dead_letters_hold<F: Fixture<Store: LogStore>>(fixture: F) {
    let mut log = ordered(fixture, DeadHead::Hold, 2).await;
    log.settle(0, &dead([unfinished(1, "A", NOW)])).await;
    log.settle(0, &as_tasks([unfinished(2, "A", NOW)])).await;
    assert!(log.runnable().await.is_empty());
    for (dead_head, expected) in
        [(Some(DeadHead::Skip), vec![2]), (Some(DeadHead::Hold), vec![]), (None, vec![2])]
    {
        log.change(|wanted| wanted.ordered = dead_head).await.unwrap();
        assert_eq!(log.status().await.handler.ordered, dead_head);
        assert_eq!(log.runnable().await, expected);
    }
}
