//! Actions of operators on handlers: pause, rename, remove.

use oncebox_core::store::{Account, HandlerState, MarkerState, Registration, ReplayFrom};
use oncebox_core::{LogStore, Mode};

use super::refused;
use crate::Fixture;
use crate::one_handler::{ALL, LATER, OneHandler, as_tasks, at_most, failure, place, positions, stored};

fn entry(action: &str, handler: &str) -> (String, String) {
    (action.to_owned(), handler.to_owned())
}

/// Neither messages nor tasks; it is still registered, and its messages are kept.
pub async fn a_paused_handler_gets_no_work<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    log.append_keys(0, &["1", "2"]).await;
    log.pass(0, &as_tasks([failure(1, 1, "x"), failure(2, 1, "x")])).await;
    log.append_keys(0, &["3"]).await;
    assert!(!log.pause("unknown", true).await.unwrap());
    assert!(!log.pause("ledger", false).await.unwrap());
    assert!(log.pause("ledger", true).await.unwrap());
    assert!(!log.pause("ledger", true).await.unwrap());
    assert!(log.peek(0, ALL).await.is_none());
    assert!(log.peek_tasks(0, at_most(10)).await.is_none());
    let look = log.look().await;
    assert_eq!((look.waiting, look.next_due), (vec![], None));
    assert_eq!(log.register(&[stored("ledger", &["a"])]).await.unwrap().handlers, [log.handler]);
    let status = log.status().await;
    assert_eq!((status.handler.state, status.lag, status.tasks), (HandlerState::Paused, 1, 2));
    assert!(log.unhandled_kinds().await.is_empty());
    assert_eq!(log.messages(0, 2, 1).await[0].handlers.len(), 1);

    assert!(log.pause("ledger", false).await.unwrap());
    assert_eq!(positions(&log.peek(0, ALL).await.unwrap().messages), [3]);
    assert_eq!(log.runnable().await, [1, 2]);
    assert_eq!(log.actions().await, [entry("resume", "ledger"), entry("pause", "ledger")]);
}

/// It gets its messages from their source, which cannot be paused here.
pub async fn an_inline_handler_cannot_be_paused<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::in_mode(fixture, Mode::inline()).await;
    for paused in [true, false] {
        refused(log.pause("ledger", paused).await);
    }
    log.beside(Registration { mode: Mode::inline().spill(), ..stored("spilling", &["a"]) }).await;
    assert!(log.pause("spilling", true).await.unwrap(), "its tasks can wait");
}

/// Its number, its tasks and its first name; each name that it had stays taken, and leads to its current one.
pub async fn a_renamed_handler_keeps_what_it_has<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    log.append_keys(0, &["1", "2"]).await;
    log.pass(
        0,
        &Account { tasks: vec![failure(1, 1, "x")], dead: vec![failure(2, 1, "x")], ..Account::default() },
    )
    .await;
    assert!(!log.rename("unknown", "book").await.unwrap());
    assert!(log.rename("ledger", "book").await.unwrap());
    assert_eq!(log.actions().await, [entry("rename", "book")]);
    let error = refused(log.register(&[stored("ledger", &["a"])]).await);
    assert!(error.to_string().contains("book"), "{error}");
    assert!(!log.rename("ledger", "third").await.unwrap());
    assert!(!log.pause("ledger", true).await.unwrap());
    assert_eq!(log.try_replay("ledger", ReplayFrom::Beginning).await.unwrap(), None);
    assert!(!log.remove("ledger").await);

    let is_the_same = async |name: &str| {
        let layout = log.register(&[stored(name, &["a"])]).await.unwrap();
        assert_eq!((layout.handlers, layout.origins), (vec![log.handler], vec!["ledger".to_owned()]));
    };
    is_the_same("book").await;
    assert_eq!(log.runnable().await, [1]);
    let statuses = log.statuses().await;
    assert_eq!(statuses.len(), 1);
    assert_eq!((statuses[0].handler.name.as_str(), statuses[0].handler.origin.as_str()), ("book", "ledger"));
    assert_eq!(log.tasks_of("book").await.len(), 1);
    assert_eq!(log.messages(0, 0, 1).await[0].handlers[0].0, "book");
    // To a third name, and back to the first one, which is reserved for this handler.
    assert!(log.rename("book", "third").await.unwrap());
    let error = refused(log.register(&[stored("ledger", &["a"])]).await);
    assert!(error.to_string().contains("third"), "{error}");
    assert!(log.rename("third", "ledger").await.unwrap());
    is_the_same("ledger").await;
    for name in ["book", "third"] {
        refused(log.register(&[stored(name, &["a"])]).await);
    }
    assert_eq!(log.actions().await[0], entry("rename", "ledger"));
}

/// Whether another handler has it now or had it before.
pub async fn a_handler_cannot_take_a_name_that_was_another_s<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    log.beside(stored("other", &["b"])).await;
    assert!(log.rename("other", "another").await.unwrap());
    for taken in ["ledger", "other", "another"] {
        refused(log.rename("ledger", taken).await);
    }
    assert_eq!(log.actions().await, [entry("rename", "another")]);
}

/// A revived handler is like a new one, without its old tasks, replays and crashes.
pub async fn a_removed_handler_leaves_nothing_behind<F: Fixture<Store: LogStore>>(fixture: F) {
    let mut log = OneHandler::new(fixture).await;
    log.append_keys(0, &["1", "2"]).await;
    log.pass(
        0,
        &Account { tasks: vec![failure(1, 1, "x")], dead: vec![failure(2, 1, "x")], ..Account::default() },
    )
    .await;
    log.replay(ReplayFrom::Place(place(0, 2))).await;
    for _ in 0..2 {
        let process = log.enter().await;
        log.note_attempt(place(0, 2), process).await.unwrap();
        log.crash(process).await;
    }
    assert_eq!(log.careful_lanes().await == [0], log.fixture.capabilities().counts_crashes);
    log.claim("1", MarkerState::Spilled).await;
    log.claim("2", MarkerState::Done).await;
    log.pause("ledger", true).await.unwrap();
    log.travel(LATER);
    assert!(log.remove("ledger").await);
    assert!(log.tasks().await.is_empty() && log.dead_letters().await.is_empty());
    assert_eq!(log.marker_state("1").await, Some(MarkerState::Done));
    let half_an_hour_ago = log.now_ms().await - 1_800_000;
    assert_eq!(log.sweep(half_an_hour_ago).await, 1);
    let states = (log.marker_state("1").await, log.marker_state("2").await);
    assert_eq!(states, (Some(MarkerState::Done), None), "swept no earlier than others that are done now");

    let process = log.enter().await;
    log.crash(process).await;
    assert!(log.look().await.waiting.is_empty());
    log.change(|wanted| wanted.revive = true).await.unwrap();
    let batch = log.peek(0, ALL).await.unwrap();
    let replays: Vec<_> = batch.messages.iter().map(|one| (one.place.pos, one.replay)).collect();
    assert_eq!(replays, [(1, false), (2, false)]);
    let process = log.enter().await;
    assert_eq!(log.note_attempt(place(0, 2), process).await, Some(1));
    log.crash(process).await;
    assert!(log.careful_lanes().await.is_empty(), "its first crash");
}
