//! Order: the messages of one ordering key take effect as they were accepted, and no other message waits for them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use oncebox_core::store::{Select, Waits};
use oncebox_core::{
    Attempt, DeadHead, Envelope, ErrorKind, Failure, HandlerOptions, Inbox, InboxBuilder, Key, LogStore, Mode,
};

use super::stored::{AT_ONCE, Conn, accept_new, one_lane, sample};
use super::{Fixture, Sample};
use crate::operator;

const HOUR: Duration = Duration::from_secs(3600);

/// The runs that succeeded, and all of them.
#[derive(Clone, Default)]
struct HandlerRuns {
    done: Arc<Mutex<Vec<String>>>,
    all: Arc<Mutex<Vec<String>>>,
}

impl HandlerRuns {
    /// A message under the key that is the first letter of its id. A rolled-back batch runs again, so the last run counts.
    fn of_key(&self, key: &str) -> Vec<String> {
        let mut seen = HashSet::new();
        let done = self.done.lock().unwrap();
        let mut last: Vec<String> = done
            .iter()
            .rev()
            .filter(|id| id.starts_with(key) && seen.insert((*id).clone()))
            .cloned()
            .collect();
        last.reverse();
        last
    }

    fn has_run(&self, id: &str) -> bool {
        self.all.lock().unwrap().iter().any(|run| run == id)
    }
}

/// A handler that writes an effect and returns the result of `judge`.
fn with_judge<F: Fixture<Store: LogStore>>(
    fixture: &F,
    builder: InboxBuilder<F::Store>,
    runs: &HandlerRuns,
    judge: impl Fn(&str, u32) -> Result<(), Failure> + Clone + Send + Sync + 'static,
    options: impl FnOnce(HandlerOptions<Sample>) -> HandlerOptions<Sample>,
) -> InboxBuilder<F::Store> {
    let (effects, runs) = (fixture.clone(), runs.clone());
    let handler =
        async move |sample: Sample, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), Failure> {
            runs.all.lock().unwrap().push(sample.id.clone());
            effects.effect(conn, &sample.id).await?;
            judge(&sample.id, n)?;
            runs.done.lock().unwrap().push(sample.id);
            Ok(())
        };
    builder.retry(AT_ONCE).on_with("ledger", handler, options)
}

/// One whose ordering key is the first letter of its id.
fn keyed(id: &str) -> Envelope {
    sample(id).with_order_by(&id[..1])
}

async fn accept_keyed<S: LogStore>(inbox: &Inbox<S>, ids: &[&str]) {
    for id in ids {
        accept_new(inbox, keyed(id)).await;
    }
}

/// What each task waits for, by the message's key.
async fn waits<S: LogStore>(inbox: &Inbox<S>) -> Vec<(String, Waits)> {
    let tasks = inbox.operators().tasks(Some("ledger"), 100).await.unwrap();
    let mut waits: Vec<_> =
        tasks.into_iter().map(|task| (task.key.unwrap().to_string(), task.waits)).collect();
    waits.sort_by(|(a, _), (b, _)| a.cmp(b));
    waits
}

fn waiting(expected: &[(&str, Waits)]) -> Vec<(String, Waits)> {
    expected.iter().map(|(key, waits)| ((*key).to_owned(), *waits)).collect()
}

async fn assert_once<F: Fixture>(fixture: &F, ids: &[&str]) {
    for id in ids {
        assert_eq!(fixture.effects(id).await, 1, "{id}");
    }
}

/// Keys that differ in their last byte only are two, and the longest one that is accepted holds its messages as a short one does.
pub async fn an_ordering_key_of_any_length_keeps_its_order<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = HandlerRuns::default();
    let judge = |id: &str, n: u32| match id {
        "a-1" | "b-1" if n == 1 => Err("at first".into()),
        _ => Ok(()),
    };
    // Above 512 bytes the indexes hold a digest of the ordering key instead of the key.
    for (round, bytes) in [1, 512, 513, 3_000, Key::MAX_BYTES].into_iter().enumerate() {
        let inbox = with_judge(&fixture, one_lane(&fixture), &runs, judge, |o| o.ordered());
        let inbox = inbox.build().await.unwrap();
        runs.done.lock().unwrap().clear();
        let key = |id: &str| Key::new([vec![b'k'; bytes - 1], id.as_bytes()[..1].to_vec()].concat());
        for id in ["a-1", "b-1", "a-2", "b-2", "c-1"] {
            let envelope = sample(id).with_key(format!("{id} {round}")).with_order_by(key(id));
            accept_new(&inbox, envelope).await;
        }
        let report = inbox.work_until_idle().await.unwrap();
        assert_eq!((report.done, report.failed, report.dead), (5, 2, 0), "{bytes} bytes");
        assert_eq!(runs.of_key("a"), ["a-1", "a-2"], "{bytes} bytes");
        assert_eq!(runs.of_key("b"), ["b-1", "b-2"], "{bytes} bytes");
        assert_eq!(fixture.effects("c-1").await, 1 + round as u64);
        inbox.close().await;
    }
}

/// Two inboxes at work on all lanes, and every second message fails at first.
pub async fn an_ordering_key_keeps_its_order_however_often_its_messages_fail<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let runs = HandlerRuns::default();
    let number = |id: &str| id[2..].parse::<u32>().unwrap();
    let judge = move |id: &str, n: u32| match number(id) {
        m if m.is_multiple_of(2) && n == 1 => Err("at first".into()),
        m if m.is_multiple_of(3) && n < 3 => Err("at first, and again".into()),
        _ => Ok(()),
    };
    let builder =
        || with_judge(&fixture, Inbox::builder(fixture.store()).stored(), &runs, judge, |o| o.ordered());
    let inboxes = [builder().build().await.unwrap(), builder().build().await.unwrap()];
    let ids = |key: &str| (0..12).map(|n| format!("{key}-{n}")).collect::<Vec<_>>();
    for n in 0..12 {
        for key in ["a", "b", "c", "d"] {
            accept_new(&inboxes[n % 2], keyed(&format!("{key}-{n}"))).await;
        }
    }
    let [one, two] = inboxes.clone().map(|inbox| tokio::spawn(async move { inbox.work_until_idle().await }));
    let mut report = one.await.unwrap().unwrap();
    report += two.await.unwrap().unwrap();
    assert_eq!((report.done, report.dead), (48, 0));
    for key in ["a", "b", "c", "d"] {
        assert_eq!(runs.of_key(key), ids(key));
        for id in ids(key) {
            assert_eq!(fixture.effects(&id).await, 1, "{id}");
        }
    }
}

/// Messages of the same batch wait too. Other keys, and messages without a key, go on at once.
pub async fn only_the_key_of_a_failed_message_waits<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = HandlerRuns::default();
    let judge = |id: &str, n: u32| match (id, n) {
        ("a1" | "x1", 1) => Err(Failure::after(HOUR, "busy")),
        _ => Ok(()),
    };
    let inbox =
        with_judge(&fixture, one_lane(&fixture), &runs, judge, |o| o.ordered()).build().await.unwrap();
    accept_keyed(&inbox, &["a1", "b1", "a2"]).await;
    accept_new(&inbox, sample("x1")).await;
    accept_new(&inbox, sample("x2")).await;
    accept_keyed(&inbox, &["b2", "a3"]).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.parked), (3, 2, 2));
    assert_once(&fixture, &["b1", "b2", "x2"]).await;
    assert!(!runs.has_run("a2") && !runs.has_run("a3"), "they wait, and do not run in vain");
    let held = [("a1", Waits::Turn), ("a2", Waits::Parked), ("a3", Waits::Parked), ("x1", Waits::Turn)];
    assert_eq!(waits(&inbox).await, waiting(&held));

    // Messages that are accepted later wait behind their head as well.
    accept_keyed(&inbox, &["a4", "b3"]).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.parked), (1, 1));
    assert!(!runs.has_run("a4"));
    assert!(inbox.work_until_idle().await.unwrap().is_empty(), "what is parked is no work");

    fixture.travel(HOUR);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 5);
    assert_eq!(runs.of_key("a"), ["a1", "a2", "a3", "a4"]);
    assert_once(&fixture, &["a1", "a2", "a3", "a4", "b1", "b2", "b3", "x1", "x2"]).await;
    assert!(inbox.operators().tasks(None, 10).await.unwrap().is_empty());
}

/// Without `.ordered()`, ordering keys choose a lane and nothing else.
pub async fn without_order_no_message_waits_for_a_failed_one<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = HandlerRuns::default();
    let judge = |id: &str, _| match id {
        "a1" => Err(Failure::permanent("never")),
        "a2" => Err(Failure::after(HOUR, "busy")),
        _ => Ok(()),
    };
    let inbox = with_judge(&fixture, one_lane(&fixture), &runs, judge, |o| o).build().await.unwrap();
    accept_keyed(&inbox, &["a1", "a2", "a3"]).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead, report.parked), (1, 1, 1, 0));
    assert_eq!(waits(&inbox).await, waiting(&[("a2", Waits::Turn)]));
}

/// An inbox where the first of key a is dead and two wait behind it; it heals when told.
async fn with_dead_head<F: Fixture<Store: LogStore>>(
    fixture: &F,
    runs: &HandlerRuns,
    policy: DeadHead,
) -> (Inbox<F::Store>, Arc<Mutex<bool>>) {
    let healed = Arc::new(Mutex::new(false));
    let heal = healed.clone();
    let judge = move |id: &str, _| match id {
        "a1" if !*heal.lock().unwrap() => Err(Failure::permanent("never")),
        _ => Ok(()),
    };
    let inbox = with_judge(fixture, one_lane(fixture), runs, judge, |o| o.dead_head(policy));
    (inbox.build().await.unwrap(), healed)
}

/// Until an operator acts on it; only its own key.
pub async fn a_dead_letter_holds_its_key_until_it_is_run_again<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = HandlerRuns::default();
    let (inbox, healed) = with_dead_head(&fixture, &runs, DeadHead::default()).await;
    accept_keyed(&inbox, &["a1", "a2", "b1", "a3"]).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead, report.parked), (1, 1, 2));
    accept_keyed(&inbox, &["b2", "a4"]).await;
    fixture.travel(HOUR * 24);
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.parked), (1, 1));
    assert!(!["a2", "a3", "a4"].iter().any(|id| runs.has_run(id)));
    let held = [("a2", Waits::Parked), ("a3", Waits::Parked), ("a4", Waits::Parked)];
    assert_eq!(waits(&inbox).await, waiting(&held));

    // A dead letter whose retry fails holds its ordering key as before.
    assert_eq!(inbox.operators().retry_dead(Select::all(), &operator("ann")).await.unwrap(), 1);
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead), (0, 1));
    assert_eq!(waits(&inbox).await, waiting(&held));

    *healed.lock().unwrap() = true;
    assert_eq!(inbox.operators().retry_dead(Select::all(), &operator("ann")).await.unwrap(), 1);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 4);
    assert_eq!(runs.of_key("a"), ["a1", "a2", "a3", "a4"]);
    assert_once(&fixture, &["a1", "a2", "a3", "a4", "b1", "b2"]).await;
}

/// When it is discarded, resolved or corrected, the messages behind it run in their order.
pub async fn a_dead_letter_that_is_resolved_frees_its_key<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = HandlerRuns::default();
    let judge = |id: &str, _| if id.ends_with('1') { Err(Failure::permanent("never")) } else { Ok(()) };
    let inbox =
        with_judge(&fixture, one_lane(&fixture), &runs, judge, |o| o.ordered()).build().await.unwrap();
    accept_keyed(&inbox, &["a1", "a2", "a3", "b1", "b2", "c1", "c2", "c3"]).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead, report.parked), (0, 3, 5));
    let mut letter = Vec::new();
    for id in ["a1", "b1", "c1"] {
        letter.push(Select::all().at(inbox.operators().find_message("sample", id).await.unwrap().unwrap()));
    }
    assert_eq!(inbox.operators().discard_dead(letter.remove(0), &operator("ann")).await.unwrap(), 1);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
    assert_eq!(runs.of_key("a"), ["a2", "a3"]);
    assert_eq!(inbox.operators().resolve_dead(letter.remove(0), &operator("ann")).await.unwrap(), 1);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(runs.of_key("b"), ["b2"]);
    assert_eq!(
        inbox.operators().edit_dead(letter.remove(0), r#"{"id": "c0"}"#, &operator("ann")).await.unwrap(),
        1
    );
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 3);
    assert_eq!(runs.of_key("c"), ["c0", "c2", "c3"]);
}

/// And a handler may change its mind about that.
pub async fn a_dead_letter_that_is_skipped_holds_no_message<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = HandlerRuns::default();
    let (skips, _) = with_dead_head(&fixture, &runs, DeadHead::Skip).await;
    accept_keyed(&skips, &["a1", "a2", "b1", "a3"]).await;
    assert_eq!(skips.work_until_idle().await.unwrap().dead, 1);
    assert_eq!(runs.of_key("a"), ["a2", "a3"]);
    assert_once(&fixture, &["a2", "a3", "b1"]).await;
    assert_eq!(fixture.effects("a1").await, 0);
    assert!(skips.operators().tasks(None, 10).await.unwrap().is_empty());

    let (holds, _) = with_dead_head(&fixture, &runs, DeadHead::Hold).await;
    accept_keyed(&holds, &["a4", "b2"]).await;
    let report = holds.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.parked), (1, 1));
    assert_eq!(waits(&holds).await, waiting(&[("a4", Waits::Parked)]));
    let (skips, _) = with_dead_head(&fixture, &runs, DeadHead::Skip).await;
    assert_eq!(skips.work_until_idle().await.unwrap().done, 1);
    assert_once(&fixture, &["a4", "b2"]).await;
}

/// Before its time it waits alone; then it holds its key like any other.
pub async fn a_scheduled_message_holds_its_key_when_it_is_due<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = HandlerRuns::default();
    let judge = |id: &str, n: u32| match (id, n) {
        ("a1", 1) => Err(Failure::after(HOUR, "busy")),
        _ => Ok(()),
    };
    let inbox =
        with_judge(&fixture, one_lane(&fixture), &runs, judge, |o| o.ordered()).build().await.unwrap();
    let now = SystemTime::now();
    accept_new(&inbox, keyed("a1").with_due_at(now + HOUR)).await;
    accept_keyed(&inbox, &["a2", "b1"]).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.scheduled, report.parked), (2, 1, 0));
    assert_eq!(waits(&inbox).await, waiting(&[("a1", Waits::Scheduled)]));
    fixture.travel(HOUR / 2);
    accept_keyed(&inbox, &["a3"]).await;
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);

    fixture.travel(HOUR);
    accept_keyed(&inbox, &["a4", "b2"]).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed), (1, 1));
    assert!(report.parked >= 1, "before and behind the failure, or once");
    assert!(!runs.has_run("a4"));
    assert_eq!(waits(&inbox).await, waiting(&[("a1", Waits::Turn), ("a4", Waits::Parked)]));
    fixture.travel(HOUR);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
    assert_eq!(runs.of_key("a"), ["a2", "a3", "a1", "a4"]);

    // Of two messages that are due at the same time, the one that was accepted first runs first.
    accept_new(&inbox, keyed("c1").with_due_at(now + HOUR * 10)).await;
    accept_new(&inbox, keyed("c2").with_due_at(now + HOUR * 9)).await;
    accept_new(&inbox, keyed("d1").with_due_at(now + HOUR * 10)).await;
    accept_new(&inbox, keyed("d2").with_due_at(now + HOUR * 5)).await;
    assert_eq!(inbox.work_until_idle().await.unwrap().scheduled, 4);
    fixture.travel(HOUR * 3);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    fixture.travel(HOUR * 5);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 3);
    assert_eq!(
        (runs.of_key("c"), runs.of_key("d")),
        (vec!["c1".into(), "c2".into()], vec!["d2".into(), "d1".into()])
    );
}

/// The culprit of a set is found, and only its key waits.
pub async fn a_set_handler_keeps_the_order_of_keys<F: Fixture<Store: LogStore>>(fixture: F) {
    let done: Arc<Mutex<Vec<String>>> = Arc::default();
    let (effects, log) = (fixture.clone(), done.clone());
    let handler = async move |samples: Vec<Sample>,
                              attempts: Vec<Attempt>,
                              conn: &mut Conn<F>|
                -> Result<(), Failure> {
        for sample in &samples {
            effects.effect(conn, &sample.id).await?;
        }
        let fails =
            |(sample, Attempt(n)): (&Sample, &Attempt)| *n == 1 && matches!(&*sample.id, "a-3" | "b-7");
        if samples.iter().zip(&attempts).any(fails) {
            return Err(Failure::after(HOUR, "busy"));
        }
        log.lock().unwrap().extend(samples.into_iter().map(|sample| sample.id));
        Ok(())
    };
    let inbox = one_lane(&fixture)
        .retry(AT_ONCE)
        .on_with("ledger", handler, |options| options.ordered())
        .build()
        .await
        .unwrap();
    for n in 0..10 {
        accept_keyed(&inbox, &[&format!("a-{n}"), &format!("b-{n}"), &format!("c-{n}")]).await;
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.parked), (3 + 7 + 10, 2, 6 + 2));
    fixture.travel(HOUR);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 10);
    let runs = HandlerRuns { done, ..HandlerRuns::default() };
    for key in ["a", "b", "c"] {
        assert_eq!(runs.of_key(key), (0..10).map(|n| format!("{key}-{n}")).collect::<Vec<_>>());
    }
    for n in 0..10 {
        assert_once(&fixture, &[&format!("a-{n}"), &format!("b-{n}"), &format!("c-{n}")]).await;
    }
}

/// Inline, messages come in any order.
pub async fn order_needs_the_log<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = HandlerRuns::default();
    for mode in [Mode::inline(), Mode::inline().spill(), Mode::mixed()] {
        let builder = Inbox::builder(fixture.store()).mode(mode);
        let refused = with_judge(&fixture, builder, &runs, |_, _| Ok(()), |o| o.ordered()).build().await;
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.to_string().contains(".stored()"), "{error}");
    }
}
