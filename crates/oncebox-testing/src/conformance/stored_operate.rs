//! Actions of operators on handlers: pause, resume, replay, rename and remove.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use oncebox_core::store::{AuditEntry, HandlerState, Place, ReplayFrom, Replayed, Select};
use oncebox_core::{
    Attempt, EffectId, Error, ErrorKind, Failure, HandlerOptions, Inbox, InboxBuilder, InboxStore, LogStore,
    Mode, Outcome, Replay, Retention,
};

use super::stored::{AT_ONCE, Conn, accept_new, one_lane, sample, with_effect};
use super::stored_retention::live_for;
use super::{Fixture, Sample};
use crate::operator;

const HOUR: Duration = Duration::from_secs(3600);

async fn refused<S: InboxStore>(builder: InboxBuilder<S>) -> String {
    let error: Error = builder.build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    error.to_string()
}

/// The operator, action and handler of each entry, newest first.
async fn audit<S: LogStore>(inbox: &Inbox<S>) -> Vec<(String, String, String)> {
    let entries = inbox.operators().audit(100).await.unwrap();
    let read = |entry: AuditEntry| (entry.operator, entry.action, entry.handler);
    entries.into_iter().map(read).collect()
}

fn entry(operator: &str, action: &str, handler: &str) -> (String, String, String) {
    (operator.to_owned(), action.to_owned(), handler.to_owned())
}

/// The input of one run of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HandlerRun {
    id: String,
    attempt: u32,
    is_replay: bool,
    effect: EffectId,
}

type Runs = Arc<Mutex<Vec<HandlerRun>>>;

/// The runs since the last time, as (message, whether it was a replay).
fn read(runs: &Runs) -> Vec<(String, bool)> {
    std::mem::take(&mut *runs.lock().unwrap()).into_iter().map(|run| (run.id, run.is_replay)).collect()
}

fn replayed(ids: &[&str]) -> Vec<(String, bool)> {
    ids.iter().map(|id| ((*id).to_owned(), true)).collect()
}

fn fresh(ids: &[&str]) -> Vec<(String, bool)> {
    ids.iter().map(|id| ((*id).to_owned(), false)).collect()
}

/// A builder with a handler that writes an effect, records its input, and returns the result of `judge`.
fn noting<F: Fixture<Store: LogStore>>(
    fixture: &F,
    builder: InboxBuilder<F::Store>,
    name: &str,
    runs: &Runs,
    judge: impl Fn(&str, u32) -> Result<(), Failure> + Clone + Send + Sync + 'static,
) -> InboxBuilder<F::Store> {
    let (effects, runs) = (fixture.clone(), runs.clone());
    let handler = async move |sample: Sample,
                              Attempt(attempt): Attempt,
                              Replay(is_replay): Replay,
                              effect: EffectId,
                              conn: &mut Conn<F>|
                -> Result<(), Failure> {
        effects.effect(conn, &sample.id).await?;
        runs.lock().unwrap().push(HandlerRun { id: sample.id.clone(), attempt, is_replay, effect });
        judge(&sample.id, attempt)
    };
    let isolated = |options: HandlerOptions<Sample>| options.isolated();
    builder.retry(AT_ONCE).on_with(name, handler, isolated)
}

fn never_fails(_: &str, _: u32) -> Result<(), Failure> {
    Ok(())
}

/// Nothing runs, everything is accepted, and it can be started meanwhile.
pub async fn a_paused_handler_waits_until_it_is_resumed<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = Runs::default();
    let judge = |id: &str, n| match (id, n) {
        ("task", 1) => Err(Failure::after(HOUR, "busy")),
        _ => Ok(()),
    };
    let builder =
        || with_effect(&fixture, noting(&fixture, one_lane(&fixture), "ledger", &runs, judge), "other");
    let inbox = builder().build().await.unwrap();
    accept_new(&inbox, sample("task")).await;
    inbox.work_until_idle().await.unwrap();
    read(&runs);

    assert!(!inbox.operators().pause_handler("unknown", &operator("ann")).await.unwrap());
    assert!(!inbox.operators().resume_handler("ledger", &operator("ann")).await.unwrap(), "it is at work");
    assert!(inbox.operators().pause_handler("ledger", &operator("ann")).await.unwrap());
    assert!(!inbox.operators().pause_handler("ledger", &operator("ann")).await.unwrap(), "it is paused");
    fixture.travel(HOUR);
    accept_new(&inbox, sample("a")).await;
    let started_meanwhile = builder().build().await.unwrap();
    for inbox in [&inbox, &started_meanwhile] {
        // A worker that waits for the paused handler would hang here.
        let report = tokio::time::timeout(HOUR / 60, inbox.work_until_idle()).await.unwrap().unwrap();
        assert!(report.done <= 1 && report.failed == 0, "{report:?}");
    }
    assert_eq!(read(&runs), []);
    assert_eq!(fixture.effects("other a").await, 1, "no other handler waits");
    let statuses = inbox.operators().handler_statuses().await.unwrap();
    assert_eq!((statuses[0].handler.state, statuses[0].lag), (HandlerState::Paused, 1));
    assert_eq!(statuses[1].handler.state, HandlerState::Active);

    assert!(!inbox.operators().resume_handler("unknown", &operator("bob")).await.unwrap());
    assert!(inbox.operators().resume_handler("ledger", &operator("bob")).await.unwrap());
    assert_eq!(started_meanwhile.work_until_idle().await.unwrap().done, 2);
    let mut ran = read(&runs);
    ran.sort();
    assert_eq!(ran, fresh(&["a", "task"]));
    assert_eq!(audit(&inbox).await, [entry("bob", "resume", "ledger"), entry("ann", "pause", "ledger")]);
}

/// The replay begins with the oldest stored message. Messages accepted later are no replay.
pub async fn a_replay_runs_a_handler_again<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = Runs::default();
    let builder = noting(&fixture, one_lane(&fixture), "ledger", &runs, never_fails);
    let inbox = with_effect(&fixture, builder, "other").build().await.unwrap();
    for id in ["a", "b", "c"] {
        accept_new(&inbox, sample(id)).await;
    }
    inbox.work_until_idle().await.unwrap();
    assert_eq!(read(&runs), fresh(&["a", "b", "c"]));

    let error =
        inbox.operators().replay("unknown", ReplayFrom::Beginning, &operator("ann")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains("unknown"), "{error}");
    assert!(inbox.operators().audit(10).await.unwrap().is_empty());

    let come_to = inbox.operators().replay("ledger", ReplayFrom::Beginning, &operator("ann")).await.unwrap();
    assert_eq!(come_to, Replayed { positions: 3, tasks: 0, dead: 0 });
    accept_new(&inbox, sample("d")).await;
    inbox.work_until_idle().await.unwrap();
    let mut expected = replayed(&["a", "b", "c"]);
    expected.extend(fresh(&["d"]));
    assert_eq!(read(&runs), expected);
    assert_eq!((fixture.effects("a").await, fixture.effects("d").await), (2, 1));
    assert_eq!(fixture.effects("other a").await, 1, "no other handler runs again");
    assert!(inbox.work_until_idle().await.unwrap().is_empty());

    let entries = inbox.operators().audit(10).await.unwrap();
    assert_eq!((entries.len(), &*entries[0].operator, &*entries[0].action), (1, "ann", "replay"));
    assert_eq!((&*entries[0].handler, entries[0].place), ("ledger", None));
    let detail = entries[0].detail.as_deref().unwrap();
    assert!(detail.contains("the beginning") && detail.contains("positions: 3"), "{detail}");
}

/// The replay covers messages received since that time, or the message at that place and later ones.
pub async fn a_replay_begins_at_a_time_or_a_place<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = Runs::default();
    let builder = Inbox::builder(fixture.store()).stored().lanes(2);
    let inbox = noting(&fixture, builder, "ledger", &runs, never_fails).build().await.unwrap();
    // One ordering key for each of the two lanes.
    let mut keys = [String::new(), String::new()];
    for n in 0.. {
        let key = format!("k{n}");
        let place = accept_new(&inbox, sample(&format!("find {key}")).with_order_by(&*key)).await;
        keys[usize::from(place.lane)] = key;
        if keys.iter().all(|key| !key.is_empty()) {
            break;
        }
    }
    let mut places = Vec::new();
    for (n, id) in ["a", "b", "c", "d"].into_iter().enumerate() {
        fixture.travel(HOUR);
        places.push(accept_new(&inbox, sample(id).with_order_by(&*keys[n % 2])).await);
    }
    inbox.work_until_idle().await.unwrap();
    read(&runs);

    let since = inbox.operators().message(places[1]).await.unwrap().unwrap().received_at;
    let come_to =
        inbox.operators().replay("ledger", ReplayFrom::Time(since), &operator("ann")).await.unwrap();
    assert_eq!(come_to.positions, 3);
    inbox.work_until_idle().await.unwrap();
    let mut ran = read(&runs);
    // The messages are in two lanes, which have no common order.
    ran.sort();
    assert_eq!(ran, replayed(&["b", "c", "d"]));
    let future = SystemTime::now() + HOUR * 24;
    let come_to =
        inbox.operators().replay("ledger", ReplayFrom::Time(future), &operator("ann")).await.unwrap();
    assert_eq!(come_to, Replayed::default());
    assert!(inbox.work_until_idle().await.unwrap().is_empty());

    let come_to =
        inbox.operators().replay("ledger", ReplayFrom::Place(places[2]), &operator("ann")).await.unwrap();
    assert_eq!(come_to.positions, 1);
    inbox.work_until_idle().await.unwrap();
    assert_eq!(read(&runs), replayed(&["c"]), "in its lane only");
    let beyond = Place { pos: places[2].pos + 100, ..places[2] };
    assert_eq!(
        inbox
            .operators()
            .replay("ledger", ReplayFrom::Place(beyond), &operator("ann"))
            .await
            .unwrap()
            .positions,
        0
    );
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
}

/// Tasks and dead letters become waiting messages again, and are counted.
pub async fn a_replay_absorbs_tasks_and_dead_letters<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = Runs::default();
    let healed = Arc::new(AtomicBool::new(false));
    let heal = healed.clone();
    let judge = move |id: &str, _| match id {
        _ if heal.load(Ordering::SeqCst) => Ok(()),
        "early dead" | "dead" => Err(Failure::permanent("never")),
        "task" => Err(Failure::after(HOUR, "busy")),
        _ => Ok(()),
    };
    let inbox = noting(&fixture, one_lane(&fixture), "ledger", &runs, judge).build().await.unwrap();
    accept_new(&inbox, sample("early dead")).await;
    let from = accept_new(&inbox, sample("a")).await;
    for id in ["dead", "task", "b"] {
        accept_new(&inbox, sample(id)).await;
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (2, 1, 2));
    read(&runs);
    healed.store(true, Ordering::SeqCst);
    let come_to =
        inbox.operators().replay("ledger", ReplayFrom::Place(from), &operator("ann")).await.unwrap();
    assert_eq!(come_to, Replayed { positions: 4, tasks: 1, dead: 1 });
    let detail = inbox.operators().audit(1).await.unwrap().remove(0).detail.unwrap();
    assert!(detail.contains("tasks: 1, dead letters: 1"), "{detail}");
    assert!(inbox.operators().tasks(None, 10).await.unwrap().is_empty());
    assert_eq!(
        inbox.operators().dead_letters(Select::all(), 10).await.unwrap().len(),
        1,
        "what lies before it stays"
    );
    inbox.work_until_idle().await.unwrap();
    assert_eq!(read(&runs), replayed(&["a", "dead", "task", "b"]));
    fixture.travel(HOUR * 2);
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    assert_eq!((fixture.effects("task").await, fixture.effects("dead").await), (1, 1));
}

/// A replay can be replayed before its end. Its messages are still a replay; later messages are not.
pub async fn a_replay_may_be_replayed<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = Runs::default();
    let inbox = noting(&fixture, one_lane(&fixture), "ledger", &runs, never_fails).build().await.unwrap();
    let mut places = Vec::new();
    for id in ["a", "b", "c", "d"] {
        places.push(accept_new(&inbox, sample(id)).await);
    }
    inbox.work_until_idle().await.unwrap();
    read(&runs);
    for _ in 0..2 {
        inbox.operators().replay("ledger", ReplayFrom::Beginning, &operator("ann")).await.unwrap();
        inbox.work_until_idle().await.unwrap();
        assert_eq!(read(&runs), replayed(&["a", "b", "c", "d"]));
    }
    // It runs on one message at a time, and is interrupted behind the second.
    inbox.operators().replay("ledger", ReplayFrom::Beginning, &operator("ann")).await.unwrap();
    inbox.work_once().await.unwrap();
    inbox.work_once().await.unwrap();
    assert_eq!(read(&runs), replayed(&["a", "b"]));
    let come_to =
        inbox.operators().replay("ledger", ReplayFrom::Place(places[1]), &operator("ann")).await.unwrap();
    assert_eq!(come_to.positions, 1);
    accept_new(&inbox, sample("e")).await;
    inbox.work_until_idle().await.unwrap();
    let mut expected = replayed(&["b", "c", "d"]);
    expected.extend(fresh(&["e"]));
    assert_eq!(read(&runs), expected);
    // The handler has not reached `e` yet, so there is nothing to go back to.
    let e = inbox.operators().find_message("sample", "e").await.unwrap().unwrap();
    inbox.operators().replay("ledger", ReplayFrom::Beginning, &operator("ann")).await.unwrap();
    inbox.work_once().await.unwrap();
    assert_eq!(
        inbox.operators().replay("ledger", ReplayFrom::Place(e), &operator("ann")).await.unwrap(),
        Replayed::default()
    );
    inbox.work_until_idle().await.unwrap();
    assert_eq!(read(&runs), replayed(&["a", "b", "c", "d", "e"]));
}

/// The task keeps that it is a replay.
pub async fn a_replayed_message_that_fails_is_tried_again_as_a_replay<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let runs = Runs::default();
    let fails = Arc::new(AtomicBool::new(false));
    let failing = fails.clone();
    let judge = move |id: &str, n| match (id, n) {
        ("b", 1) if failing.load(Ordering::SeqCst) => Err("at first".into()),
        _ => Ok(()),
    };
    let inbox = noting(&fixture, one_lane(&fixture), "ledger", &runs, judge).build().await.unwrap();
    for id in ["a", "b"] {
        accept_new(&inbox, sample(id)).await;
    }
    inbox.work_until_idle().await.unwrap();
    read(&runs);
    fails.store(true, Ordering::SeqCst);
    inbox.operators().replay("ledger", ReplayFrom::Beginning, &operator("ann")).await.unwrap();
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed), (2, 1));
    let retried: Vec<_> = runs.lock().unwrap().iter().map(|run| (run.attempt, run.is_replay)).collect();
    assert_eq!(retried, [(1, true), (1, true), (2, true)]);
    assert_eq!(fixture.effects("b").await, 2);
    // A new message that fails and runs again is not a replay.
    read(&runs);
    fails.store(false, Ordering::SeqCst);
    let judge = |_: &str, n| if n == 1 { Err("at first".into()) } else { Ok(()) };
    let inbox = noting(&fixture, one_lane(&fixture), "ledger", &runs, judge).build().await.unwrap();
    accept_new(&inbox, sample("c")).await;
    inbox.work_until_idle().await.unwrap();
    assert_eq!(read(&runs), fresh(&["c", "c"]));
}

/// The handler keeps its progress, tasks and markers. The old name leads to the new one.
pub async fn a_renamed_handler_goes_on_under_its_new_name<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = Runs::default();
    let judge = |id: &str, n| match (id, n) {
        ("task", 1) => Err(Failure::after(HOUR, "busy")),
        ("dead", _) => Err(Failure::permanent("never")),
        _ => Ok(()),
    };
    let named = |name: &str| noting(&fixture, one_lane(&fixture), name, &runs, judge);
    let old = with_effect(&fixture, named("old"), "taken").build().await.unwrap();
    for id in ["a", "task", "dead"] {
        accept_new(&old, sample(id)).await;
    }
    old.work_until_idle().await.unwrap();
    let first = runs.lock().unwrap()[0].clone();
    read(&runs);
    assert_eq!(old.operators().resolve_dead(Select::all(), &operator("ann")).await.unwrap(), 1);

    assert!(!old.operators().rename_handler("unknown", "another", &operator("ann")).await.unwrap());
    for to in ["taken", ""] {
        let error = old.operators().rename_handler("old", to, &operator("ann")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    }
    assert!(old.operators().rename_handler("old", "new", &operator("ann")).await.unwrap());
    assert!(!old.operators().rename_handler("old", "newer", &operator("ann")).await.unwrap(), "only a name");
    let text = refused(named("old")).await;
    assert!(text.contains("\"new\""), "{text}");

    // Programs that still have the old name run on.
    accept_new(&old, sample("b")).await;
    assert_eq!(old.work_until_idle().await.unwrap().done, 2);
    assert_eq!(read(&runs), fresh(&["b"]));
    let new = named("new").build().await.unwrap();
    fixture.travel(HOUR);
    assert_eq!(new.work_until_idle().await.unwrap().done, 1);
    assert_eq!(read(&runs), fresh(&["task"]));
    assert!(new.marker("new", "sample", "dead").await.unwrap().is_some(), "its markers are its own");
    new.operators().replay("new", ReplayFrom::Beginning, &operator("ann")).await.unwrap();
    new.work_until_idle().await.unwrap();
    let again = runs.lock().unwrap()[0].clone();
    assert_eq!((&*again.id, again.effect), ("a", first.effect), "other systems know it by this");
    read(&runs);

    // Back to its first name, which is reserved for this handler, and then to a third one.
    assert!(new.operators().rename_handler("new", "old", &operator("bob")).await.unwrap());
    let text = refused(named("new")).await;
    assert!(text.contains("\"old\""), "{text}");
    let back = named("old").build().await.unwrap();
    accept_new(&back, sample("c")).await;
    assert_eq!(back.work_until_idle().await.unwrap().done, 1);
    assert!(back.operators().rename_handler("old", "last", &operator("bob")).await.unwrap());
    for name in ["old", "new"] {
        let text = refused(named(name)).await;
        assert!(text.contains("\"last\""), "{text}");
    }
    let entries = audit(&back).await;
    let renames: Vec<_> = entries.iter().filter(|(_, action, _)| action == "rename").collect();
    assert_eq!(renames.len(), 3);
    assert_eq!((&*renames[2].0, &*renames[0].0), ("ann", "bob"));
    // A removed handler keeps all of its names: only `revive` starts it again.
    assert!(back.operators().remove_handler("last", &operator("bob")).await.unwrap());
    let text = refused(named("last")).await;
    assert!(text.contains("set `revive`"), "{text}");
    for name in ["old", "new"] {
        refused(named(name)).await;
    }
}

/// A message handled under the old name is a duplicate under the new one.
pub async fn a_renamed_inline_handler_knows_its_keys<F: Fixture<Store: LogStore>>(fixture: F) {
    let named = |name: &'static str| {
        with_effect(&fixture, Inbox::builder(fixture.store()).mode(Mode::inline()), name)
    };
    let old = named("old").build().await.unwrap();
    old.process(sample("a")).await.unwrap();
    assert!(old.operators().rename_handler("old", "new", &operator("ann")).await.unwrap());
    let new = named("new").build().await.unwrap();
    for inbox in [&new, &old] {
        let report = inbox.process(sample("a")).await.unwrap();
        assert!(matches!(report.outcomes().next(), Some((_, Outcome::Duplicate))), "{report:?}");
    }
    let report = new.process(sample("b")).await.unwrap();
    assert!(matches!(report.outcome("new"), Some(Outcome::Done)), "{report:?}");
    let report = old.process(sample("b")).await.unwrap();
    assert!(matches!(report.outcome("old"), Some(Outcome::Duplicate)), "{report:?}");
    assert_eq!((fixture.effects("old a").await, fixture.effects("new a").await), (1, 0));
    assert_eq!((fixture.effects("new b").await, fixture.effects("old b").await), (1, 0));
    let text = refused(named("old")).await;
    assert!(text.contains("\"new\""), "{text}");
    // An inline handler reads nothing from the log: there is nothing to pause or to replay.
    assert!(new.operators().pause_handler("new", &operator("ann")).await.is_err());
    assert!(new.operators().replay("new", ReplayFrom::Beginning, &operator("ann")).await.is_err());
}

/// An entry of the audit without its time: operator, action, handler, detail.
type Written = (String, String, String, Option<String>);

/// Word for word, on every store.
pub async fn the_audit_says_what_was_done_with_a_handler<F: Fixture<Store: LogStore>>(fixture: F) {
    let judge = |id: &str, _| match id {
        "task" => Err(Failure::after(HOUR * 24, "busy")),
        "dead" => Err(Failure::permanent("never")),
        _ => Ok(()),
    };
    let builder = noting(&fixture, one_lane(&fixture), "ledger", &Runs::default(), judge);
    let inbox = builder.build().await.unwrap();
    let a = accept_new(&inbox, sample("a")).await;
    for id in ["task", "dead"] {
        accept_new(&inbox, sample(id)).await;
    }
    inbox.work_until_idle().await.unwrap();
    let operators = inbox.operators();
    operators.pause_handler("ledger", &operator("ann")).await.unwrap();
    operators.resume_handler("ledger", &operator("ann")).await.unwrap();
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(4_102_444_800_123);
    for from in [ReplayFrom::Time(at), ReplayFrom::Place(a), ReplayFrom::Beginning] {
        operators.replay("ledger", from, &operator("ann")).await.unwrap();
    }
    inbox.work_until_idle().await.unwrap();
    operators.rename_handler("ledger", "book", &operator("ann")).await.unwrap();
    operators.remove_handler("book", &operator("bob")).await.unwrap();

    let written = operators.audit(100).await.unwrap().into_iter().rev();
    let written: Vec<Written> =
        written.map(|entry| (entry.operator, entry.action, entry.handler, entry.detail)).collect();
    let expected = [
        ("ann", "pause", "ledger", None),
        ("ann", "resume", "ledger", None),
        (
            "ann",
            "replay",
            "ledger",
            Some("from 2100-01-01T00:00:00.123Z; positions: 0, tasks: 0, dead letters: 0"),
        ),
        (
            "ann",
            "replay",
            "ledger",
            Some("from position 1 of lane 0; positions: 3, tasks: 1, dead letters: 1"),
        ),
        ("ann", "replay", "ledger", Some("from the beginning; positions: 0, tasks: 0, dead letters: 0")),
        ("ann", "rename", "book", Some("was ledger")),
        ("bob", "remove", "book", Some("tasks: 1, dead letters: 1")),
    ];
    let expected = expected.map(|(operator, action, handler, detail)| -> Written {
        (operator.into(), action.into(), handler.into(), detail.map(str::to_owned))
    });
    assert_eq!(written, expected);
}

/// Word for word, on every store; and nothing is in the audit.
pub async fn an_operation_that_makes_no_sense_is_refused<F: Fixture<Store: LogStore>>(fixture: F) {
    let inline = Inbox::builder(fixture.store()).mode(Mode::inline());
    with_effect(&fixture, inline, "inline").build().await.unwrap();
    let spilling = Inbox::builder(fixture.store()).mode(Mode::inline().spill());
    let inbox = with_effect(&fixture, spilling, "spill").build().await.unwrap();
    let operators = inbox.operators();
    let not_paused = "the handler \"inline\" is inline: no messages wait for it in the log, so it cannot be paused. Stop its \
                      deliveries instead";
    let not_replayed = |name: &str| {
        format!("the handler {name:?} is {name} and does not read the log: there is nothing to replay")
    };
    let taken = "the name \"spill\" is taken: choose another one. Names of handlers are never used twice";
    for (refused, text) in [
        (operators.pause_handler("inline", &operator("ann")).await.map(drop), not_paused.to_owned()),
        (operators.resume_handler("inline", &operator("ann")).await.map(drop), not_paused.to_owned()),
        (
            operators.replay("inline", ReplayFrom::Beginning, &operator("ann")).await.map(drop),
            not_replayed("inline"),
        ),
        (
            operators.replay("spill", ReplayFrom::Beginning, &operator("ann")).await.map(drop),
            not_replayed("spill"),
        ),
        (operators.rename_handler("inline", "spill", &operator("ann")).await.map(drop), taken.to_owned()),
        (operators.rename_handler("spill", "spill", &operator("ann")).await.map(drop), taken.to_owned()),
    ] {
        let error = refused.unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Configuration, text));
    }
    assert!(operators.audit(10).await.unwrap().is_empty());
}

/// Positions that were pruned are not counted.
pub async fn a_replay_from_a_pruned_place_begins_with_the_next_message<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let retention = Retention::new().period(HOUR * 100).automatic(false).every(HOUR).batch(10);
    let builder = one_lane(&fixture).retention(retention).keep_messages(HOUR);
    let runs = Runs::default();
    let inbox = noting(&fixture, builder, "ledger", &runs, never_fails).build().await.unwrap();
    let a = accept_new(&inbox, sample("a")).await;
    for id in ["b", "c"] {
        accept_new(&inbox, sample(id)).await;
    }
    inbox.work_until_idle().await.unwrap();
    live_for(&fixture, HOUR * 2).await;
    assert_eq!(inbox.prune().await.unwrap().messages, 2);
    read(&runs);
    let come_to = inbox.operators().replay("ledger", ReplayFrom::Place(a), &operator("ann")).await.unwrap();
    assert_eq!(come_to, Replayed { positions: 1, tasks: 0, dead: 0 });
    inbox.work_until_idle().await.unwrap();
    assert_eq!(read(&runs), replayed(&["c"]));
}
