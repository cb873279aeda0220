//! Modes: a handler changes its mode by way of mixed, and no key takes effect twice.

use std::time::Duration;

use oncebox_core::store::{MarkerState, ReplayFrom, Select};
use oncebox_core::{
    Attempt, Error, ErrorKind, Failure, Inbox, InboxBuilder, InboxStore, LogStore, Mode, Once, Outcome,
    Replay, Reply, Retention,
};

use super::stored::{AT_ONCE, Conn, accept_new, sample};
use super::stored_retention::live_for;
use super::{Fixture, Sample};
use crate::operator;

const HOUR: Duration = Duration::from_secs(3600);
/// The inbox's own timer stays out of the way: time moves by the test's hand.
const PERIOD: Duration = Duration::from_secs(2 * 24 * 3600);
const RETENTION: Retention = Retention::new().period(PERIOD).automatic(false).every(HOUR).batch(100);

async fn refused<S: InboxStore>(builder: InboxBuilder<S>) -> String {
    let error: Error = builder.build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    error.to_string()
}

/// An inbox of a mode with a handler that writes an effect; messages whose ids say so fail.
fn of<F: Fixture<Store: LogStore>>(fixture: &F, mode: Mode) -> InboxBuilder<F::Store> {
    let effects = fixture.clone();
    let handler =
        async move |sample: Sample, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), Failure> {
            effects.effect(conn, &sample.id).await?;
            match sample.id.split(' ').next() {
                Some("task") if n == 1 => Err(Failure::after(HOUR, "busy")),
                Some("dead") => Err(Failure::permanent("never")),
                _ => Ok(()),
            }
        };
    let builder = Inbox::builder(fixture.store()).mode(mode).lanes(1).retry(AT_ONCE).retention(RETENTION);
    builder.on("ledger", handler)
}

async fn deliver<S: LogStore>(inbox: &Inbox<S>, id: &str) -> &'static str {
    inbox.process(sample(id)).await.unwrap().outcome("ledger").map_or("no outcome", Outcome::name)
}

async fn state<S: LogStore>(inbox: &Inbox<S>, id: &str) -> Option<MarkerState> {
    inbox.marker("ledger", "sample", id).await.unwrap().map(|marker| marker.state)
}

/// Either the delivery or the accept may be first.
pub async fn a_key_that_comes_both_ways_takes_effect_once<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = of(&fixture, Mode::mixed()).build().await.unwrap();
    assert_eq!(deliver(&inbox, "inline first").await, "done");
    accept_new(&inbox, sample("inline first")).await;
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 0);

    accept_new(&inbox, sample("accepted first")).await;
    assert_eq!(deliver(&inbox, "accepted first").await, "done", "it has not run yet");
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 0);

    accept_new(&inbox, sample("worked first")).await;
    accept_new(&inbox, sample("beside it")).await;
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
    assert_eq!(deliver(&inbox, "worked first").await, "duplicate");
    for id in ["inline first", "accepted first", "worked first", "beside it"] {
        assert_eq!(fixture.effects(id).await, 1, "{id}");
        assert_eq!(state(&inbox, id).await, Some(MarkerState::Done), "{id}");
    }
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    let status = &inbox.operators().handler_statuses().await.unwrap()[0];
    assert_eq!((status.lag, status.tasks, status.dead), (0, 0, 0));
}

/// It gets an error, instead of waiting for lanes that it will never have.
pub async fn a_process_with_an_outdated_handler_is_asked_to_restart<F: Fixture<Store: LogStore>>(fixture: F) {
    let before = of(&fixture, Mode::stored()).build().await.unwrap();
    let after = of(&fixture, Mode::mixed()).build().await.unwrap();
    accept_new(&before, sample("a")).await;
    let error = before.work_until_idle().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains("\"ledger\" was changed by another process"), "{error}");
    assert_eq!(after.work_until_idle().await.unwrap().done, 1);
    assert_eq!(fixture.effects("a").await, 1);
    assert!(before.work_until_idle().await.unwrap().is_empty(), "there is nothing to do");
}

/// Two inboxes, both ways, all at once.
pub async fn a_key_that_comes_both_ways_at_once_takes_effect_once<F: Fixture<Store: LogStore>>(fixture: F) {
    let inboxes = [
        of(&fixture, Mode::mixed()).build().await.unwrap(),
        of(&fixture, Mode::mixed()).build().await.unwrap(),
    ];
    let mut calls = Vec::new();
    for n in 0..40 {
        // All four combinations of the two inboxes.
        let (inline, accepting) = (inboxes[n % 2].clone(), inboxes[(n + n / 2) % 2].clone());
        calls.push(tokio::spawn(async move {
            let outcome = deliver(&inline, &format!("m-{n}")).await;
            assert!(matches!(outcome, "done" | "duplicate"), "{outcome}");
        }));
        calls.push(tokio::spawn(async move {
            accept_new(&accepting, sample(&format!("m-{n}"))).await;
        }));
    }
    let workers = inboxes.clone().map(|inbox| {
        tokio::spawn(async move {
            // Repeated, because messages arrive while the workers run.
            for _ in 0..10 {
                inbox.work_until_idle().await.unwrap();
            }
        })
    });
    for call in calls.into_iter().chain(workers) {
        call.await.unwrap();
    }
    for inbox in &inboxes {
        inbox.work_until_idle().await.unwrap();
    }
    for n in 0..40 {
        assert_eq!(fixture.effects(&format!("m-{n}")).await, 1, "m-{n}");
        assert_eq!(state(&inboxes[0], &format!("m-{n}")).await, Some(MarkerState::Done));
    }
}

/// The log has the message, and retries it.
pub async fn what_failed_from_the_log_is_a_duplicate_inline<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = of(&fixture, Mode::mixed()).build().await.unwrap();
    for id in ["task", "dead", "fine"] {
        accept_new(&inbox, sample(id)).await;
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (1, 1, 1));
    for id in ["task", "dead"] {
        assert_eq!(state(&inbox, id).await, Some(MarkerState::Spilled), "{id}");
        assert_eq!(deliver(&inbox, id).await, "duplicate");
    }
    fixture.travel(HOUR);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(state(&inbox, "task").await, Some(MarkerState::Done));
    assert_eq!(inbox.operators().discard_dead(Select::all(), &operator("ann")).await.unwrap(), 1);
    assert_eq!(state(&inbox, "dead").await, Some(MarkerState::Done));
    for (id, count) in [("task", 1), ("dead", 0), ("fine", 1)] {
        assert_eq!(deliver(&inbox, id).await, "duplicate");
        assert_eq!(fixture.effects(id).await, count, "{id}");
    }

    // A failure inline leaves nothing behind: the source delivers again, unless the log has the message too.
    assert_eq!(deliver(&inbox, "task inline").await, "retry");
    assert_eq!(state(&inbox, "task inline").await, None);
    accept_new(&inbox, sample("task inline")).await;
    assert_eq!(inbox.work_until_idle().await.unwrap().failed, 1);
    assert_eq!(deliver(&inbox, "task inline").await, "duplicate");
    fixture.travel(HOUR);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(fixture.effects("task inline").await, 1);
}

/// A replay runs messages again on purpose, whatever their markers say.
pub async fn a_replay_runs_what_its_markers_know<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = of(&fixture, Mode::mixed()).build().await.unwrap();
    for id in ["a", "b"] {
        accept_new(&inbox, sample(id)).await;
    }
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
    inbox.operators().replay("ledger", ReplayFrom::Beginning, &operator("ann")).await.unwrap();
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
    assert_eq!((fixture.effects("a").await, fixture.effects("b").await), (2, 2));
    assert_eq!(deliver(&inbox, "a").await, "duplicate");
}

/// Passed messages are known inline; waiting messages still run.
pub async fn from_stored_to_mixed_nothing_runs_twice<F: Fixture<Store: LogStore>>(fixture: F) {
    let stored = of(&fixture, Mode::stored()).build().await.unwrap();
    for id in ["done", "task", "dead"] {
        accept_new(&stored, sample(id)).await;
    }
    stored.work_until_idle().await.unwrap();
    for id in ["waits", "comes inline"] {
        accept_new(&stored, sample(id)).await;
    }
    let mixed = of(&fixture, Mode::mixed()).build().await.unwrap();
    for id in ["done", "task", "dead"] {
        assert_eq!(deliver(&mixed, id).await, "duplicate");
    }
    assert_eq!(state(&mixed, "task").await, Some(MarkerState::Spilled));
    assert_eq!(deliver(&mixed, "comes inline").await, "done");
    fixture.travel(HOUR);
    assert_eq!(mixed.work_until_idle().await.unwrap().done, 2);
    assert_eq!(state(&mixed, "task").await, Some(MarkerState::Done));
    for (id, count) in [("done", 1), ("task", 1), ("dead", 0), ("waits", 1), ("comes inline", 1)] {
        assert_eq!(fixture.effects(id).await, count, "{id}");
        assert_eq!(deliver(&mixed, id).await, "duplicate");
    }
}

/// Inline keys would run again if they were accepted.
pub async fn to_stored_only_when_inline_keys_are_forgotten<F: Fixture<Store: LogStore>>(fixture: F) {
    let inline = of(&fixture, Mode::inline()).build().await.unwrap();
    assert_eq!(deliver(&inline, "a").await, "done");
    let text = refused(of(&fixture, Mode::stored())).await;
    assert!(text.contains("Mode::mixed()"), "{text}");
    let mixed = of(&fixture, Mode::mixed()).build().await.unwrap();
    assert_eq!(deliver(&mixed, "a").await, "duplicate");
    accept_new(&mixed, sample("b")).await;
    assert_eq!(mixed.work_until_idle().await.unwrap().done, 1);
    let text = refused(of(&fixture, Mode::stored())).await;
    assert!(text.contains("swept"), "{text}");
    accept_new(&mixed, sample("a")).await;
    assert_eq!(mixed.work_until_idle().await.unwrap().done, 0);
    assert_eq!(fixture.effects("a").await, 1);
    assert_eq!(deliver(&mixed, "c").await, "done");
    let text = refused(of(&fixture, Mode::stored())).await;
    assert!(text.contains("swept"), "{text}");

    live_for(&fixture, PERIOD + HOUR).await;
    assert!(mixed.sweep().await.unwrap().deleted > 0);
    let stored = of(&fixture, Mode::stored()).build().await.unwrap();
    assert_eq!(stored.process(sample("d")).await.unwrap_err().kind(), ErrorKind::Configuration);
    accept_new(&stored, sample("d")).await;
    assert_eq!(stored.work_until_idle().await.unwrap().done, 1);
    for id in ["a", "b", "c", "d"] {
        assert_eq!(fixture.effects(id).await, 1, "{id}");
    }
    let text = refused(of(&fixture, Mode::inline())).await;
    assert!(text.contains("Mode::mixed()"), "{text}");
}

/// No handler would read the waiting messages any more.
pub async fn to_inline_only_when_nothing_waits_in_the_log<F: Fixture<Store: LogStore>>(fixture: F) {
    let mixed = of(&fixture, Mode::mixed()).build().await.unwrap();
    for id in ["a", "task", "dead"] {
        accept_new(&mixed, sample(id)).await;
    }
    for mode in [Mode::inline(), Mode::inline().spill()] {
        let text = refused(of(&fixture, mode)).await;
        assert!(text.contains("messages wait"), "{text}");
    }
    mixed.work_until_idle().await.unwrap();
    let text = refused(of(&fixture, Mode::inline())).await;
    assert!(text.contains("tasks or dead letters"), "{text}");
    // A handler that spills may keep its tasks and dead letters, so this change is allowed.
    let spills = of(&fixture, Mode::inline().spill()).build().await.unwrap();
    for id in ["a", "task", "dead"] {
        assert_eq!(deliver(&spills, id).await, "duplicate");
    }
    fixture.travel(HOUR);
    assert_eq!(spills.work_until_idle().await.unwrap().done, 1);
    assert!(refused(of(&fixture, Mode::inline())).await.contains("tasks or dead letters"));
    assert_eq!(spills.operators().discard_dead(Select::all(), &operator("ann")).await.unwrap(), 1);
    let inline = of(&fixture, Mode::inline()).build().await.unwrap();
    for (id, count) in [("a", 1), ("task", 1), ("dead", 0)] {
        assert_eq!(deliver(&inline, id).await, "duplicate");
        assert_eq!(fixture.effects(id).await, count, "{id}");
    }
    assert_eq!(deliver(&inline, "b").await, "done");
}

/// A message that was done inline while it waited in the log must be passed before mixed mode may end.
pub async fn mixed_is_left_when_the_log_has_passed_what_came_inline<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = of(&fixture, Mode::mixed()).build().await.unwrap();
    accept_new(&inbox, sample("both ways")).await;
    assert_eq!(deliver(&inbox, "both ways").await, "done");
    let why = refused(of(&fixture, Mode::stored())).await;
    assert!(why.contains("done inline meanwhile"), "{why}");
    inbox.work_until_idle().await.unwrap();
    let inbox = of(&fixture, Mode::stored()).build().await.unwrap();
    inbox.work_until_idle().await.unwrap();
    assert_eq!(fixture.effects("both ways").await, 1);
}

/// A program that knows a handler as it was before works no more: it would not write what the new one reads.
pub async fn an_older_program_leaves_a_changed_handler_to_the_new_one<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let older = of(&fixture, Mode::stored()).build().await.unwrap();
    let newer = of(&fixture, Mode::mixed()).build().await.unwrap();
    accept_new(&older, sample("a")).await;
    assert_eq!(older.work_once().await.unwrap().done, 0);
    assert_eq!(newer.work_until_idle().await.unwrap().done, 1);
    assert_eq!(deliver(&newer, "a").await, "duplicate");
    assert_eq!(fixture.effects("a").await, 1);
}

/// Replayed messages were done before, so their copies are still duplicates.
pub async fn a_replay_that_is_not_over_is_no_reason_to_forget<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = of(&fixture, Mode::stored()).build().await.unwrap();
    for id in ["a", "b", "c"] {
        accept_new(&inbox, sample(id)).await;
    }
    inbox.work_until_idle().await.unwrap();
    inbox.operators().replay("ledger", ReplayFrom::Beginning, &operator("ann")).await.unwrap();
    let mixed = of(&fixture, Mode::mixed()).build().await.unwrap();
    assert_eq!(deliver(&mixed, "b").await, "duplicate");
    assert_eq!(mixed.work_until_idle().await.unwrap().done, 3, "the replay goes on");
    assert_eq!(deliver(&mixed, "c").await, "duplicate");
    assert_eq!(fixture.effects("b").await, 2);
}

/// A replay of a key with a stored result fails and then succeeds: the newest result counts, and the key is done.
pub async fn a_replay_that_fails_first_ends_with_its_newest_result<F: Fixture<Store: LogStore>>(fixture: F) {
    let handler =
        async |_: Sample, Attempt(n): Attempt, Replay(again): Replay, _: &mut Conn<F>| match (again, n) {
            (false, _) => Ok(Reply("first".to_owned())),
            (true, 1) => Err(Failure::after(HOUR, "busy")),
            (true, _) => Ok(Reply("newest".to_owned())),
        };
    let builder = Inbox::builder(fixture.store()).mode(Mode::mixed()).lanes(1).retry(AT_ONCE);
    let inbox = builder.on("ledger", handler).build().await.unwrap();
    assert_eq!(deliver(&inbox, "a").await, "done");
    accept_new(&inbox, sample("a")).await;
    inbox.work_until_idle().await.unwrap();
    inbox.operators().replay("ledger", ReplayFrom::Beginning, &operator("ann")).await.unwrap();
    assert_eq!(inbox.work_until_idle().await.unwrap().failed, 1);
    assert_eq!(state(&inbox, "a").await, Some(MarkerState::Spilled));
    fixture.travel(HOUR);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(state(&inbox, "a").await, Some(MarkerState::Done));
    let again: Once<String> = inbox.call_envelope("ledger", sample("a")).await.unwrap();
    assert_eq!(again, Once::Replayed("newest".to_owned()));
}
