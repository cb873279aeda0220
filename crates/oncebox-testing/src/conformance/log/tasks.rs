//! Tasks: messages that are to run later, with their history.

use std::time::Duration;

use oncebox_core::LogStore;
use oncebox_core::store::Unfinished;

use crate::Fixture;
use crate::one_handler::{
    A_WHILE, LATER, OneHandler, as_tasks, dead, failed_again, failure, in_order, place, positions,
    unfinished, untried,
};

/// Each try is kept, with its time and its error, up to the dead letter.
pub async fn a_failed_message_becomes_a_task_and_a_dead_letter_with_its_history<
    F: Fixture<Store: LogStore>,
>(
    fixture: F,
) {
    let log = OneHandler::new(fixture).await;
    log.append(0, &[in_order("1", None), in_order("2", Some("c")), in_order("3", None)]).await;
    log.pass(0, &as_tasks([Unfinished { error: Some("first".into()), ..unfinished(2, "c", LATER) }])).await;
    assert!(log.due_tasks(0).await.is_empty());
    log.travel(LATER);
    assert_eq!(log.runnable().await, [2]);
    // It was not finished, and is there again.
    let taken = log.work_tasks(0, 10, |tasks| as_tasks([failed_again(&tasks[0], "second")])).await;
    assert_eq!((positions(&taken), taken[0].failures, taken[0].edited), (vec![2], 1, false));
    assert_eq!((taken[0].due_in, taken[0].key.clone()), (Duration::ZERO, Some("2".into())));
    let listed = &log.tasks_of("ledger").await[0];
    assert_eq!((listed.place, listed.failures, listed.error.as_deref()), (place(0, 2), 2, Some("second")));
    assert!(log.tasks_of("unknown").await.is_empty());

    log.work_tasks(0, 10, |tasks| dead([failed_again(&tasks[0], "third")])).await;
    assert!(log.tasks().await.is_empty());
    let letters = log.dead_letters().await;
    assert_eq!((letters.len(), letters[0].place, letters[0].error.as_str()), (1, place(0, 2), "third"));
    let attempts = &letters[0].attempts;
    let history: Vec<_> = attempts.iter().map(|one| (one.attempt, one.error.as_str())).collect();
    assert_eq!(history, [(1, "first"), (2, "second"), (3, "third")]);
    let between = attempts[1].at.duration_since(attempts[0].at).unwrap();
    assert!(between >= LATER && between < LATER + A_WHILE, "{between:?}");
}

/// Waiting for its time is no try.
pub async fn a_scheduled_message_has_no_history<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    log.append_keys(0, &["1"]).await;
    log.pass(0, &as_tasks([Unfinished { scheduled: true, ..untried(1) }])).await;
    let task = log.due_tasks(0).await.remove(0);
    assert_eq!((task.failures, task.attempts.as_deref()), (0, Some("[]")));
}

/// Up to the number that is asked for; the others stay.
pub async fn tasks_are_taken_the_longest_due_first<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    let keys: Vec<String> = (1..=40).map(|n| n.to_string()).collect();
    log.append_keys(0, &keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let tasks = (1_i64..=40).map(|pos| Unfinished {
        due_in: Duration::from_secs((40 - pos).unsigned_abs()),
        ..failure(pos, 1, "x")
    });
    log.pass(0, &as_tasks(tasks.collect::<Vec<_>>())).await;
    log.travel(LATER);
    assert_eq!(positions(&log.finish_tasks(0, 3).await), [40, 39, 38]);
    assert_eq!(log.tasks().await.len(), 37);
}
