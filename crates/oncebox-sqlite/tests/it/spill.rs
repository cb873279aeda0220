//! Spill: what was to run inline is set apart in the log, once, for one handler.

use std::time::Duration;

use oncebox_core::store::{
    Action, Claims, DeadLetters, Inspect, LaneChoice, Log, MarkerState, MessageState, Operate, Registration,
    Registry, Select, Settled, Spill, Spilled, Store, Survey, Upkeep, Waits, Work,
};
use oncebox_core::{ErrorKind, Mode};

use crate::one_handler::{
    ALL, FOUR_LANES, LATER, LIMITS, OneHandler, at_most, failure, in_order, message, place, positions, stored,
};

async fn spilling() -> OneHandler {
    OneHandler::of(Registration { mode: Mode::inline().spill(), ..stored("ledger", &["a"]) }).await
}

fn of(log: &OneHandler, key: &str) -> Spill {
    Spill {
        handler: log.handler,
        marker: Some(log.unit(key)),
        message: in_order(key, Some("A")),
        lane: LaneChoice::Only(1),
        failures: 1,
        due_in: LATER,
        error: Some("refused".into()),
        is_dead: false,
    }
}

async fn spill(log: &OneHandler, spill: &Spill) -> Spilled {
    log.store.spill(spill, LATER).await.unwrap()
}

#[tokio::test]
async fn the_first_copy_is_set_apart_and_the_next_is_known() {
    let log = spilling().await;
    log.append(1, &[message("b", "1")]).await;
    let first = of(&log, "7");
    assert!(matches!(spill(&log, &first).await, Spilled::New(at) if at == place(1, 2)));
    assert_eq!(log.marker("7").await, Some(MarkerState::Spilled));
    let Spilled::Known(marker) = spill(&log, &first).await else { panic!() };
    assert_eq!((marker.state, marker.handler.as_str()), (MarkerState::Spilled, "ledger"));
    assert_eq!(marker.fingerprint, Some(message("a", "7").fingerprint));
    assert_eq!(log.count("oncebox_message where target is not null").await, 1);
    assert_eq!(log.count("oncebox_task").await, 1);
    // It was not accepted: neither its key nor its kind.
    assert_eq!(log.count("oncebox_marker where handler = '@accept'").await, 1);
    assert_eq!(log.count("oncebox_kind").await, 1);

    assert!(log.peek_tasks(1, at_most(10)).await.unwrap().is_empty());
    log.store.travel(LATER);
    let task = log.peek_tasks(1, at_most(10)).await.unwrap().remove(0);
    assert_eq!((task.failures, task.spilled, task.crashes, task.replay), (1, true, 0, false));
    assert_eq!(task.body, message("a", "7").body);
    assert!(task.order_by.is_some());
    assert!(task.attempts.unwrap().contains("refused"));
    // Without a marker nothing is known.
    let direct =
        Spill { marker: None, lane: LaneChoice::Prefer(2), error: None, failures: 0, ..of(&log, "7") };
    assert!(matches!(spill(&log, &direct).await, Spilled::New(at) if at == place(2, 1)));
    assert!(matches!(spill(&log, &direct).await, Spilled::New(at) if at == place(2, 2)));
    log.store.travel(LATER);
    let tasks = log.peek_tasks(2, at_most(1)).await.unwrap();
    // There is one of that key all the same.
    assert_eq!((tasks[0].attempts.as_deref(), tasks[0].spilled), (Some("[]"), true));
}

#[tokio::test]
async fn a_known_copy_has_its_result() {
    let log = spilling().await;
    let mut tx = log.store.begin(LIMITS).await.unwrap();
    let unit = log.unit("7");
    log.store.claim(&mut tx, std::slice::from_ref(&unit)).await.unwrap();
    log.store.record_results(&mut tx, &[(&unit, b"42")]).await.unwrap();
    log.store.commit(tx).await.unwrap();
    let Spilled::Known(marker) = spill(&log, &of(&log, "7")).await else { panic!() };
    assert_eq!((marker.state, marker.result.as_deref()), (MarkerState::Done, Some(&b"42"[..])));
    assert_eq!(log.count("oncebox_message").await, 0);
}

#[tokio::test]
async fn one_that_is_dead_already_is_a_dead_letter() {
    let log = spilling().await;
    spill(&log, &Spill { is_dead: true, ..of(&log, "7") }).await;
    assert_eq!(log.count("oncebox_task").await, 0);
    let dead = log.store.dead_letters(&Select::all(), 10).await.unwrap().remove(0);
    assert_eq!((dead.handler.as_str(), dead.place, dead.error.as_str()), ("ledger", place(1, 1), "refused"));
    assert_eq!(dead.attempts.len(), 1);
    assert_eq!(log.count("oncebox_dead where order_by = x'41'").await, 1);
}

#[tokio::test]
async fn a_dead_letter_that_an_operator_has_dealt_with_is_done() {
    for action in [Action::Discard, Action::MarkProcessed] {
        let log = spilling().await;
        spill(&log, &Spill { is_dead: true, ..of(&log, "7") }).await;
        assert!(log.store.rename_handler("ledger", "book", "ann").await.unwrap());
        let before = log.store.marker(&log.unit("7")).await.unwrap().unwrap();
        log.store.travel(LATER);
        assert_eq!(
            log.store.act(&Select::all().handler("book"), &action, "ann", None, 10).await.unwrap().letters,
            1
        );
        // By its first name, and from now on it may be swept.
        let marker = log.store.marker(&log.unit("7")).await.unwrap().unwrap();
        assert_eq!(marker.state, MarkerState::Done);
        assert!(marker.processed_at.duration_since(before.processed_at).unwrap() >= LATER);
        assert_eq!(log.count("oncebox_marker").await, 1);
    }
}

#[tokio::test]
async fn a_dead_letter_that_runs_again_is_not_done_unless_its_marker_says_so() {
    let log = spilling().await;
    spill(&log, &Spill { is_dead: true, ..of(&log, "7") }).await;
    spill(&log, &Spill { is_dead: true, ..of(&log, "8") }).await;
    log.store.rename_handler("ledger", "book", "ann").await.unwrap();
    let mut tx = log.store.begin(LIMITS).await.unwrap();
    log.store.settle_markers(&mut tx, &[&log.unit("8")], MarkerState::Done).await.unwrap();
    log.store.commit(tx).await.unwrap();
    log.store.act(&Select::all(), &Action::Retry, "ann", None, 10).await.unwrap();
    let actions: Vec<_> = log.store.audit(2).await.unwrap().into_iter().map(|entry| entry.action).collect();
    assert_eq!(actions, ["already_done", "retry"]);
    let tasks = log.peek_tasks(1, at_most(10)).await.unwrap();
    assert_eq!(positions(&tasks), [1]);
    assert_eq!((tasks[0].spilled, tasks[0].failures, tasks[0].crashes), (true, 0, 0));
    assert_eq!(log.marker("7").await, Some(MarkerState::Spilled));
}

#[tokio::test]
async fn nothing_is_set_apart_for_nobody() {
    let log = spilling().await;
    let wrong_lane = Spill { lane: LaneChoice::Only(9), ..of(&log, "7") };
    log.store.spill(&wrong_lane, LATER).await.unwrap_err();
    log.store.remove_handler("ledger", "ann").await.unwrap();
    let error = log.store.spill(&of(&log, "7"), LATER).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert_eq!(log.count("oncebox_marker").await, 0);
    assert_eq!(log.count("oncebox_message").await, 0);
}

#[tokio::test]
async fn whoever_waits_too_long_is_told_that_it_is_busy() {
    let log = spilling().await;
    let tx = log.store.begin(LIMITS).await.unwrap();
    let spilled = log.store.spill(&of(&log, "7"), Duration::from_millis(10)).await.unwrap();
    assert!(matches!(spilled, Spilled::Busy), "{spilled:?}");
    log.store.rollback(tx).await;
    assert!(matches!(spill(&log, &of(&log, "7")).await, Spilled::New(_)));
}

#[tokio::test]
async fn a_message_for_one_handler_is_nobody_elses() {
    let log = spilling().await;
    let other = log.store.register(FOUR_LANES, &[stored("other", &["a"])]).await.unwrap().handlers[0];
    spill(&log, &of(&log, "7")).await;
    log.append_keys(1, &["8"]).await;
    assert_eq!(log.store.pending(other, 10).await.unwrap().len(), 1);
    let look = log.store.look(&[log.handler, other]).await.unwrap();
    assert_eq!(look.waiting.iter().map(|one| one.handler).collect::<Vec<_>>(), [other]);
    let states = async || log.store.messages(1, 0, 1).await.unwrap().remove(0).handlers;
    let [(name, MessageState::Task { waits, .. })] = &states().await[..] else { panic!() };
    assert_eq!((name.as_str(), *waits), ("ledger", Waits::Turn));
    let processed = async || -> Vec<Option<String>> {
        sqlx::query_scalar("select processed_on_utc from oncebox_inbox_message order by pos")
            .fetch_all(log.store.pool())
            .await
            .unwrap()
    };
    assert_eq!(processed().await, [None, None]);

    // Not while it is set apart, however old it is.
    log.store.travel(2 * LATER);
    let now = log.now_ms().await;
    assert_eq!(log.store.prune(1, 0, 10, now).await.unwrap().deleted, 0);
    let (mut tx, tasks) = log.take_tasks(1, 10).await;
    log.store.guard(&mut tx).await.unwrap();
    log.store.settle_markers(&mut tx, &[&log.unit("7")], MarkerState::Done).await.unwrap();
    log.store.finish(tx, None).await.unwrap();
    assert_eq!(positions(&tasks), [1]);
    assert_eq!(states().await, [("ledger".to_owned(), MessageState::Done)]);
    assert!(processed().await[0].is_some());
    assert_eq!(processed().await[1], None);
    // Whatever other handlers there are; too young it stays.
    assert_eq!(log.store.prune(1, 0, 10, now - 10_000_000).await.unwrap().deleted, 0);
    assert_eq!(log.store.prune(1, 0, 10, now).await.unwrap().deleted, 1);
    assert_eq!(log.positions(1).await, [2]);
    assert_eq!(log.store.sweep(log.now_ms().await + 1, 10).await.unwrap(), 1);
}

#[tokio::test]
async fn a_handler_that_spills_is_not_waited_for() {
    let log = spilling().await;
    log.store.register(FOUR_LANES, &[stored("other", &["b"])]).await.unwrap();
    log.append_keys(0, &["1", "2"]).await;
    log.store.travel(LATER);
    // Nobody takes it from the log: nobody has passed it.
    assert_eq!(log.store.prune(0, 0, 10, log.now_ms().await).await.unwrap().deleted, 0);
    let unhandled = log.store.unhandled_kinds().await.unwrap();
    assert_eq!(unhandled.iter().map(|one| one.kind.as_str()).collect::<Vec<_>>(), ["a"]);
    // Who takes it from the log is the only one who has to pass it.
    let third = log.store.register(FOUR_LANES, &[stored("third", &["a"])]).await.unwrap().handlers[0];
    assert_eq!(log.store.prune(0, 0, 10, log.now_ms().await).await.unwrap().deleted, 0);
    sqlx::query("insert into oncebox_progress values (?, 0, 0, 2, 0)")
        .bind(third.0)
        .execute(log.store.pool())
        .await
        .unwrap();
    assert_eq!(log.store.prune(0, 0, 10, log.now_ms().await).await.unwrap().deleted, 1);
}

#[tokio::test]
async fn a_spilled_marker_counts_as_done_when_its_handler_is_removed() {
    let log = spilling().await;
    spill(&log, &of(&log, "7")).await;
    log.store.rename_handler("ledger", "book", "ann").await.unwrap();
    assert!(log.store.remove_handler("book", "ann").await.unwrap());
    assert_eq!(log.marker("7").await, Some(MarkerState::Done));
    assert_eq!(log.count("oncebox_task").await, 0);
}

#[tokio::test]
async fn in_mixed_mode_the_lane_passes_by_what_is_spilled() {
    let log = OneHandler::of(Registration { mode: Mode::Mixed, ..stored("ledger", &["a"]) }).await;
    spill(&log, &of(&log, "7")).await;
    log.append_keys(1, &["8"]).await;
    let batch = log.peek(1, ALL).await.unwrap();
    assert_eq!((positions(&batch.messages), batch.reached), (vec![2], 2));
    log.pass(1, &Settled { apart: vec![failure(2, 1, "x")], dead: vec![] }).await;
    log.store.travel(LATER);
    let tasks = log.peek_tasks(1, at_most(10)).await.unwrap();
    assert_eq!(
        tasks.iter().map(|task| (task.place.pos, task.spilled)).collect::<Vec<_>>(),
        [(2, false), (1, true)]
    );
}
