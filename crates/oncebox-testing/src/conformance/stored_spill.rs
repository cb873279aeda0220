//! Spill: failed inline messages are retried from the log, and acknowledged to their source.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox_core::store::{MarkerState, Select, Waits};
use oncebox_core::{
    Attempt, BoxError, EffectId, ErrorKind, Failure, Inbox, InboxBuilder, Key, LogStore, Mode, Once, Outcome,
    PruneReport, Reply, Report, Retention, Settlement,
};

use super::stored::{AT_ONCE, Conn, accept_new, one_lane, sample, with_effect};
use super::stored_retention::live_for;
use super::{Fixture, Sample};
use crate::operator;

const HOUR: Duration = Duration::from_secs(3600);

fn spilling<F: Fixture<Store: LogStore>>(fixture: &F) -> InboxBuilder<F::Store> {
    Inbox::builder(fixture.store()).mode(Mode::inline().spill()).lanes(1).retry(AT_ONCE)
}

/// A builder with a handler that writes an effect and returns the result of `judge`.
fn with_ledger<F: Fixture<Store: LogStore>>(
    fixture: &F,
    builder: InboxBuilder<F::Store>,
    judge: impl Fn(&str, u32) -> Result<(), Failure> + Clone + Send + Sync + 'static,
) -> InboxBuilder<F::Store> {
    let effects = fixture.clone();
    let handler =
        async move |sample: Sample, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), Failure> {
            effects.effect(conn, &sample.id).await?;
            judge(&sample.id, n)
        };
    builder.on("ledger", handler)
}

fn name_of(report: &Report, handler: &str) -> &'static str {
    report.outcome(handler).map_or("no outcome", Outcome::name)
}

async fn deliver<S: LogStore>(inbox: &Inbox<S>, id: &str) -> &'static str {
    let report = inbox.process(sample(id)).await.unwrap();
    assert_eq!(report.settlement(), Settlement::Ack, "{report:?}");
    name_of(&report, "ledger")
}

async fn state<S: LogStore>(inbox: &Inbox<S>, id: &str) -> Option<MarkerState> {
    inbox.marker("ledger", "sample", id).await.unwrap().map(|marker| marker.state)
}

/// The source is done, a redelivery is a duplicate before and after, and there is one effect.
pub async fn what_fails_inline_is_tried_again_from_the_log<F: Fixture<Store: LogStore>>(fixture: F) {
    let judge = |id: &str, n| match (id, n) {
        ("fails", 1) => Err("at first".into()),
        ("later", 1) => Err(Failure::after(HOUR, "busy")),
        _ => Ok(()),
    };
    let inbox = with_ledger(&fixture, spilling(&fixture), judge).build().await.unwrap();
    assert_eq!(deliver(&inbox, "fine").await, "done");
    assert_eq!(state(&inbox, "fine").await, Some(MarkerState::Done));
    assert_eq!(deliver(&inbox, "fails").await, "queued");
    assert_eq!(state(&inbox, "fails").await, Some(MarkerState::Spilled));
    assert_eq!(deliver(&inbox, "fails").await, "duplicate");
    assert_eq!(fixture.effects("fails").await, 0);
    let tasks = inbox.operators().tasks(None, 10).await.unwrap();
    assert_eq!((tasks.len(), tasks[0].failures, tasks[0].waits), (1, 1, Waits::Turn));
    assert_eq!(tasks[0].error.as_deref(), Some("at first"));

    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed), (1, 0));
    assert_eq!(state(&inbox, "fails").await, Some(MarkerState::Done));
    assert_eq!(deliver(&inbox, "fails").await, "duplicate");

    assert_eq!(deliver(&inbox, "later").await, "queued");
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    fixture.travel(HOUR);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    for id in ["fine", "fails", "later"] {
        assert_eq!(fixture.effects(id).await, 1, "{id}");
        assert_eq!(deliver(&inbox, id).await, "duplicate");
    }
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
}

/// A sweep does not delete spilled markers and accept markers, however old they are.
pub async fn a_sweep_leaves_what_is_not_done<F: Fixture<Store: LogStore>>(fixture: F) {
    const PERIOD: Duration = Duration::from_secs(24 * 3600);
    let retention = Retention::new().period(PERIOD).automatic(false).every(HOUR).batch(10);
    let judge = |id: &str, n| match (id, n) {
        ("later", 1) => Err(Failure::after(PERIOD * 2, "busy")),
        _ => Ok(()),
    };
    let inline = spilling(&fixture).retention(retention);
    let inline = with_ledger(&fixture, inline, judge).build().await.unwrap();
    let stored = with_effect(&fixture, one_lane(&fixture).retention(retention), "stored");
    let stored = stored.build().await.unwrap();
    assert_eq!(deliver(&inline, "fine").await, "done");
    assert_eq!(deliver(&inline, "later").await, "queued");
    accept_new(&stored, sample("accepted")).await;

    live_for(&fixture, PERIOD + HOUR).await;
    assert_eq!(inline.sweep().await.unwrap().deleted, 1);
    assert_eq!(state(&inline, "fine").await, None);
    assert_eq!(state(&inline, "later").await, Some(MarkerState::Spilled));
    assert_eq!(deliver(&inline, "later").await, "duplicate");
    assert!(stored.accept(sample("accepted")).await.unwrap().is_duplicate());
    live_for(&fixture, PERIOD).await;
    assert_eq!(inline.work_until_idle().await.unwrap().done, 1);
    assert_eq!(stored.work_until_idle().await.unwrap().done, 1);
    assert_eq!((fixture.effects("later").await, fixture.effects("stored accepted").await), (1, 1));
}

/// Over two inboxes: one of them is spilled, whatever the others find.
pub async fn copies_at_once_are_spilled_once<F: Fixture<Store: LogStore>>(fixture: F) {
    let healed = Arc::new(AtomicBool::new(false));
    let builder = || {
        let heal = healed.clone();
        let judge = move |_: &str, _| match heal.load(Ordering::SeqCst) {
            true => Ok(()),
            false => Err("not yet".into()),
        };
        with_ledger(&fixture, spilling(&fixture), judge).build()
    };
    let inboxes = [builder().await.unwrap(), builder().await.unwrap()];
    for round in 0..5 {
        let id = format!("copy-{round}");
        let copies: Vec<_> = (0..8)
            .map(|n| {
                let (inbox, id) = (inboxes[n % 2].clone(), id.clone());
                tokio::spawn(async move { deliver(&inbox, &id).await })
            })
            .collect();
        let mut queued = 0;
        for copy in copies {
            let outcome = copy.await.unwrap();
            assert!(matches!(outcome, "queued" | "duplicate"), "{outcome}");
            queued += u32::from(outcome == "queued");
        }
        assert_eq!(queued, 1, "{id}");
    }
    assert_eq!(inboxes[0].operators().tasks(None, 100).await.unwrap().len(), 5);
    healed.store(true, Ordering::SeqCst);
    assert_eq!(inboxes[1].work_until_idle().await.unwrap().done, 5);
    for round in 0..5 {
        assert_eq!(fixture.effects(&format!("copy-{round}")).await, 1);
    }
}

/// At once if nothing can help, else with the first try in its history; the marker goes with it.
pub async fn what_fails_inline_for_good_is_a_dead_letter<F: Fixture<Store: LogStore>>(fixture: F) {
    let healed = Arc::new(AtomicBool::new(false));
    let heal = healed.clone();
    let judge = move |id: &str, n: u32| match id {
        _ if heal.load(Ordering::SeqCst) => Ok(()),
        "permanent" | "discarded" => Err(Failure::permanent("never")),
        _ => Err(format!("attempt {n} failed").into()),
    };
    let inbox = with_ledger(&fixture, spilling(&fixture), judge).build().await.unwrap();
    for id in ["permanent", "discarded"] {
        assert_eq!(deliver(&inbox, id).await, "queued");
        assert_eq!(state(&inbox, id).await, Some(MarkerState::Spilled));
    }
    let letters = inbox.operators().dead_letters(Select::all(), 10).await.unwrap();
    assert_eq!((letters.len(), letters[0].attempts.len()), (2, 1));
    assert_eq!((letters[0].error.as_str(), letters[0].handler.as_str()), ("never", "ledger"));
    assert_eq!(letters[0].key, Some(Key::from("permanent")));
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    assert_eq!(deliver(&inbox, "permanent").await, "duplicate");

    assert_eq!(deliver(&inbox, "keeps failing").await, "queued");
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (0, 1, 1));
    let letters = inbox.operators().dead_letters(Select::all().error("attempt"), 10).await.unwrap();
    let history: Vec<_> =
        letters[0].attempts.iter().map(|past| (past.attempt, past.error.as_str())).collect();
    assert_eq!(history, [(1, "attempt 1 failed"), (2, "attempt 2 failed"), (3, "attempt 3 failed")]);

    let place = letters[0].place;
    let discarded = inbox.operators().dead_letters(Select::all(), 10).await.unwrap();
    let discarded = discarded.iter().find(|letter| letter.key == Some(Key::from("discarded"))).unwrap().place;
    assert_eq!(
        inbox.operators().discard_dead(Select::all().at(discarded), &operator("ann")).await.unwrap(),
        1
    );
    assert_eq!(state(&inbox, "discarded").await, Some(MarkerState::Done));
    assert_eq!(inbox.operators().resolve_dead(Select::all().at(place), &operator("ann")).await.unwrap(), 1);
    assert_eq!(state(&inbox, "keeps failing").await, Some(MarkerState::Done));
    healed.store(true, Ordering::SeqCst);
    assert_eq!(inbox.operators().retry_dead(Select::all(), &operator("ann")).await.unwrap(), 1);
    assert_eq!(state(&inbox, "permanent").await, Some(MarkerState::Spilled));
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(state(&inbox, "permanent").await, Some(MarkerState::Done));
    for (id, count) in [("permanent", 1), ("discarded", 0), ("keeps failing", 0)] {
        assert_eq!(deliver(&inbox, id).await, "duplicate");
        assert_eq!(fixture.effects(id).await, count, "{id}");
    }
}

/// The call has no reply before the message is done.
pub async fn a_spilled_call_has_its_reply_when_it_is_done<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = Arc::new(AtomicU32::new(0));
    let (effects, count) = (fixture.clone(), runs.clone());
    let handler = async move |sample: Sample, conn: &mut Conn<F>| -> Result<Reply<String>, BoxError> {
        effects.effect(conn, &sample.id).await?;
        match count.fetch_add(1, Ordering::SeqCst) {
            0 => Err("at first".into()),
            n => Ok(Reply(format!("receipt {n} for {}", sample.id))),
        }
    };
    let inbox = spilling(&fixture).on("charge", handler).build().await.unwrap();
    let called = Sample::new("called");
    for _ in 0..2 {
        let error = inbox.call::<String, _>("charge", &called).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoResult, "{error}");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    let reply = inbox.call::<String, _>("charge", &called).await.unwrap();
    assert_eq!(reply, Once::Replayed("receipt 1 for called".to_owned()));
    assert_eq!(fixture.effects("called").await, 1);
}

/// It is spilled when it is delivered, and runs from the log.
pub async fn a_detached_handler_of_an_inline_inbox_runs_later<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs: Arc<Mutex<Vec<(String, EffectId)>>> = Arc::default();
    let log = runs.clone();
    let mail =
        async move |sample: Sample, Attempt(n): Attempt, id: EffectId| -> Result<Reply<u32>, BoxError> {
            log.lock().unwrap().push((sample.id, id));
            if n == 1 { Err("at first".into()) } else { Ok(Reply(n)) }
        };
    let builder = Inbox::builder(fixture.store()).mode(Mode::inline()).lanes(1).retry(AT_ONCE);
    let inbox = with_ledger(&fixture, builder, |_, _| Ok(()));
    let inbox = inbox.on_with("mail", mail, |options| options.detached()).build().await.unwrap();
    let report = inbox.process(sample("a")).await.unwrap();
    assert_eq!((name_of(&report, "ledger"), name_of(&report, "mail")), ("done", "queued"));
    assert_eq!(report.settlement(), Settlement::Ack);
    assert!(runs.lock().unwrap().is_empty());
    let marker = inbox.marker("mail", "sample", "a").await.unwrap().unwrap();
    assert_eq!(marker.state, MarkerState::Spilled);
    let report = inbox.process(sample("a")).await.unwrap();
    assert_eq!((name_of(&report, "ledger"), name_of(&report, "mail")), ("duplicate", "duplicate"));

    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed), (1, 1));
    let id = EffectId::of("mail", "sample", &Key::from("a"));
    assert_eq!(*runs.lock().unwrap(), [("a".to_owned(), id), ("a".to_owned(), id)]);
    let marker = inbox.marker("mail", "sample", "a").await.unwrap().unwrap();
    assert_eq!(marker.state, MarkerState::Done);
    let reply = inbox.call::<u32, _>("mail", &Sample::new("a")).await.unwrap();
    assert_eq!(reply, Once::Replayed(2));
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    assert_eq!(fixture.effects("a").await, 1);
}

/// Its marker is done before it runs. An operator's retry of its dead letter still runs it.
pub async fn at_most_once_of_an_inline_inbox_is_run_again_by_operators<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let runs = Arc::new(AtomicU32::new(0));
    let count = runs.clone();
    let mail = async move |_: Sample| -> Result<(), BoxError> {
        if count.fetch_add(1, Ordering::SeqCst) == 0 { Err("no answer".into()) } else { Ok(()) }
    };
    let builder = Inbox::builder(fixture.store()).mode(Mode::inline()).lanes(1).retry(AT_ONCE);
    let inbox = builder.on_with("mail", mail, |options| options.at_most_once()).build().await.unwrap();
    let report = inbox.process(sample("a")).await.unwrap();
    assert_eq!(name_of(&report, "mail"), "queued");
    assert_eq!(inbox.work_until_idle().await.unwrap().dead, 1);
    assert_eq!(name_of(&inbox.process(sample("a")).await.unwrap(), "mail"), "duplicate");
    assert_eq!(inbox.operators().retry_dead(Select::all(), &operator("ann")).await.unwrap(), 1);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(name_of(&inbox.process(sample("a")).await.unwrap(), "mail"), "duplicate");
    let marker = inbox.marker("mail", "sample", "a").await.unwrap().unwrap();
    assert_eq!(marker.state, MarkerState::Done);
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
}

/// It is in the log for one handler; no other handler reads it.
pub async fn a_spilled_message_runs_in_its_handler_alone<F: Fixture<Store: LogStore>>(fixture: F) {
    let judge = |_: &str, n| if n == 1 { Err("at first".into()) } else { Ok(()) };
    let inline = with_ledger(&fixture, spilling(&fixture), judge).build().await.unwrap();
    let stored = with_effect(&fixture, one_lane(&fixture), "stored").build().await.unwrap();
    for id in ["a", "b"] {
        assert_eq!(deliver(&inline, id).await, "queued");
    }
    assert!(stored.operators().pending("stored", 10).await.unwrap().is_empty());
    assert_eq!(stored.work_until_idle().await.unwrap().done, 0);
    let late = with_effect(&fixture, with_effect(&fixture, one_lane(&fixture), "stored"), "late");
    assert_eq!(late.build().await.unwrap().work_until_idle().await.unwrap().done, 0);
    assert_eq!((fixture.effects("stored a").await, fixture.effects("late a").await), (0, 0));
    // A spilled message belongs to its handler alone: the same key is still new for the other handlers.
    assert!(stored.accept(sample("a")).await.unwrap().is_new());
    assert_eq!(stored.work_until_idle().await.unwrap().done, 1);
    assert_eq!(inline.work_until_idle().await.unwrap().done, 2);
    assert_eq!((fixture.effects("stored a").await, fixture.effects("a").await), (1, 1));

    let error = inline.accept(sample("c")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains("process()"), "{error}");
}

/// A spilled message is not pruned while it waits.
pub async fn a_spilled_message_is_pruned_when_it_is_done<F: Fixture<Store: LogStore>>(fixture: F) {
    let keep = HOUR * 24;
    let retention = Retention::new().automatic(false);
    let judge = move |id: &str, n| match (id, n) {
        ("slow", 1) => Err(Failure::after(HOUR * 36, "busy")),
        (_, 1) => Err("at first".into()),
        _ => Ok(()),
    };
    let builder = spilling(&fixture).keep_messages(keep).retention(retention);
    let inbox = with_ledger(&fixture, builder, judge).build().await.unwrap();
    for id in ["a", "slow", "b", "newest"] {
        assert_eq!(deliver(&inbox, id).await, "queued");
    }
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 3);
    let kept = async || -> Vec<i64> {
        let messages = inbox.operators().messages(0, 0, 100).await.unwrap();
        messages.iter().map(|found| found.message.place.pos).collect()
    };
    assert_eq!(inbox.prune().await.unwrap(), PruneReport::default());
    live_for(&fixture, keep + HOUR).await;
    assert_eq!(inbox.prune().await.unwrap().messages, 2);
    assert_eq!(kept().await, [2, 4], "what waits, and the newest of its lane");
    live_for(&fixture, keep).await;
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(inbox.prune().await.unwrap().messages, 1);
    assert_eq!(kept().await, [4]);
    for id in ["a", "slow", "b", "newest"] {
        assert_eq!(deliver(&inbox, id).await, "duplicate");
        assert_eq!(fixture.effects(id).await, 1, "{id}");
    }
}
