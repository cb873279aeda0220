//! What operators do with handlers: pause, rename, remove.

use oncebox_core::store::{
    DeadLetters, HandlerState, MarkerState, NewProcess, Operate, ProcessId, Processes, Registration,
    Registry, ReplayFrom, Settled, Store, Survey, Upkeep, Work,
};
use oncebox_core::{ErrorKind, Mode};
use std::time::Duration;
use uuid::Uuid;

use crate::one_handler::{
    ALL, FOUR_LANES, LATER, LIMITS, OneHandler, at_most, failure, place, positions, stored,
};

async fn actions(log: &OneHandler) -> Vec<(String, String, Option<String>)> {
    let audit = log.store.audit(10).await.unwrap();
    audit.into_iter().map(|entry| (entry.action, entry.handler, entry.detail)).collect()
}

#[tokio::test]
async fn a_paused_handler_gets_nothing_until_it_goes_on() {
    let log = OneHandler::new().await;
    log.append_keys(0, &["1", "2"]).await;
    log.pass(0, &Settled { apart: vec![failure(1, 1, "x"), failure(2, 1, "x")], dead: vec![] }).await;
    log.append_keys(0, &["3"]).await;
    assert!(!log.store.pause_handler("nobody", true, "ann").await.unwrap());
    assert!(!log.store.pause_handler("ledger", false, "ann").await.unwrap());
    assert!(log.store.pause_handler("ledger", true, "ann").await.unwrap());
    assert!(!log.store.pause_handler("ledger", true, "ann").await.unwrap());
    assert!(log.peek(0, ALL).await.is_none());
    assert!(log.peek_tasks(0, at_most(10)).await.is_none());
    let look = log.store.look(&[log.handler]).await.unwrap();
    assert_eq!((look.waiting, look.next_due), (vec![], None));
    // It is known and counts: nothing of its kind is pruned, and its kind is handled.
    let layout = log.store.register(FOUR_LANES, &[stored("ledger", &["a"])]).await.unwrap();
    assert_eq!(layout.handlers, [log.handler]);
    let status = log.store.handler_statuses().await.unwrap().remove(0);
    assert_eq!((status.handler.state, status.lag, status.tasks), (HandlerState::Paused, 1, 2));
    assert!(log.store.unhandled_kinds().await.unwrap().is_empty());
    assert_eq!(log.store.messages(0, 2, 1).await.unwrap()[0].handlers.len(), 1);

    assert!(log.store.pause_handler("ledger", false, "bob").await.unwrap());
    assert_eq!(positions(&log.peek(0, ALL).await.unwrap().messages), [3]);
    assert_eq!(log.runnable().await, [1, 2]);
    let ledger = || "ledger".to_owned();
    assert_eq!(actions(&log).await, [("resume".into(), ledger(), None), ("pause".into(), ledger(), None)]);
}

#[tokio::test]
async fn what_only_handles_inline_cannot_be_paused() {
    let log = OneHandler::of(Registration { mode: Mode::inline(), ..stored("ledger", &["a"]) }).await;
    for paused in [true, false] {
        let error = log.store.pause_handler("ledger", paused, "ann").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
    }
    let spill =
        OneHandler::of(Registration { mode: Mode::inline().spill(), ..stored("ledger", &["a"]) }).await;
    assert!(spill.store.pause_handler("ledger", true, "ann").await.unwrap());
}

#[tokio::test]
async fn a_handler_keeps_what_it_has_under_another_name() {
    let log = OneHandler::new().await;
    log.append_keys(0, &["1", "2"]).await;
    log.pass(0, &Settled { apart: vec![failure(1, 1, "x")], dead: vec![failure(2, 1, "x")] }).await;
    assert!(!log.store.rename_handler("nobody", "book", "ann").await.unwrap());
    assert!(log.store.rename_handler("ledger", "book", "ann").await.unwrap());
    let rename = |name: &str, was: &str| ("rename".to_owned(), name.to_owned(), Some(format!("was {was}")));
    assert_eq!(actions(&log).await, [rename("book", "ledger")]);
    // The old name stays taken, and tells the new one.
    let error = log.store.register(FOUR_LANES, &[stored("ledger", &["a"])]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains("book"), "{error}");
    assert!(!log.store.rename_handler("ledger", "third", "ann").await.unwrap());
    assert!(!log.store.pause_handler("ledger", true, "ann").await.unwrap());
    assert_eq!(log.store.replay("ledger", ReplayFrom::Beginning, "ann").await.unwrap(), None);
    assert!(!log.store.remove_handler("ledger", "ann").await.unwrap());

    let layout = log.store.register(FOUR_LANES, &[stored("book", &["a"])]).await.unwrap();
    assert_eq!((layout.handlers, layout.origins), (vec![log.handler], vec!["ledger".to_owned()]));
    assert_eq!(log.runnable().await, [1]);
    let statuses = log.store.handler_statuses().await.unwrap();
    assert_eq!(statuses.len(), 1);
    assert_eq!((statuses[0].handler.name.as_str(), statuses[0].handler.origin.as_str()), ("book", "ledger"));
    assert_eq!(log.store.tasks(Some("book"), 10).await.unwrap().len(), 1);
    assert_eq!(log.store.messages(0, 0, 1).await.unwrap()[0].handlers[0].0, "book");
    // A name that was never its own is refused, also if another handler only had it before.
    log.store.register(FOUR_LANES, &[stored("other", &["b"])]).await.unwrap();
    log.store.rename_handler("other", "another", "ann").await.unwrap();
    for taken in ["book", "other", "another"] {
        let error = log.store.rename_handler("book", taken, "ann").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{taken}");
    }
    // On and back: the tombstones always tell the name of now.
    assert!(log.store.rename_handler("book", "third", "ann").await.unwrap());
    let error = log.store.register(FOUR_LANES, &[stored("ledger", &["a"])]).await.unwrap_err();
    assert!(error.to_string().contains("third"), "{error}");
    assert!(log.store.rename_handler("third", "ledger", "ann").await.unwrap());
    let layout = log.store.register(FOUR_LANES, &[stored("ledger", &["a"])]).await.unwrap();
    assert_eq!((layout.handlers, layout.origins), (vec![log.handler], vec!["ledger".to_owned()]));
    assert_eq!(log.count("oncebox_handler where state = 'renamed' and name in ('book', 'third')").await, 2);
    assert_eq!(actions(&log).await[0], rename("ledger", "third"));
}

#[tokio::test]
async fn a_new_handler_has_the_name_that_it_has() {
    let log = OneHandler::new().await;
    let both = [stored("ledger", &["a"]), stored("new", &["b"])];
    let layout = log.store.register(FOUR_LANES, &both).await.unwrap();
    assert_eq!(layout.origins, ["ledger", "new"]);
}

#[tokio::test]
async fn a_removed_handler_leaves_nothing_that_waits() {
    let log = OneHandler::new().await;
    let id = ProcessId(Uuid::now_v7());
    let lease = Duration::from_secs(1);
    let process = NewProcess { id, name: "p".into(), handlers: vec![log.handler], lease, in_hand: 2 };
    log.store.enter(&process).await.unwrap();
    log.append_keys(0, &["1", "2"]).await;
    log.pass(0, &Settled { apart: vec![failure(1, 1, "x")], dead: vec![failure(2, 1, "x")] }).await;
    log.store.replay("ledger", ReplayFrom::Place(place(0, 2)), "ann").await.unwrap();
    log.store.note_attempt(log.handler, place(0, 2), id).await.unwrap();
    log.store.travel(LATER);
    log.store.bury_process(id, false).await.unwrap().unwrap();
    let mut tx = log.store.begin(LIMITS).await.unwrap();
    let units = [log.unit("1"), log.unit("2")];
    oncebox_core::store::Claims::claim(&log.store, &mut tx, &units).await.unwrap();
    log.store.settle_markers(&mut tx, &[&units[0]], MarkerState::Spilled).await.unwrap();
    log.store.commit(tx).await.unwrap();
    log.store.pause_handler("ledger", true, "ann").await.unwrap();
    log.store.travel(LATER);
    assert!(log.store.remove_handler("ledger", "ann").await.unwrap());
    for table in ["task", "dead", "progress", "replay", "attempting", "careful"] {
        assert_eq!(log.count(&format!("oncebox_{table}")).await, 0, "{table}");
    }
    assert_eq!(log.marker("1").await, Some(MarkerState::Done));
    // Swept no earlier than others that are done now.
    let swept = log.store.sweep(log.now_ms().await - 1_800_000, 10).await.unwrap();
    assert_eq!((swept, log.marker("1").await, log.marker("2").await), (1, Some(MarkerState::Done), None));
    // A dead process of it asks for no care any more.
    log.store.enter(&process).await.unwrap();
    log.store.travel(LATER);
    log.store.bury_process(id, false).await.unwrap().unwrap();
    assert_eq!(log.count("oncebox_careful").await, 0);
    assert!(log.store.look(&[log.handler]).await.unwrap().waiting.is_empty());
}
