//! Appending: once per key, in order, and read back as it was.

use std::time::{Duration, SystemTime};

use oncebox_core::store::{Appended, LaneChoice, LaneCount, Log, NewMessage, Registry};
use oncebox_core::{Headers, Key, LogStore};

use super::refused;
use crate::Fixture;
use crate::one_handler::{A_WHILE, ALL, LATER, OneHandler, message, place};

fn known(lane: u16, pos: i64, key: &str) -> Appended {
    Appended::Known { place: Some(place(lane, pos)), fingerprint: Some(message("a", key).fingerprint) }
}

/// A key is known by its kind, in every lane; a lane counts for itself.
pub async fn positions_have_no_gaps_and_known_keys_get_none<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    let first = log.append(1, &[message("a", "1"), message("a", "2")]).await;
    assert_eq!(first, [Appended::New(place(1, 1)), Appended::New(place(1, 2))]);
    let without_key = NewMessage { key: None, ..message("a", "2") };
    let second = [message("a", "3"), message("a", "2"), without_key.clone(), message("b", "2"), without_key];
    assert_eq!(
        log.append(1, &second).await,
        [
            Appended::New(place(1, 3)),
            known(1, 2, "2"),
            Appended::New(place(1, 4)),
            Appended::New(place(1, 5)),
            Appended::New(place(1, 6)),
        ]
    );
    let third = log.append_to(LaneChoice::Prefer(3), &[message("a", "3"), message("a", "4")]).await;
    assert_eq!(third.unwrap(), [known(1, 3, "3"), Appended::New(place(3, 1))]);
    assert_eq!(log.positions(1).await, [1, 2, 3, 4, 5, 6]);
    assert_eq!(log.positions(3).await, [1]);
    for (kind, key) in [("a", "1"), ("a", "2"), ("a", "3"), ("a", "4"), ("b", "2")] {
        assert!(log.is_accepted(kind, key).await, "{kind} {key}");
    }
    assert!(!log.is_accepted("b", "1").await);
    assert!(log.append(0, &[]).await.is_empty());
}

/// A thousand messages in one transaction.
pub async fn a_large_batch_is_appended_whole_and_known_whole<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    let messages: Vec<_> = (1..=1000).map(|n| message("a", &n.to_string())).collect();
    let expected: Vec<_> = (1..=1000).map(|pos| Appended::New(place(0, pos))).collect();
    assert_eq!(log.append(0, &messages).await, expected);
    let expected: Vec<_> = (1..=1000).map(|pos| known(0, pos, &pos.to_string())).collect();
    assert_eq!(log.append(2, &messages).await, expected);
    assert!(log.positions(2).await.is_empty());
    let batch = log.peek(0, ALL).await.unwrap();
    assert_eq!(batch.messages.len(), 1000);
    assert_eq!(batch.messages[999].body, messages[999].body);
}

/// Keys, headers and times of any length and age.
pub async fn a_message_is_read_back_as_it_was_appended<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    // More than 512 bytes, so that the store keeps a digest of the key.
    let long = "x".repeat(600);
    let mut headers = Headers::new();
    headers.append("traceparent", "00-1");
    let (now, before_1970) = (log.now().await, SystemTime::UNIX_EPOCH - Duration::from_secs(1));
    let full = NewMessage {
        order_by: Some(Key::new([0, 255])),
        headers: headers.clone(),
        occurred_at: Some(before_1970),
        due_at: Some(now + LATER),
        waited: LATER,
        body: vec![0, 159, 255],
        ..message("a", &long)
    };
    log.append(0, &[full]).await;
    let read = log.peek(0, ALL).await.unwrap().messages.remove(0);
    assert_eq!((read.place, read.kind.as_str()), (place(0, 1), "a"));
    assert_eq!(read.key, Some(Key::from(long.as_str())));
    assert_eq!(read.order_by, Some(Key::new([0, 255])));
    assert_eq!(read.headers, headers);
    assert_eq!(read.body, [0, 159, 255]);
    assert_eq!((read.occurred_at, read.due_at), (Some(before_1970), Some(now + LATER)));
    assert!(read.due_in > LATER - A_WHILE && read.due_in <= LATER, "{:?}", read.due_in);
    assert!(read.waited >= LATER && read.waited < LATER + A_WHILE, "{:?}", read.waited);
    assert_eq!((read.failures, read.attempts.as_deref(), read.edited), (0, None, false));
    assert_eq!(log.find_message("a", &long).await, Some(place(0, 1)));
    assert_eq!(log.find_message("b", &long).await, None);
}

/// Their messages never were in this log.
pub async fn imported_keys_are_known_without_a_place<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    assert_eq!(log.import(&["1", "2", "3"]).await, 3);
    assert_eq!(log.import(&["2", "3", "4"]).await, 1);
    let appended = log.append(0, &[message("a", "3"), message("a", "5")]).await;
    assert_eq!(appended, [Appended::Known { place: None, fingerprint: None }, Appended::New(place(0, 1))]);
}

/// Before there is a log, and beyond its last lane.
pub async fn a_lane_that_does_not_exist_is_refused<F: Fixture<Store: LogStore>>(fixture: F) {
    let store = fixture.store();
    let append = async |lane| store.append(LaneChoice::Only(lane), &[]).await;
    refused(append(0).await);
    store.register(Some(LaneCount(None)), &[]).await.unwrap();
    append(LaneCount::DEFAULT - 1).await.unwrap();
    refused(append(LaneCount::DEFAULT).await);
}
