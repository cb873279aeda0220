//! The survey: the status of handlers and the states of messages.

use std::time::{Duration, SystemTime};

use oncebox_core::store::{MessageState, Place, Survey};
use oncebox_core::{BoxError, Envelope, ErrorKind, Failure, Inbox, LogStore, Mode};

use super::stored::{Conn, accept_new, one_lane, sample, with_effect};
use super::{Fixture, Sample};

const HOUR: Duration = Duration::from_secs(3600);

async fn state<S: LogStore>(inbox: &Inbox<S>, place: Place, handler: &str) -> MessageState {
    let found = inbox.operators().message(place).await.unwrap().expect("the message is there");
    found.handlers.into_iter().find(|(name, _)| name == handler).expect("the handler takes its kind").1
}

/// The lag is reported in messages and in time.
pub async fn lag_says_what_is_ahead_of_a_handler<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_effect(&fixture, one_lane(&fixture), "ledger").build().await.unwrap();
    let slow = with_effect(&fixture, one_lane(&fixture), "slow").build().await.unwrap();
    accept_new(&inbox, sample("a")).await;
    fixture.travel(HOUR);
    for id in ["b", "c"] {
        accept_new(&inbox, sample(id)).await;
    }
    let [ledger, of_slow] = &inbox.operators().handler_statuses().await.unwrap()[..] else {
        panic!("two handlers")
    };
    assert_eq!((&*ledger.handler.name, ledger.handler.mode), ("ledger", Mode::Stored));
    assert_eq!(ledger.handler.kinds, ["sample"]);
    assert_eq!((ledger.lag, of_slow.lag), (3, 3));
    assert_eq!((ledger.passed, of_slow.passed), (0, 0));
    let waiting = ledger.oldest_waiting.unwrap();
    assert!(waiting >= HOUR && waiting < HOUR * 2, "{waiting:?}");

    let pending = inbox.operators().pending("ledger", 2).await.unwrap();
    let keys: Vec<_> =
        pending.iter().map(|message| (message.place.pos, message.key.clone().unwrap())).collect();
    assert_eq!(keys, [(1, "a".into()), (2, "b".into())]);
    assert_eq!(inbox.operators().pending("unknown", 2).await.unwrap_err().kind(), ErrorKind::Configuration);

    assert_eq!(inbox.work_until_idle().await.unwrap().done, 3);
    let [ledger, of_slow] = &inbox.operators().handler_statuses().await.unwrap()[..] else {
        panic!("two handlers")
    };
    assert_eq!((ledger.lag, of_slow.lag), (0, 3));
    assert_eq!((ledger.passed, of_slow.passed), (3, 0));
    assert!(inbox.operators().pending("ledger", 2).await.unwrap().is_empty());
    assert_eq!(slow.work_until_idle().await.unwrap().done, 3);
}

/// An idle handler reports no age. With an age of 0 it would look like a handler that is just behind.
pub async fn a_handler_with_nothing_ahead_has_no_oldest_message<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_effect(&fixture, one_lane(&fixture), "ledger").build().await.unwrap();
    assert_eq!(inbox.operators().handler_statuses().await.unwrap()[0].oldest_waiting, None);
    accept_new(&inbox, sample("a")).await;
    assert!(inbox.operators().handler_statuses().await.unwrap()[0].oldest_waiting.is_some());
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(inbox.operators().handler_statuses().await.unwrap()[0].oldest_waiting, None);
}

/// Waiting, task, done or dead, for each handler.
pub async fn every_message_says_what_became_of_it<F: Fixture<Store: LogStore>>(fixture: F) {
    let effects = fixture.clone();
    let handler = async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), Failure> {
        effects.effect(conn, &sample.id).await?;
        match &*sample.id {
            "task" => Err(Failure::after(HOUR, "not now")),
            "dead" => Err(Failure::permanent("never")),
            _ => Ok(()),
        }
    };
    let inbox = one_lane(&fixture).on("ledger", handler).build().await.unwrap();
    let slow = with_effect(&fixture, one_lane(&fixture), "slow").build().await.unwrap();
    let mut places = Vec::new();
    for id in ["done", "task", "dead"] {
        places.push(accept_new(&inbox, sample(id)).await);
    }
    let due_at = SystemTime::now() + HOUR;
    places.push(accept_new(&inbox, sample("scheduled").with_due_at(due_at)).await);
    for place in &places {
        assert_eq!(state(&inbox, *place, "ledger").await, MessageState::Waiting);
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead, report.scheduled), (1, 1, 1, 1));

    assert_eq!(state(&inbox, places[0], "ledger").await, MessageState::Done);
    let MessageState::Task { failures, error, .. } = state(&inbox, places[1], "ledger").await else {
        panic!("the task is none")
    };
    assert_eq!((failures, error.as_deref()), (1, Some("not now")));
    assert_eq!(state(&inbox, places[2], "ledger").await, MessageState::Dead { error: "never".into() });
    let MessageState::Task { failures, error, .. } = state(&inbox, places[3], "ledger").await else {
        panic!("the scheduled message is no task")
    };
    assert_eq!((failures, error), (0, None));
    for place in &places {
        assert_eq!(state(&inbox, *place, "slow").await, MessageState::Waiting);
    }
    let [ledger, _] = &inbox.operators().handler_statuses().await.unwrap()[..] else {
        panic!("two handlers")
    };
    assert_eq!((ledger.lag, ledger.tasks, ledger.dead), (0, 2, 1));
    let tasks = inbox.operators().tasks(Some("ledger"), 10).await.unwrap();
    let keys: Vec<_> = tasks.iter().map(|task| task.key.clone().unwrap().to_string()).collect();
    // Both are due in about an hour, so their order is open.
    assert!(keys == ["task", "scheduled"] || keys == ["scheduled", "task"], "{keys:?}");
    assert!(inbox.operators().tasks(Some("slow"), 10).await.unwrap().is_empty());
    assert_eq!(inbox.operators().tasks(None, 1).await.unwrap().len(), 1);
    assert_eq!(slow.operators().handler_statuses().await.unwrap()[1].lag, 4);
}

/// Long keys are found too, compared byte by byte.
pub async fn a_message_is_found_by_kind_and_key<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_effect(&fixture, one_lane(&fixture), "ledger").build().await.unwrap();
    // Stores look up keys of more than 512 bytes by a digest.
    let long = "k".repeat(5_000);
    for id in ["a", "b", &long] {
        let place = accept_new(&inbox, sample(id)).await;
        assert_eq!(inbox.operators().find_message("sample", id).await.unwrap(), Some(place));
        let found = inbox.operators().message(place).await.unwrap().unwrap();
        assert_eq!(found.message.key.map(|key| key.to_string()).as_deref(), Some(id));
        assert_eq!((found.message.kind.as_str(), found.message.place), ("sample", place));
    }
    assert_eq!(inbox.operators().find_message("sample", "A").await.unwrap(), None);
    assert_eq!(inbox.operators().find_message("another", "a").await.unwrap(), None);
    assert!(inbox.operators().message(Place { lane: 0, pos: 4 }).await.unwrap().is_none());
    assert!(inbox.operators().message(Place { lane: 0, pos: 0 }).await.unwrap().is_none());
    let behind = inbox.store().messages(0, 1, 1).await.unwrap();
    assert_eq!(behind.iter().map(|found| found.message.place.pos).collect::<Vec<_>>(), [2]);
}

/// They wait for a handler, and block no other message.
pub async fn unhandled_kinds_are_reported<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_effect(&fixture, one_lane(&fixture), "ledger").build().await.unwrap();
    accept_new(&inbox, sample("a")).await;
    assert!(inbox.operators().unhandled_kinds().await.unwrap().is_empty());
    for kind in ["unheard.of", "unseen", "unheard.of"] {
        let _ = inbox.accept(Envelope::new(kind, "{}").with_key("k")).await.unwrap();
    }
    let unhandled = inbox.operators().unhandled_kinds().await.unwrap();
    assert_eq!(unhandled.iter().map(|one| &*one.kind).collect::<Vec<_>>(), ["unheard.of", "unseen"]);
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (1, 0, 0));

    let effects = fixture.clone();
    let raw = async move |envelope: Envelope, conn: &mut Conn<F>| -> Result<(), BoxError> {
        effects.effect(conn, envelope.kind()).await
    };
    let another = one_lane(&fixture).on_raw("raw", ["unheard.of"], raw).build().await.unwrap();
    assert_eq!(another.work_until_idle().await.unwrap().done, 1);
    assert_eq!((fixture.effects("unheard.of").await, fixture.effects("unseen").await), (1, 0));
    let unhandled = inbox.operators().unhandled_kinds().await.unwrap();
    assert_eq!(unhandled.iter().map(|one| &*one.kind).collect::<Vec<_>>(), ["unseen"]);
}
