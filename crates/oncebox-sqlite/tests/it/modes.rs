//! Modes: a handler goes from one to another through mixed, and no key runs twice.

use oncebox_core::store::{
    Claims, LaneChoice, Log, MarkerState, Operate, Registration, Registry, ReplayFrom, Settled, Spill, Store,
    Upkeep, Work,
};
use oncebox_core::{ErrorKind, Key, Mode, Start};

use crate::one_handler::{ALL, FOUR_LANES, LATER, LIMITS, OneHandler, failure, message, positions, stored};

async fn of(mode: Mode) -> OneHandler {
    OneHandler::of(Registration { mode, ..stored("ledger", &["a"]) }).await
}

async fn refused(log: &mut OneHandler, mode: Mode) {
    let error = log.become_mode(mode).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
}

async fn mode(log: &OneHandler) -> String {
    sqlx::query_scalar("select mode from oncebox_handler where name = 'ledger'")
        .fetch_one(log.store.pool())
        .await
        .unwrap()
}

/// A key comes inline.
async fn process(log: &OneHandler, key: &str) {
    let mut tx = log.store.begin(LIMITS).await.unwrap();
    log.store.claim(&mut tx, &[log.unit(key)]).await.unwrap();
    log.store.commit(tx).await.unwrap();
}

#[tokio::test]
async fn from_inline_to_mixed_it_begins_where_it_is_told() {
    for (from, start, expected) in
        [(Mode::inline(), Start::Beginning, vec![1, 2]), (Mode::inline().spill(), Start::Now, vec![])]
    {
        let mut log = of(from).await;
        log.append_keys(0, &["1", "2"]).await;
        assert_eq!(log.count("oncebox_progress").await, 0);
        log.as_wanted.start = start;
        // Its kinds may change as long as it does not read the log.
        log.as_wanted.kinds = vec!["a".into(), "b".into()];
        log.become_mode(Mode::Mixed).await.unwrap();
        log.kinds = log.as_wanted.kinds.clone();
        assert_eq!(log.count("oncebox_progress").await, 4);
        assert_eq!(positions(&log.peek(0, ALL).await.unwrap().messages), expected);
        // And not any more.
        log.as_wanted.kinds = vec!["a".into()];
        refused(&mut log, Mode::Mixed).await;
    }
}

#[tokio::test]
async fn between_inline_and_spill_only_what_is_set_apart_is_in_the_way() {
    let mut log = of(Mode::inline()).await;
    log.become_mode(Mode::inline().spill()).await.unwrap();
    assert_eq!(mode(&log).await, "spill");
    log.append_keys(0, &["1"]).await;
    log.settle(0, &Settled { apart: vec![failure(1, 1, "x")], dead: vec![] }).await;
    refused(&mut log, Mode::inline()).await;
    assert_eq!(mode(&log).await, "spill");
    log.settle(0, &Settled { apart: vec![], dead: vec![failure(1, 1, "x")] }).await;
    let (tx, _) = log.take_tasks(0, 10).await;
    log.store.finish(tx, None).await.unwrap();
    refused(&mut log, Mode::inline()).await;
    sqlx::query("delete from oncebox_dead").execute(log.store.pool()).await.unwrap();
    log.become_mode(Mode::inline()).await.unwrap();
    assert_eq!(mode(&log).await, "inline");
}

#[tokio::test]
async fn from_stored_to_mixed_what_it_took_is_marked() {
    let mut log = of(Mode::Stored).await;
    log.store.mark_accepted("a", &[Key::from("imported").stored()]).await.unwrap();
    log.append_keys(0, &["pruned", "done", "task", "dead", "marked"]).await;
    log.append(0, &[message("b", "other")]).await;
    let long = "x".repeat(600);
    log.append_keys(1, &[&long]).await;
    // By other means, before.
    let marked = [Key::from("marked").stored()];
    log.store.mark_processed("ledger", "a", &marked).await.unwrap();
    log.pass(0, &Settled { apart: vec![failure(3, 1, "x")], dead: vec![failure(4, 1, "x")] }).await;
    log.pass(1, &Settled::default()).await;
    sqlx::query("delete from oncebox_message where pos = 1 and lane = 0")
        .execute(log.store.pool())
        .await
        .unwrap();
    log.append_keys(0, &["waiting"]).await;
    log.append_keys(2, &["also waiting"]).await;
    log.store.travel(LATER);
    log.become_mode(Mode::Mixed).await.unwrap();
    for (key, state) in [
        ("imported", Some(MarkerState::Done)),
        ("pruned", Some(MarkerState::Done)),
        ("done", Some(MarkerState::Done)),
        ("marked", Some(MarkerState::Done)),
        (&*long, Some(MarkerState::Done)),
        ("task", Some(MarkerState::Spilled)),
        ("dead", Some(MarkerState::Spilled)),
        ("waiting", None),
        ("also waiting", None),
        ("other", None),
    ] {
        assert_eq!(log.marker(key).await, state, "{key}");
    }
    let marker = oncebox_core::store::Inspect::marker(&log.store, &log.unit("done")).await.unwrap().unwrap();
    assert_eq!(marker.fingerprint, Some(message("a", "done").fingerprint));
    assert!(marker.processed_at.duration_since(marker.received_at).unwrap() >= LATER);
    assert_eq!(log.count("oncebox_marker where handler = 'ledger'").await, 7);
    // It goes on where it was.
    assert_eq!(positions(&log.peek(0, ALL).await.unwrap().messages), [7]);
    assert!(log.peek_tasks(0, crate::one_handler::at_most(10)).await.unwrap()[0].spilled);
    // Everything that is marked was accepted: back again.
    log.become_mode(Mode::Stored).await.unwrap();
    assert_eq!(mode(&log).await, "stored");
}

#[tokio::test]
async fn from_mixed_to_stored_no_key_that_came_inline_is_forgotten() {
    let mut log = of(Mode::Mixed).await;
    log.append_keys(0, &["both"]).await;
    process(&log, "both").await;
    process(&log, "inline").await;
    refused(&mut log, Mode::Stored).await;
    assert_eq!(mode(&log).await, "mixed");
    // Swept by now.
    log.store.travel(LATER);
    assert_eq!(log.store.sweep(log.now_ms().await, 10).await.unwrap(), 2);
    process(&log, "both").await;
    // It waits in the log, and would run once more.
    refused(&mut log, Mode::Stored).await;
    log.pass(0, &Settled::default()).await;
    log.become_mode(Mode::Stored).await.unwrap();
    assert_eq!(log.count("oncebox_progress where pos = 0").await, 4);
}

#[tokio::test]
async fn from_mixed_to_inline_nothing_may_wait() {
    let mut log = of(Mode::Mixed).await;
    log.append_keys(3, &["1"]).await;
    log.append(0, &[message("b", "2")]).await;
    refused(&mut log, Mode::inline().spill()).await;
    log.pass(3, &Settled { apart: vec![failure(1, 1, "x")], dead: vec![] }).await;
    log.store.replay("ledger", ReplayFrom::Beginning, "ann").await.unwrap();
    refused(&mut log, Mode::inline().spill()).await;
    log.pass(3, &Settled { apart: vec![failure(1, 1, "x")], dead: vec![] }).await;
    refused(&mut log, Mode::inline()).await;
    // Tasks go along; messages of other kinds do not matter, nor what is for the handler alone.
    let spill = Spill {
        handler: log.handler,
        marker: None,
        message: message("a", "spilled"),
        lane: LaneChoice::Only(2),
        failures: 1,
        due_in: LATER,
        error: None,
        is_dead: false,
    };
    log.store.spill(&spill, LATER).await.unwrap();
    log.become_mode(Mode::inline().spill()).await.unwrap();
    assert_eq!(log.count("oncebox_progress").await, 0);
    assert_eq!(log.count("oncebox_replay").await, 0);
    assert_eq!(positions(&log.peek_tasks(3, crate::one_handler::at_most(10)).await.unwrap()), [1]);
    assert!(log.peek(3, ALL).await.is_none());
}

#[tokio::test]
async fn a_change_that_is_refused_writes_nothing_beside_it_either() {
    let log = of(Mode::Mixed).await;
    log.append_keys(0, &["1"]).await;
    let inline = Registration { mode: Mode::inline(), ..stored("ledger", &["a"]) };
    let both = [stored("new", &["a"]), inline];
    let error = log.store.register(FOUR_LANES, &both).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert_eq!(log.count("oncebox_handler").await, 1);
    assert_eq!(mode(&log).await, "mixed");
}

#[tokio::test]
async fn between_inline_and_stored_there_is_no_way() {
    let mut log = of(Mode::Stored).await;
    refused(&mut log, Mode::inline()).await;
    refused(&mut log, Mode::inline().spill()).await;
    let mut log = of(Mode::inline().spill()).await;
    refused(&mut log, Mode::Stored).await;
}
