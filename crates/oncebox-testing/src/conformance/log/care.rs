//! Care: which message is to blame for crashes, and how long messages run one by one.

use oncebox_core::LogStore;

use crate::Fixture;
use crate::one_handler::{OneHandler, all_done, place};

/// A process at work with up to this many messages in flight crashes.
async fn crash<F: Fixture<Store: LogStore>>(log: &OneHandler<F>, in_flight: u32) {
    let process = log.enter_with(&[log.handler], in_flight).await;
    log.crash(process).await;
}

/// A store that keeps the defaults never asks for care, and counts every note as the first.
pub(crate) async fn crashes_lead_to_no_care<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    log.append_keys(0, &["1", "2"]).await;
    for _ in 0..4 {
        let process = log.enter_with(&[log.handler], 2).await;
        assert_eq!(log.note_attempt(place(0, 1), process).await, Some(1));
        log.crash(process).await;
        assert!(log.careful_lanes().await.is_empty());
    }
    log.end_care(0).await;
    log.forget_attempt(place(0, 1)).await;
    assert_eq!(log.pass(0, &all_done()).await.messages.len(), 2);
}

/// Of processes that noted the message; while one of them is alive no other process runs it.
pub async fn every_crash_behind_a_note_counts<F: Fixture<Store: LogStore>>(fixture: F) {
    if !fixture.capabilities().counts_crashes {
        return crashes_lead_to_no_care(fixture).await;
    }
    let log = OneHandler::new(fixture).await;
    let note = async |process| log.note_attempt(place(0, 7), process).await;
    let first = log.enter().await;
    assert_eq!(note(first).await, Some(1));
    assert_eq!(note(first).await, Some(1));
    let second = log.enter().await;
    assert_eq!(note(second).await, None);
    log.crash(first).await;
    assert_eq!(note(second).await, Some(2));
    assert_eq!(note(second).await, Some(2));
    log.crash(second).await;
    let third = log.enter().await;
    assert_eq!(note(third).await, Some(3));
    assert_eq!(log.note_attempt(place(1, 7), third).await, Some(1), "each message counts for itself");
    log.forget_attempt(place(0, 7)).await;
    assert_eq!(note(third).await, Some(1));
}

/// As many as a crashed process can have had in flight there, or as wait there.
pub async fn care_ends_with_the_last_suspect_message<F: Fixture<Store: LogStore>>(fixture: F) {
    if !fixture.capabilities().counts_crashes {
        return crashes_lead_to_no_care(fixture).await;
    }
    let log = OneHandler::new(fixture).await;
    for lane in 0..4 {
        let [one, two, three] = [1, 2, 3].map(|n| format!("{lane}-{n}"));
        // More than a process has in flight, except in one lane.
        let all: &[&str] = if lane == 1 { &[&one] } else { &[&one, &two, &three] };
        log.append_keys(lane, all).await;
    }
    crash(&log, 2).await;
    assert!(log.careful_lanes().await.is_empty(), "one crash is no reason");
    crash(&log, 2).await;
    assert_eq!(log.careful_lanes().await, [0, 1, 2, 3]);
    log.forget_attempt(place(2, 1)).await;
    assert_eq!(log.careful_lanes().await, [0, 1, 2, 3]);
    log.forget_attempt(place(2, 2)).await;
    assert_eq!(log.careful_lanes().await, [0, 1, 3]);
    log.end_care(0).await;
    assert_eq!(log.careful_lanes().await, [1, 3]);
    log.forget_attempt(place(1, 1)).await;
    assert_eq!(log.careful_lanes().await, [3], "there was one message only");
    log.forget_attempt(place(0, 1)).await;
    assert_eq!(log.careful_lanes().await, [3], "where no care is needed there is nothing to count");
}

/// Messages that are accepted later are no suspects.
pub async fn no_care_is_needed_where_nothing_waited<F: Fixture<Store: LogStore>>(fixture: F) {
    if !fixture.capabilities().counts_crashes {
        return crashes_lead_to_no_care(fixture).await;
    }
    let log = OneHandler::new(fixture).await;
    log.append_keys(2, &["1"]).await;
    crash(&log, 2).await;
    crash(&log, 2).await;
    log.append_keys(0, &["2"]).await;
    assert_eq!(log.careful_lanes().await, [2]);
    log.append_keys(2, &["3"]).await;
    log.forget_attempt(place(2, 1)).await;
    assert!(log.careful_lanes().await.is_empty());
}

/// A process with fewer messages in flight takes no suspicion from the others.
pub async fn a_later_crash_does_not_shorten_care<F: Fixture<Store: LogStore>>(fixture: F) {
    if !fixture.capabilities().counts_crashes {
        return crashes_lead_to_no_care(fixture).await;
    }
    let log = OneHandler::new(fixture).await;
    log.append_keys(0, &["1", "2", "3", "4"]).await;
    for in_flight in [3, 3, 1] {
        crash(&log, in_flight).await;
    }
    for pos in 1..=2 {
        log.forget_attempt(place(0, pos)).await;
        assert_eq!(log.careful_lanes().await, [0], "position {pos}");
    }
    log.forget_attempt(place(0, 3)).await;
    assert!(log.careful_lanes().await.is_empty());
}

/// If the message's transaction is rolled back, the note stays and nothing is counted.
pub async fn a_note_is_forgotten_with_the_commit<F: Fixture<Store: LogStore>>(fixture: F) {
    if !fixture.capabilities().counts_crashes {
        return crashes_lead_to_no_care(fixture).await;
    }
    let log = OneHandler::new(fixture).await;
    log.append_keys(0, &["1", "2", "3"]).await;
    crash(&log, 2).await;
    crash(&log, 2).await;
    let (one, two) = (log.enter().await, log.enter().await);
    assert_eq!(log.note_attempt(place(0, 1), one).await, Some(1));
    log.forget_attempt_in_vain(place(0, 1)).await;
    assert_eq!(log.note_attempt(place(0, 1), two).await, None, "the first process is still noted");
    log.forget_attempt(place(0, 1)).await;
    assert_eq!(log.careful_lanes().await, [0]);
    log.forget_attempt(place(0, 2)).await;
    assert!(log.careful_lanes().await.is_empty());
}
