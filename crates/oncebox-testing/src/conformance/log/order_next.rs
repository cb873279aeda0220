//! Order: when the next task can run, and which of very many.

use oncebox_core::store::Unfinished;
use oncebox_core::{DeadHead, LogStore};

use super::order::{ordered, scheduled};
use crate::Fixture;
use crate::one_handler::{LATER, NOW, as_tasks, at_most, dead, failure, positions, unfinished};

/// Not of a task that something else would still hold back then.
pub async fn the_next_due_time_is_that_of_a_task_that_can_run<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = ordered(fixture, DeadHead::Hold, 9).await;
    let next_hours = async || {
        let look = log.look().await;
        assert_eq!(look.waiting, []);
        // Rounded, because the steps of the test take some time themselves.
        look.next_due.map(|next| (next.as_secs_f64() / 3600.0).round())
    };
    assert_eq!(next_hours().await, None);
    // Behind a head that waits longer, and behind a dead letter.
    log.settle(0, &as_tasks([unfinished(1, "A", 5 * LATER), unfinished(2, "A", 2 * LATER)])).await;
    log.settle(0, &dead([unfinished(3, "B", NOW)])).await;
    log.settle(0, &as_tasks([unfinished(4, "B", LATER)])).await;
    assert_eq!(next_hours().await, Some(5.0));
    // Behind a task in flight.
    let process = log.enter().await;
    log.lease(process, &[unfinished(5, "C", NOW)]).await.unwrap();
    log.settle(0, &as_tasks([unfinished(6, "C", LATER)])).await;
    assert_eq!(next_hours().await, Some(5.0));
    // Scheduled in front of its head.
    log.settle(0, &as_tasks([scheduled(7, "D", 4 * LATER), unfinished(8, "D", 6 * LATER)])).await;
    assert_eq!(next_hours().await, Some(4.0));
    log.settle(0, &as_tasks([Unfinished { due_in: 3 * LATER, ..failure(9, 1, "no key") }])).await;
    assert_eq!(next_hours().await, Some(3.0));
    log.travel(3 * LATER);
    assert!(log.look().await.waiting.iter().any(|waiting| waiting.tasks));
}

/// Tasks of one key, parked behind a head that is not due, and 300 tasks of other keys, of which most can run.
async fn free_among<F: Fixture<Store: LogStore>>(fixture: F, dead_head: DeadHead, parked: i64) {
    let others = parked + 1..=parked + 300;
    let log = ordered(fixture, dead_head, *others.end()).await;
    let other = |n: i64| parked + n;
    let key_of = |pos: i64| match pos - parked {
        ..=0 => "parked".to_owned(),
        101 | 102 => "in flight".to_owned(),
        103 | 104 => "scheduled".to_owned(),
        n => n.to_string(),
    };
    let task = |pos: i64| match pos - parked {
        103 => scheduled(pos, &key_of(pos), LATER),
        105 => failure(pos, 1, "no key"),
        _ => unfinished(pos, &key_of(pos), if pos == 2 && parked > 0 { LATER } else { NOW }),
    };
    // The first message is a dead letter of a key among the others.
    log.settle(0, &dead([unfinished(1, &key_of(other(100)), NOW)])).await;
    let process = log.enter().await;
    log.lease(process, &[unfinished(other(101), &key_of(other(101)), NOW)]).await.unwrap();
    let tasks: Vec<_> = (2..=*others.end()).filter(|&pos| pos != other(101)).map(task).collect();
    log.settle(0, &as_tasks(tasks)).await;

    let is_free = |pos: &i64| match pos - parked {
        101..=103 => false,
        100 => dead_head == DeadHead::Skip,
        _ => *pos > 1,
    };
    let expected: Vec<i64> = others.filter(is_free).collect();
    let taken = async |tasks| positions(&log.peek_tasks(0, at_most(tasks)).await.unwrap());
    assert_eq!(taken(1_000).await, expected);
    assert_eq!(taken(5).await, expected[..5]);
    assert!(log.look().await.waiting.iter().any(|waiting| waiting.tasks));
}

/// Far behind a thousand tasks of one ordering key.
pub async fn free_tasks_are_found_behind_many_parked_ones<F: Fixture<Store: LogStore>>(fixture: F) {
    free_among(fixture, DeadHead::Hold, 1_000).await;
}

/// The same where dead letters are skipped.
pub async fn free_tasks_are_found_behind_skipped_dead_letters<F: Fixture<Store: LogStore>>(fixture: F) {
    free_among(fixture, DeadHead::Skip, 1_000).await;
}

/// With nothing in front of them.
pub async fn free_tasks_are_found_among_many_due_ones<F: Fixture<Store: LogStore>>(fixture: F) {
    free_among(fixture, DeadHead::Hold, 0).await;
}
