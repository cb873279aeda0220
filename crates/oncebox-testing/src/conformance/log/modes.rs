//! Modes: a handler changes from one to another through mixed, and no key runs twice.

use oncebox_core::store::{Account, Action, MarkerState, Registration, ReplayFrom, Select};
use oncebox_core::{LogStore, Mode, Start};

use super::refused;
use crate::Fixture;
use crate::one_handler::{
    ALL, LATER, OneHandler, all_done, as_tasks, dead, failed_again, failure, message, positions, stored,
};

/// At the beginning of the log or at its end; from then on its kinds are fixed.
pub async fn from_inline_to_mixed_a_handler_starts_where_it_is_told<F: Fixture<Store: LogStore>>(fixture: F) {
    OneHandler::new(fixture.clone()).await.append_keys(0, &["1", "2"]).await;
    for (name, mode, start, expected) in [
        ("from the beginning", Mode::inline(), Start::Beginning, vec![1, 2]),
        ("from now", Mode::inline().spill(), Start::Now, vec![]),
    ] {
        let inline = Registration { mode, ..stored(name, &["a"]) };
        let mut log = OneHandler::of(fixture.clone(), inline).await;
        assert!(log.peek(0, ALL).await.is_none(), "{name}");
        let to_mixed = Registration { mode: Mode::Mixed, start, ..stored(name, &["a", "b"]) };
        log.change(|wanted| *wanted = to_mixed).await.unwrap();
        assert_eq!(positions(&log.peek(0, ALL).await.unwrap().messages), expected, "{name}");
        refused(log.change(|wanted| wanted.kinds = vec!["a".into()]).await);
    }
}

/// Tasks and dead letters must be resolved before a handler stops spilling.
pub async fn a_handler_stops_spilling_when_it_has_no_tasks<F: Fixture<Store: LogStore>>(fixture: F) {
    let spill = Mode::inline().spill();
    let mut log = OneHandler::in_mode(fixture, Mode::inline()).await;
    log.change_mode(spill).await.unwrap();
    assert_eq!(log.mode().await, spill);
    log.append_keys(0, &["1"]).await;
    log.settle(0, &as_tasks([failure(1, 1, "x")])).await;
    refused(log.change_mode(Mode::inline()).await);
    assert_eq!(log.mode().await, spill);
    log.work_tasks(0, 10, |tasks| dead([failed_again(&tasks[0], "x")])).await;
    refused(log.change_mode(Mode::inline()).await);
    log.act(&Select::all(), &Action::Discard, 10).await;
    log.change_mode(Mode::inline()).await.unwrap();
    assert_eq!(log.mode().await, Mode::inline());
}

/// Messages that it has passed are marked as done, its tasks and dead letters as spilled, and it goes on from there.
pub async fn from_stored_to_mixed_passed_messages_are_marked<F: Fixture<Store: LogStore>>(fixture: F) {
    let mut log = OneHandler::new(fixture).await;
    log.import(&["imported"]).await;
    log.append_keys(0, &["pruned", "done", "task", "dead", "marked"]).await;
    log.append(0, &[message("b", "other")]).await;
    // The accept marker of a long key holds a digest, which must become the handler's marker too.
    let long = "x".repeat(600);
    log.append_keys(1, &[&long]).await;
    log.import_processed("marked").await;
    let settled =
        Account { tasks: vec![failure(3, 1, "x")], dead: vec![failure(4, 1, "x")], ..Account::default() };
    log.pass(0, &settled).await;
    log.pass(1, &all_done()).await;
    assert_eq!(log.prune(0, 0, 1, log.now_ms().await + 1).await.deleted, 1);
    log.append_keys(0, &["waiting"]).await;
    log.append_keys(2, &["also waiting"]).await;
    log.travel(LATER);
    log.change_mode(Mode::Mixed).await.unwrap();
    let (done, spilled) = (Some(MarkerState::Done), Some(MarkerState::Spilled));
    for (key, state) in [
        ("imported", done),
        ("pruned", done),
        ("done", done),
        ("marked", done),
        (&*long, done),
        ("task", spilled),
        ("dead", spilled),
        ("waiting", None),
        ("also waiting", None),
        ("other", None),
    ] {
        assert_eq!(log.marker_state(key).await, state, "{key}");
    }
    let marker = log.marker("done").await.unwrap();
    assert_eq!(marker.fingerprint, Some(message("a", "done").fingerprint));
    assert!(marker.processed_at.duration_since(marker.received_at).unwrap() >= LATER);
    assert_eq!(positions(&log.peek(0, ALL).await.unwrap().messages), [7]);
    assert!(log.due_tasks(0).await[0].spilled);
    // All keys with a marker were accepted: it may change back.
    log.change_mode(Mode::Stored).await.unwrap();
    assert_eq!(log.mode().await, Mode::Stored);
}

/// Neither one that never was in the log, nor one that still waits there.
pub async fn from_mixed_to_stored_no_inline_key_is_forgotten<F: Fixture<Store: LogStore>>(fixture: F) {
    let mut log = OneHandler::in_mode(fixture, Mode::Mixed).await;
    log.append_keys(0, &["both"]).await;
    log.claim("both", MarkerState::Done).await;
    log.claim("inline", MarkerState::Done).await;
    refused(log.change_mode(Mode::Stored).await);
    assert_eq!(log.mode().await, Mode::Mixed);
    log.travel(LATER);
    assert_eq!(log.sweep(log.now_ms().await).await, 2);
    log.claim("both", MarkerState::Done).await;
    refused(log.change_mode(Mode::Stored).await);
    log.pass(0, &all_done()).await;
    log.change_mode(Mode::Stored).await.unwrap();
    assert_eq!(log.peek(0, ALL).await.unwrap().from, 1);
}

/// In spill mode the handler keeps its tasks. Spilled messages and other kinds do not prevent the change.
pub async fn from_mixed_to_inline_no_message_may_wait<F: Fixture<Store: LogStore>>(fixture: F) {
    let spill = Mode::inline().spill();
    let mut log = OneHandler::in_mode(fixture, Mode::Mixed).await;
    log.append_keys(3, &["1"]).await;
    log.append(0, &[message("b", "2")]).await;
    refused(log.change_mode(spill).await);
    log.pass(3, &as_tasks([failure(1, 1, "x")])).await;
    log.replay(ReplayFrom::Beginning).await;
    refused(log.change_mode(spill).await);
    log.pass(3, &as_tasks([failure(1, 1, "x")])).await;
    refused(log.change_mode(Mode::inline()).await);
    log.spill(&log.failed_inline(2, "spilled")).await;
    log.change_mode(spill).await.unwrap();
    assert_eq!(positions(&log.due_tasks(3).await), [1]);
    assert!(log.peek(3, ALL).await.is_none());
}

/// Nor is a handler beside it registered.
pub async fn a_refused_change_of_mode_writes_nothing<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::in_mode(fixture, Mode::Mixed).await;
    log.append_keys(0, &["1"]).await;
    let inline = Registration { mode: Mode::inline(), ..stored("ledger", &["a"]) };
    refused(log.register(&[stored("new", &["a"]), inline]).await);
    assert_eq!(log.statuses().await.len(), 1);
    assert_eq!(log.mode().await, Mode::Mixed);
}

/// Only through mixed.
pub async fn a_handler_cannot_change_between_inline_and_stored<F: Fixture<Store: LogStore>>(fixture: F) {
    let mut log = OneHandler::new(fixture).await;
    refused(log.change_mode(Mode::inline()).await);
    refused(log.change_mode(Mode::inline().spill()).await);
    let spilling = Registration { mode: Mode::inline().spill(), ..stored("spilling", &["a"]) };
    refused(log.beside(spilling).await.change_mode(Mode::Stored).await);
}
