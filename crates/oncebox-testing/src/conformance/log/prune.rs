//! Pruning: which messages leave the log, in which steps, and what becomes of their keys.

use std::time::Duration;

use oncebox_core::LogStore;
use oncebox_core::store::{Action, Appended, NewMessage, Pruned, Select, TakeLimits};

use crate::Fixture;
use crate::one_handler::{ALL, LATER, OneHandler, all_done, as_tasks, dead, failure, message, place, stored};

/// All handlers of its kind, and no task or dead letter is left; the newest message of a lane stays.
pub async fn only_messages_that_all_handlers_have_passed_are_pruned<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    // 1: task, 2: dead letter, 3: passed, 4: unhandled, 5: passed, 6: the newest
    let kinds = ["a", "a", "a", "unhandled", "a", "a"];
    let messages: Vec<_> = kinds.iter().zip(1..).map(|(kind, n)| message(kind, &n.to_string())).collect();
    log.append(0, &messages).await;
    log.travel(LATER);
    let now = log.now_ms().await;
    let prune = async |behind, positions, before| {
        let Pruned { deleted, next } = log.prune(0, behind, positions, before).await;
        (deleted, next)
    };
    assert_eq!(prune(0, 100, now).await, (0, None), "the handler has passed nothing");
    log.pass(0, &as_tasks([failure(1, 1, "x")])).await;
    log.settle(0, &dead([failure(2, 5, "y")])).await;
    let slow = log.beside(stored("slow", &["a"])).await;
    assert_eq!(prune(0, 100, now).await, (0, None), "another handler has passed nothing");
    slow.pass_up_to(0, TakeLimits { messages: 3, ..ALL }, &all_done()).await;
    assert_eq!(prune(0, 2, now - 7_200_000).await, (0, None), "all of them are too young");
    assert_eq!(prune(0, 2, now).await, (0, Some(2)));
    assert_eq!(prune(2, 2, now).await, (1, Some(4)));
    assert_eq!(log.positions(0).await, [1, 2, 4, 5, 6]);
    assert!(log.remove("slow").await);
    assert_eq!(prune(4, 2, now).await, (1, Some(6)), "a removed handler does not count");
    assert_eq!(prune(6, 2, now).await, (0, None));
    assert_eq!(log.positions(0).await, [1, 2, 4, 6]);

    log.act(&Select::all(), &Action::Discard, 10).await;
    log.finish_tasks(0, 10).await;
    assert_eq!(prune(0, 100, now).await, (2, None));
    assert_eq!(log.positions(0).await, [4, 6]);
    assert_eq!(log.append(0, &[message("a", "7")]).await, [Appended::New(place(0, 7))]);
    assert_eq!(prune(0, 100, log.now_ms().await + 1).await, (1, None), "6 is no longer the newest");
    assert_eq!(log.positions(0).await, [4, 7]);
}

/// A message that waited to be appended was received before those in front of it: a lane may have gaps.
pub async fn messages_are_pruned_by_the_time_they_were_received<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    let waited = |key: &str, waited| NewMessage { waited, ..message("a", key) };
    let messages = [waited("1", Duration::ZERO), waited("2", LATER), waited("3", Duration::ZERO)];
    log.append(0, &messages).await;
    log.pass(0, &all_done()).await;
    let half_an_hour_ago = log.now_ms().await - 1_800_000;
    assert_eq!(log.prune(0, 0, 100, half_an_hour_ago).await.deleted, 1);
    assert_eq!(log.positions(0).await, [1, 3]);
}

/// They go when their messages are pruned and their own time is over, and only with their own sweep.
pub async fn accept_markers_outlive_their_messages<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    log.append_keys(0, &["1", "2", "3"]).await;
    log.pass(0, &all_done()).await;
    log.travel(LATER);
    let now = log.now_ms().await;
    assert_eq!(log.sweep_accepted(now, 10).await, 0);
    assert_eq!(log.prune(0, 0, 10, now).await.deleted, 2);
    let known =
        Appended::Known { place: Some(place(0, 1)), fingerprint: Some(message("a", "1").fingerprint) };
    assert_eq!(log.append(1, &[message("a", "1")]).await, [known]);
    assert_eq!(log.find_message("a", "1").await, None);
    assert_eq!(log.sweep(now).await, 0);
    assert_eq!(log.sweep_accepted(now - 7_200_000, 10).await, 0);
    assert_eq!(log.sweep_accepted(now, 1).await, 1);
    assert_eq!(log.sweep_accepted(now, 10).await, 1);
    assert!(log.is_accepted("a", "3").await);
    assert_eq!(log.append(1, &[message("a", "1")]).await, [Appended::New(place(1, 1))]);
}
