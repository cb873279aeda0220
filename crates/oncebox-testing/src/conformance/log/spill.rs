//! Spill: an inline message moves to the log, once, for one handler.

use std::time::Duration;

use oncebox_core::store::{
    Action, LaneChoice, MarkerState, MessageState, Registration, Select, Spill, Spilled, Waits,
};
use oncebox_core::{DeadHead, LogStore, Mode};

use super::order::holding;
use super::refused;
use crate::Fixture;
use crate::one_handler::{
    ALL, LATER, NOW, OneHandler, all_done, as_tasks, at_most, failure, in_order, message, place, positions,
    stored, unfinished,
};

async fn spilling<F: Fixture<Store: LogStore>>(fixture: F) -> OneHandler<F> {
    OneHandler::in_mode(fixture, Mode::inline().spill()).await
}

/// A failed message for lane 1 that may run later.
fn failed<F: Fixture<Store: LogStore>>(log: &OneHandler<F>, key: &str) -> Spill {
    Spill {
        marker: Some(log.unit(key)),
        message: in_order(key, Some("A")),
        due_in: LATER,
        error: Some("refused".into()),
        ..log.failed_inline(1, key)
    }
}

/// The same as a dead letter.
fn died<F: Fixture<Store: LogStore>>(log: &OneHandler<F>, key: &str) -> Spill {
    Spill { is_dead: true, ..failed(log, key) }
}

/// Neither its key nor its kind was accepted.
pub async fn the_first_copy_is_spilled_and_the_next_is_known<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = spilling(fixture).await;
    log.append(1, &[message("b", "1")]).await;
    let first = failed(&log, "7");
    assert!(matches!(log.spill(&first).await, Spilled::New(at) if at == place(1, 2)));
    assert_eq!(log.marker_state("7").await, Some(MarkerState::Spilled));
    let Spilled::Known(marker) = log.spill(&first).await else { panic!("the key is known") };
    assert_eq!((marker.state, marker.handler.as_str()), (MarkerState::Spilled, "ledger"));
    assert_eq!(marker.fingerprint, Some(message("a", "7").fingerprint));
    assert_eq!((log.positions(1).await, log.tasks().await.len()), (vec![1, 2], 1));
    assert!(!log.is_accepted("a", "7").await);
    assert_eq!(log.unhandled_kinds().await.iter().map(|one| one.kind.as_str()).collect::<Vec<_>>(), ["b"]);

    assert!(log.due_tasks(1).await.is_empty());
    log.travel(LATER);
    let task = log.due_tasks(1).await.remove(0);
    assert_eq!((task.failures, task.spilled, task.crashes, task.replay), (1, true, 0, false));
    assert_eq!((task.body, task.order_by), (message("a", "7").body, Some("A".into())));
    assert!(task.attempts.unwrap().contains("refused"));
}

/// Each copy is a message of its own; the marker of another way in still counts.
pub async fn without_a_marker_every_copy_is_spilled<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = spilling(fixture).await;
    log.spill(&failed(&log, "7")).await;
    let scheduled = Spill { error: None, failures: 0, ..failed(&log, "7") };
    let unmarked = Spill { marker: None, lane: LaneChoice::Prefer(2), ..scheduled };
    for pos in 1..=2 {
        assert!(matches!(log.spill(&unmarked).await, Spilled::New(at) if at == place(2, pos)));
    }
    log.travel(LATER);
    let tasks = log.due_tasks(2).await;
    assert_eq!(positions(&tasks), [1, 2]);
    assert_eq!((tasks[0].attempts.as_deref(), tasks[0].spilled), (Some("[]"), true));
}

/// Nothing is written.
pub async fn a_known_copy_has_the_result_of_the_first<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = spilling(fixture).await;
    log.claim_with_result("7", b"42").await;
    let Spilled::Known(marker) = log.spill(&failed(&log, "7")).await else { panic!("the key is known") };
    assert_eq!((marker.state, marker.result.as_deref()), (MarkerState::Done, Some(&b"42"[..])));
    assert!(log.positions(1).await.is_empty());
}

/// With its ordering key, which it holds.
pub async fn a_message_with_no_attempts_left_is_spilled_as_a_dead_letter<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let mixed = Registration { mode: Mode::Mixed, ..holding(DeadHead::Hold) };
    let log = OneHandler::of(fixture, mixed).await;
    log.spill(&died(&log, "7")).await;
    assert!(log.tasks().await.is_empty());
    let letter = log.dead_letters().await.remove(0);
    assert_eq!((letter.handler.as_str(), letter.place), ("ledger", place(1, 1)));
    assert_eq!((letter.error.as_str(), letter.attempts.len()), ("refused", 1));
    log.append(1, &[in_order("8", Some("A"))]).await;
    log.pass(1, &as_tasks([unfinished(2, "A", NOW)])).await;
    assert!(log.due_tasks(1).await.is_empty());
}

/// By the handler's first name; from that time on it may be swept.
async fn is_done_after<F: Fixture<Store: LogStore>>(fixture: F, action: Action) {
    let log = spilling(fixture).await;
    log.spill(&died(&log, "7")).await;
    assert!(log.rename("ledger", "book").await.unwrap());
    let before = log.marker("7").await.unwrap();
    log.travel(LATER);
    assert_eq!(log.act(&Select::all().handler("book"), &action, 10).await, 1);
    let marker = log.marker("7").await.unwrap();
    assert_eq!(marker.state, MarkerState::Done);
    assert!(marker.processed_at.duration_since(before.processed_at).unwrap() >= LATER);
    assert_eq!(log.sweep(log.now_ms().await + 1).await, 1, "there is one marker");
}

/// An operator has acted on it.
pub async fn a_spilled_message_is_done_when_its_dead_letter_is_discarded<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    is_done_after(fixture, Action::Discard).await;
}

/// An operator has resolved it by other means.
pub async fn a_spilled_message_is_done_when_its_dead_letter_is_marked<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    is_done_after(fixture, Action::Resolve).await;
}

/// A spilled marker is no reason not to.
pub async fn a_spilled_dead_letter_runs_again_unless_its_marker_is_done<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let log = spilling(fixture).await;
    log.spill(&died(&log, "7")).await;
    log.spill(&died(&log, "8")).await;
    log.rename("ledger", "book").await.unwrap();
    log.settle_markers(&["8"], MarkerState::Done).await;
    assert_eq!(log.act(&Select::all(), &Action::Retry, 10).await, 2);
    let actions: Vec<_> = log.actions().await.into_iter().take(2).map(|(action, _)| action).collect();
    assert_eq!(actions, ["already_done", "retry"]);
    let tasks = log.due_tasks(1).await;
    assert_eq!(positions(&tasks), [1]);
    assert_eq!((tasks[0].spilled, tasks[0].failures, tasks[0].crashes), (true, 0, 0));
    assert_eq!(log.marker_state("7").await, Some(MarkerState::Spilled));
}

/// Nor for a lane that is not there.
pub async fn nothing_is_spilled_for_a_removed_handler<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = spilling(fixture).await;
    let no_lane = Spill { lane: LaneChoice::Only(9), ..failed(&log, "7") };
    log.try_spill(&no_lane, LATER).await.unwrap_err();
    assert!(log.remove("ledger").await);
    refused(log.try_spill(&failed(&log, "7"), LATER).await);
    assert_eq!(log.marker_state("7").await, None);
    assert!(log.positions(1).await.is_empty());
}

/// The spill is busy after its lock timeout.
pub async fn a_spill_behind_a_running_copy_is_busy<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = spilling(fixture).await;
    let spill = failed(&log, "7");
    let behind = log.while_claimed("7", log.try_spill(&spill, Duration::from_millis(10))).await.unwrap();
    assert!(matches!(behind, Spilled::Busy), "{behind:?}");
    assert!(matches!(log.spill(&spill).await, Spilled::New(_)));
}

/// Other handlers of its kind neither see it nor keep it.
pub async fn a_spilled_message_is_for_its_handler_alone<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = spilling(fixture).await;
    let other = log.beside(stored("other", &["a"])).await;
    log.spill(&failed(&log, "7")).await;
    log.append_keys(1, &["8"]).await;
    assert_eq!(positions(&other.pending(10).await), [2]);
    assert_eq!((log.look().await.waiting.len(), other.look().await.waiting.len()), (0, 1));
    let states = async || log.messages(1, 0, 1).await.remove(0).handlers;
    let [(name, MessageState::Task { waits, .. })] = &states().await[..] else { panic!("one task") };
    assert_eq!((name.as_str(), *waits), ("ledger", Waits::Turn));

    log.travel(2 * LATER);
    let now = log.now_ms().await;
    assert_eq!(log.prune(1, 0, 10, now).await.deleted, 0, "a task needs it, however old it is");
    assert_eq!(positions(&log.finish_tasks(1, 10).await), [1]);
    log.settle_markers(&["7"], MarkerState::Done).await;
    assert_eq!(states().await, [("ledger".to_owned(), MessageState::Done)]);
    assert_eq!(log.prune(1, 0, 10, now - 10_000_000).await.deleted, 0, "it is too young");
    assert_eq!(log.prune(1, 0, 10, now).await.deleted, 1);
    assert_eq!(log.positions(1).await, [2]);
    assert_eq!(log.sweep(log.now_ms().await + 1).await, 1);
}

/// It does not read the log; a kind that only such handlers take is unhandled.
pub async fn pruning_does_not_wait_for_a_handler_that_spills<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = spilling(fixture).await;
    log.beside(stored("other", &["b"])).await;
    log.append_keys(0, &["1", "2"]).await;
    assert_eq!(log.prune_all(0).await, 0, "no handler has passed them");
    assert_eq!(log.unhandled_kinds().await.iter().map(|one| one.kind.as_str()).collect::<Vec<_>>(), ["a"]);
    let reader = log.beside(stored("reader", &["a"])).await;
    assert_eq!(log.prune_all(0).await, 0, "the only one that reads them has not passed them");
    reader.pass(0, &all_done()).await;
    assert_eq!(log.prune_all(0).await, 1);
}

/// Their retention begins at the time of the removal.
pub async fn spilled_markers_are_done_when_their_handler_is_removed<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = spilling(fixture).await;
    log.spill(&failed(&log, "7")).await;
    let before = log.marker("7").await.unwrap();
    log.rename("ledger", "book").await.unwrap();
    log.travel(LATER);
    assert!(log.remove("book").await);
    let marker = log.marker("7").await.unwrap();
    assert_eq!(marker.state, MarkerState::Done);
    assert!(marker.processed_at.duration_since(before.processed_at).unwrap() >= LATER, "{marker:?}");
    assert!(log.tasks().await.is_empty());
}

/// It comes as a task only, beside tasks of the lane's own messages.
pub async fn a_mixed_handler_s_lane_passes_spilled_messages<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::in_mode(fixture, Mode::Mixed).await;
    log.spill(&failed(&log, "7")).await;
    log.append_keys(1, &["8"]).await;
    let batch = log.peek(1, ALL).await.unwrap();
    assert_eq!((positions(&batch.messages), batch.reached), (vec![2], 2));
    log.pass(1, &as_tasks([failure(2, 1, "x")])).await;
    log.travel(LATER);
    let tasks = log.peek_tasks(1, at_most(10)).await.unwrap();
    let spilled: Vec<_> = tasks.iter().map(|task| (task.place.pos, task.spilled)).collect();
    assert_eq!(spilled, [(2, false), (1, true)]);
}

/// The message is not processed as soon as it is stored.
pub async fn a_spilled_message_is_processed_in_the_inbox_view_when_its_task_is_done<
    F: Fixture<Store: LogStore>,
>(
    fixture: F,
) {
    let log = OneHandler::in_mode(fixture, Mode::inline().spill()).await;
    log.beside(stored("other", &["a"])).await;
    log.spill(&log.failed_inline(0, "7")).await;
    log.append_keys(0, &["8"]).await;
    let processed = async || -> Option<Vec<(String, bool)>> {
        let rows = log.fixture.inbox_view().await?;
        Some(rows.into_iter().map(|row| (row.id.unwrap(), row.is_processed)).collect())
    };
    let Some(before) = processed().await else { return };
    assert_eq!(before, [("7".to_owned(), false), ("8".to_owned(), false)]);
    log.finish_tasks(0, 10).await;
    assert_eq!(processed().await.unwrap(), [("7".to_owned(), true), ("8".to_owned(), false)]);
}
