//! Care: which message is to blame for the death of processes.

use std::time::Duration;

use oncebox_core::store::{NewProcess, ProcessId, Processes, Store, Work};
use uuid::Uuid;

use crate::one_handler::{LIMITS, OneHandler, place};

async fn enter(log: &OneHandler) -> ProcessId {
    let id = ProcessId(Uuid::now_v7());
    let process = NewProcess {
        id,
        name: "host 7".into(),
        handlers: vec![log.handler],
        lease: Duration::from_secs(1),
        in_hand: 2,
    };
    log.store.enter(&process).await.unwrap();
    id
}

async fn die(log: &OneHandler, process: ProcessId) {
    log.store.travel(Duration::from_secs(5));
    log.store.bury_process(process, false).await.unwrap().unwrap();
}

async fn forget(log: &OneHandler, lane: u16, pos: i64) {
    let mut tx = log.store.begin(LIMITS).await.unwrap();
    log.store.forget_attempt(&mut tx, log.handler, place(lane, pos)).await.unwrap();
    log.store.commit(tx).await.unwrap();
}

#[tokio::test]
async fn every_death_with_a_note_counts() {
    let log = OneHandler::new().await;
    let note = async |process| log.store.note_attempt(log.handler, place(0, 7), process).await.unwrap();
    let first = enter(&log).await;
    assert_eq!(note(first).await, Some(1));
    assert_eq!(note(first).await, Some(1));
    // As long as it lives nobody else runs it.
    let second = enter(&log).await;
    assert_eq!(note(second).await, None);
    die(&log, first).await;
    assert_eq!(note(second).await, Some(2));
    assert_eq!(note(second).await, Some(2));
    die(&log, second).await;
    let third = enter(&log).await;
    assert_eq!(note(third).await, Some(3));
    // Other messages count for themselves.
    assert_eq!(log.store.note_attempt(log.handler, place(1, 7), third).await.unwrap(), Some(1));
    forget(&log, 0, 7).await;
    assert_eq!(note(third).await, Some(1));
}

#[tokio::test]
async fn care_ends_with_its_last_message_or_when_nothing_is_left() {
    let log = OneHandler::new().await;
    for lane in 0..4 {
        let [one, two, three] = [1, 2, 3].map(|n| format!("{lane}-{n}"));
        // More than a process has in hand, except in one lane.
        let all: &[&str] = if lane == 1 { &[&one] } else { &[&one, &two, &three] };
        log.append_keys(lane, all).await;
    }
    let careful = async || -> Vec<u16> {
        let look = log.store.look(&[log.handler]).await.unwrap();
        assert_eq!(look.waiting.len(), 4);
        look.waiting.iter().filter(|waiting| waiting.careful).map(|waiting| waiting.lane).collect()
    };
    assert!(careful().await.is_empty());
    die(&log, enter(&log).await).await;
    assert!(careful().await.is_empty(), "one death is no reason");
    die(&log, enter(&log).await).await;
    assert_eq!(careful().await, [0, 1, 2, 3]);
    forget(&log, 2, 1).await;
    assert_eq!(careful().await, [0, 1, 2, 3]);
    forget(&log, 2, 2).await;
    assert_eq!(careful().await, [0, 1, 3]);
    log.store.end_care(log.handler, 0).await.unwrap();
    assert_eq!(careful().await, [1, 3]);
    // There was one message only.
    forget(&log, 1, 1).await;
    assert_eq!(careful().await, [3]);
    // Where no care is needed there is nothing to count.
    forget(&log, 0, 1).await;
    assert_eq!(careful().await, [3]);
}

#[tokio::test]
async fn no_care_is_needed_where_nothing_waits() {
    let log = OneHandler::new().await;
    log.append_keys(2, &["a"]).await;
    die(&log, enter(&log).await).await;
    die(&log, enter(&log).await).await;
    assert_eq!(log.count("oncebox_careful").await, 1);
    assert_eq!(log.count("oncebox_careful where lane = 2 and messages_left = 1").await, 1);
}

#[tokio::test]
async fn a_note_is_taken_back_with_the_transaction_only() {
    let log = OneHandler::new().await;
    log.append_keys(0, &["a", "b", "c"]).await;
    die(&log, enter(&log).await).await;
    die(&log, enter(&log).await).await;
    let process = enter(&log).await;
    log.store.note_attempt(log.handler, place(0, 1), process).await.unwrap();
    let mut tx = log.store.begin(LIMITS).await.unwrap();
    log.store.forget_attempt(&mut tx, log.handler, place(0, 1)).await.unwrap();
    log.store.rollback(tx).await;
    assert_eq!(log.count("oncebox_attempting").await, 1);
    assert_eq!(log.count("oncebox_careful where messages_left = 2").await, 1);
}
