//! Detached handlers: outside of any transaction, one at a time or many, and never lost.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use oncebox_core::store::{
    HandlerId, Operate, ProcessId, Processes, Progress, Select, StoredMessage, TakeLimits, Taker, TaskLimits,
    Unfinished, Waits,
};
use oncebox_core::{
    Attempt, BoxError, Cancellation, EffectId, Error, ErrorKind, Failure, HandlerOptions, Inbox,
    InboxBuilder, InboxStore, Key, LogStore, Mode,
};
use tokio::sync::{Barrier, Notify, oneshot};
use uuid::Uuid;

use super::stored::{AT_ONCE, Conn, accept_new, one_lane, sample};
use super::stored_care::{crash, enter, id_of};
use super::{Fixture, LIMITS, Sample};
use crate::operator;

const HOUR: Duration = Duration::from_secs(3600);
/// No step here takes this long, unless it hangs.
const HANG_LIMIT: Duration = Duration::from_secs(300);

type Journal<T> = Arc<Mutex<Vec<T>>>;

fn read<T>(journal: &Journal<T>) -> Vec<T> {
    std::mem::take(&mut *journal.lock().unwrap())
}

/// A detached handler that records its messages and returns the result of `judge`.
fn with_mail<S: LogStore>(
    builder: InboxBuilder<S>,
    runs: &Journal<String>,
    judge: impl Fn(&str, u32) -> Result<(), Failure> + Clone + Send + Sync + 'static,
    options: impl FnOnce(HandlerOptions<Sample>) -> HandlerOptions<Sample>,
) -> InboxBuilder<S> {
    let runs = runs.clone();
    let handler = async move |sample: Sample, Attempt(n): Attempt| -> Result<(), Failure> {
        runs.lock().unwrap().push(sample.id.clone());
        judge(&sample.id, n)
    };
    builder.retry(AT_ONCE).on_with("mail", handler, |o| options(o.detached()))
}

/// Who needs its lane can have it, and every try has the same effect id.
pub async fn a_detached_handler_runs_outside_of_transactions<F: Fixture<Store: LogStore>>(fixture: F) {
    let tries: Journal<(u32, EffectId)> = Arc::default();
    let (store, seen) = (fixture.store(), tries.clone());
    let handler = async move |_: Sample, Attempt(n): Attempt, id: EffectId| -> Result<(), Failure> {
        seen.lock().unwrap().push((n, id));
        // Pausing waits for the handler's transactions: it would hang if this body ran inside of one.
        let paused = tokio::time::timeout(HANG_LIMIT, store.pause_handler("mail", true, "ann")).await??;
        store.pause_handler("mail", false, "ann").await?;
        match n {
            _ if !paused => Err(Failure::permanent("it was paused already")),
            1 | 2 => Err("not yet".into()),
            _ => Ok(()),
        }
    };
    let inbox =
        one_lane(&fixture).retry(AT_ONCE).on_with("mail", handler, |o| o.detached()).build().await.unwrap();
    accept_new(&inbox, sample("a")).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (1, 2, 0));
    let id = EffectId::of("mail", "sample", &Key::from("a"));
    assert_eq!(read(&tries), [(1, id), (2, id), (3, id)]);
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    assert!(inbox.operators().tasks(None, 10).await.unwrap().is_empty());
}

/// Errors, panics and hanging are failures like others; the last one is a dead letter with its history.
pub async fn a_detached_handler_that_keeps_failing_leaves_a_dead_letter<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let healed = Arc::new(AtomicBool::new(false));
    let runs: Journal<String> = Arc::default();
    let (heal, seen) = (healed.clone(), runs.clone());
    let handler = async move |sample: Sample, Attempt(n): Attempt| -> Result<(), BoxError> {
        seen.lock().unwrap().push(sample.id.clone());
        match (&*sample.id, n) {
            _ if heal.load(Ordering::SeqCst) => Ok(()),
            ("doomed", 1) => Err("an error".into()),
            ("doomed", 2) => panic!("on purpose"),
            ("doomed", _) => std::future::pending().await,
            _ => Ok(()),
        }
    };
    let told = Arc::new(AtomicUsize::new(0));
    let hook = told.clone();
    let inbox = one_lane(&fixture)
        .retry(AT_ONCE)
        .on_dead(move |letter| {
            assert_eq!(letter.attempts.len(), 3);
            hook.fetch_add(1, Ordering::SeqCst);
        })
        .on_with("mail", handler, |o| o.detached().timeout(Duration::from_millis(50)))
        .build()
        .await
        .unwrap();
    for id in ["before", "doomed", "behind"] {
        accept_new(&inbox, sample(id)).await;
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (2, 2, 1));
    assert_eq!(told.load(Ordering::SeqCst), 1);
    let letters = inbox.operators().dead_letters(Select::all().handler("mail"), 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    let history: Vec<_> =
        letters[0].attempts.iter().map(|past| (past.attempt, past.error.as_str())).collect();
    assert_eq!(history[..2], [(1, "an error"), (2, "the handler panicked: on purpose")]);
    assert!(history[2].0 == 3 && history[2].1.contains("longer than"), "{history:?}");

    read(&runs);
    healed.store(true, Ordering::SeqCst);
    assert_eq!(inbox.operators().retry_dead(Select::all(), &operator("ann")).await.unwrap(), 1);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(read(&runs), ["doomed"]);
    assert!(inbox.operators().dead_letters(Select::all(), 10).await.unwrap().is_empty());
}

/// Never more than the limit, and no fewer while there is work.
pub async fn as_many_detached_bodies_run_at_once_as_may<F: Fixture<Store: LogStore>>(fixture: F) {
    const MOST: usize = 3;
    let (running, most, ended) = <(Arc<AtomicUsize>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let all_there = Arc::new(Barrier::new(MOST));
    let (now, peak, count) = (running.clone(), most.clone(), ended.clone());
    let handler = async move |_: Sample| -> Result<(), BoxError> {
        peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        // Fewer bodies at once would wait here for ever, and the time limit below would fail the test.
        all_there.wait().await;
        tokio::time::sleep(Duration::from_millis(2)).await;
        now.fetch_sub(1, Ordering::SeqCst);
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    let inbox = Inbox::builder(fixture.store())
        .stored()
        .on_with("mail", handler, |o| o.detached().concurrency(MOST))
        .build()
        .await
        .unwrap();
    for n in 0..12 {
        accept_new(&inbox, sample(&format!("m-{n}"))).await;
    }
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = inbox.clone();
    let working = tokio::spawn(async move { worker.run(async { drop(stopped.await) }).await });
    let all = async {
        while ended.load(Ordering::SeqCst) < 12 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG_LIMIT, all).await.expect("fewer run than may");
    stop.send(()).unwrap();
    assert_eq!(working.await.unwrap().unwrap().done, 12);
    assert_eq!(most.load(Ordering::SeqCst), MOST);
}

/// The lane's messages wait until some open tasks are done.
pub async fn a_lane_with_too_many_open_tasks_pauses<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs: Journal<String> = Arc::default();
    let judge = |_: &str, n| if n == 1 { Err(Failure::after(HOUR, "busy")) } else { Ok(()) };
    let options = |o: HandlerOptions<Sample>| o.concurrency(2).max_open_tasks(3);
    let inbox = with_mail(one_lane(&fixture), &runs, judge, options).build().await.unwrap();
    for n in 0..8 {
        accept_new(&inbox, sample(&format!("m-{n}"))).await;
    }
    let work = || tokio::time::timeout(HANG_LIMIT, inbox.work_until_idle());
    let report = work().await.expect("a lane that pauses is no work").unwrap();
    // Three are open, or one more that was taken beside the third.
    let open = inbox.operators().tasks(None, 100).await.unwrap().len();
    assert!((3..=4).contains(&open), "{open} tasks");
    assert_eq!(report.failed, open as u64);
    assert_eq!(inbox.operators().pending("mail", 100).await.unwrap().len(), 8 - open);
    assert_eq!(read(&runs).len(), open);

    let mut done = 0;
    for _ in 0..4 {
        fixture.travel(HOUR);
        done += work().await.unwrap().unwrap().done;
        let open = inbox.operators().tasks(None, 100).await.unwrap().len();
        assert!(open <= 4, "{open} tasks");
    }
    assert_eq!(done, 8);
    assert!(inbox.operators().pending("mail", 100).await.unwrap().is_empty());
}

/// What waits for its time, or behind another one, is no sign of trouble.
pub async fn scheduled_messages_do_not_pause_a_lane<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = Arc::new(AtomicUsize::new(0));
    let seen = runs.clone();
    let handler = async move |_sample: Sample| {
        seen.fetch_add(1, Ordering::SeqCst);
    };
    let inbox = one_lane(&fixture)
        .on_with("mail", handler, |options| options.detached().max_open_tasks(2))
        .build()
        .await
        .unwrap();
    for id in ["a", "b", "c"] {
        accept_new(&inbox, sample(id).with_due_at(SystemTime::now() + HOUR)).await;
        inbox.work_until_idle().await.unwrap();
    }
    accept_new(&inbox, sample("now")).await;
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// Bodies of one ordering key run one at a time, while other keys run beside them.
pub async fn ordered_detached_bodies_run_one_at_a_time<F: Fixture<Store: LogStore>>(fixture: F) {
    let done: Journal<String> = Arc::default();
    let running: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let both = Arc::new(Barrier::new(2));
    let (log, now) = (done.clone(), running.clone());
    let handler = async move |sample: Sample, Attempt(n): Attempt| -> Result<(), Failure> {
        let key = sample.id[..1].to_owned();
        *now.lock().unwrap().entry(key.clone()).or_default() += 1;
        if n == 1 && sample.id.ends_with('0') {
            // Waits for the first message of the other key: different keys must run at the same time.
            both.wait().await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut now = now.lock().unwrap();
        let beside = now.insert(key, 0);
        if beside != Some(1) {
            return Err(Failure::permanent("two of one key at a time"));
        }
        if n == 1 && (sample.id.ends_with('0') || sample.id.ends_with('3')) {
            return Err("at first".into());
        }
        log.lock().unwrap().push(sample.id);
        Ok(())
    };
    let inbox = one_lane(&fixture)
        .retry(AT_ONCE)
        .on_with("mail", handler, |o| o.detached().ordered())
        .build()
        .await
        .unwrap();
    for n in 0..5 {
        for key in ["a", "b"] {
            accept_new(&inbox, sample(&format!("{key}-{n}")).with_order_by(key)).await;
        }
    }
    let report = tokio::time::timeout(HANG_LIMIT, inbox.work_until_idle()).await.unwrap().unwrap();
    assert_eq!((report.done, report.failed, report.dead), (10, 4, 0));
    let done = read(&done);
    for key in ["a", "b"] {
        let of_key: Vec<_> = done.iter().filter(|id| id.starts_with(key)).cloned().collect();
        assert_eq!(of_key, (0..5).map(|n| format!("{key}-{n}")).collect::<Vec<_>>());
    }
}

/// The message counts as handled before it runs. Only an operator can retry a failure.
pub async fn at_most_once_is_never_tried_again_by_itself<F: Fixture<Store: LogStore>>(fixture: F) {
    let healed = Arc::new(AtomicBool::new(false));
    let seen: Journal<(usize, u64)> = Arc::default();
    let slot: Arc<std::sync::OnceLock<Inbox<F::Store>>> = Arc::default();
    let (own, log, heal) = (slot.clone(), seen.clone(), healed.clone());
    let handler = async move |_: Sample| -> Result<(), BoxError> {
        let inbox = own.get().ok_or("not set")?;
        let tasks = inbox.operators().tasks(None, 10).await?.len();
        let lag = inbox.operators().handler_statuses().await?[0].lag;
        log.lock().unwrap().push((tasks, lag));
        if heal.load(Ordering::SeqCst) { Ok(()) } else { Err("no answer".into()) }
    };
    let inbox = one_lane(&fixture)
        .retry(AT_ONCE)
        .on_with("mail", handler, |o| o.at_most_once())
        .build()
        .await
        .unwrap();
    slot.set(inbox.clone()).unwrap();
    accept_new(&inbox, sample("a")).await;
    for round in 1..=2 {
        let report = inbox.work_until_idle().await.unwrap();
        assert_eq!((report.done, report.failed, report.dead), (0, 0, 1), "round {round}");
        assert_eq!(read(&seen), [(0, 0)], "handled as far as the log knows, and run once");
        let letters = inbox.operators().dead_letters(Select::all(), 10).await.unwrap();
        assert_eq!((letters.len(), letters[0].error.as_str()), (1, "no answer"));
        assert_eq!(letters[0].attempts.len(), round);
        assert_eq!(inbox.operators().retry_dead(Select::all(), &operator("ann")).await.unwrap(), 1);
    }
    healed.store(true, Ordering::SeqCst);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(read(&seen).len(), 1);
    assert!(inbox.operators().dead_letters(Select::all(), 10).await.unwrap().is_empty());
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
}

/// A task until then, and run once.
pub async fn a_scheduled_message_runs_detached_at_its_time<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs: Journal<String> = Arc::default();
    let inbox = with_mail(one_lane(&fixture), &runs, |_, _| Ok(()), |o| o).build().await.unwrap();
    accept_new(&inbox, sample("later").with_due_at(SystemTime::now() + HOUR)).await;
    accept_new(&inbox, sample("now")).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.scheduled), (1, 1));
    assert_eq!(read(&runs), ["now"]);
    assert_eq!(inbox.operators().tasks(None, 10).await.unwrap()[0].waits, Waits::Scheduled);
    fixture.travel(HOUR / 2);
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    fixture.travel(HOUR);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(read(&runs), ["later"]);
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
}

/// The arguments of a handler, its options and the mode of its inbox must fit.
pub async fn a_detached_handler_says_that_it_is_one<F: Fixture<Store: LogStore>>(fixture: F) {
    async fn refused<S: InboxStore>(builder: InboxBuilder<S>) -> String {
        let error: Error = builder.build().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        error.to_string()
    }
    let without = async |_: Sample| -> Result<(), BoxError> { Ok(()) };
    let with = async |_: Sample, _: &mut Conn<F>| -> Result<(), BoxError> { Ok(()) };
    let stored = || one_lane(&fixture);
    let text = refused(stored().on("mail", without)).await;
    assert!(text.contains("\"mail\"") && text.contains(".detached()"), "{text}");
    let text = refused(stored().on_with("mail", with, |o| o.detached())).await;
    assert!(text.contains("leave the connection out"), "{text}");
    let text = refused(stored().on_with("mail", with, |o| o.at_most_once())).await;
    assert!(text.contains("leave the connection out"), "{text}");
    let text = refused(stored().on_with("mail", without, |o| o.concurrency(0))).await;
    assert!(text.contains("concurrency"), "{text}");
    let text = refused(stored().on_with("mail", without, |o| o.max_open_tasks(0))).await;
    assert!(text.contains("max_open_tasks"), "{text}");
    let text = refused(stored().on_with("mail", without, |o| o.at_most_once().ordered())).await;
    assert!(text.contains("ordered") && text.contains("at_most_once"), "{text}");
    let text = refused(Inbox::builder(fixture.store()).on_with("mail", without, |o| o.detached())).await;
    assert!(text.contains("Mode::inline()") && text.contains(".stored()"), "{text}");
    stored().on_with("mail", without, |o| o.detached()).build().await.unwrap();
}

/// It is cancelled, its result does not count, and another process has run the message.
pub async fn a_lost_lease_is_reported_and_does_not_count<F: Fixture<Store: LogStore>>(fixture: F) {
    let lease = Duration::from_secs(1);
    let (begun, told, go_on) = <(Arc<Notify>, Arc<Notify>, Arc<Notify>)>::default();
    let (first, cancelled, gate) = (begun.clone(), told.clone(), go_on.clone());
    let slow = async move |_: Sample, cancellation: Cancellation| -> Result<(), BoxError> {
        first.notify_one();
        cancellation.cancelled().await;
        cancelled.notify_one();
        gate.notified().await;
        Ok(())
    };
    let taken_for_dead =
        one_lane(&fixture).lease(lease).on_with("mail", slow, |o| o.detached()).build().await.unwrap();
    let place = accept_new(&taken_for_dead, sample("a")).await;
    let working = tokio::spawn({
        let inbox = taken_for_dead.clone();
        async move { inbox.work_until_idle().await }
    });
    begun.notified().await;
    let tasks = taken_for_dead.operators().tasks(None, 10).await.unwrap();
    assert_eq!((tasks[0].place, tasks[0].waits), (place, Waits::Running));

    // A heartbeat may come between two of these steps, so they are repeated.
    let store = fixture.store();
    let none = ProcessId(Uuid::nil());
    let mut freed = None;
    while freed.is_none() {
        let peers = store.peers(none).await.unwrap();
        assert_eq!(peers.len(), 1);
        fixture.travel(lease * 2);
        freed = store.remove_crashed(peers[0].id, false).await.unwrap();
    }
    assert_eq!(freed, Some(1));
    tokio::time::timeout(HANG_LIMIT, told.notified()).await.expect("the body is cancelled");

    let runs: Journal<String> = Arc::default();
    let other = with_mail(one_lane(&fixture), &runs, |_, _| Ok(()), |o| o).build().await.unwrap();
    let report = other.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.lease_lost), (1, 0));
    assert_eq!(read(&runs), ["a"]);
    go_on.notify_one();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.done, report.failed, report.lease_lost), (0, 0, 1));
    assert!(other.work_until_idle().await.unwrap().is_empty());
    assert!(other.operators().tasks(None, 10).await.unwrap().is_empty());
}

/// A process elsewhere leases the next message, and never reports its outcome.
async fn lease<S: LogStore>(store: &S, handler: HandlerId, process: ProcessId) {
    let kinds = ["sample".to_owned()];
    let taker = Taker { handler, kinds: &kinds, mode: Mode::Stored, ordered: None, lane: 0 };
    let mut tx = store.begin(LIMITS).await.unwrap();
    let limits = TakeLimits { messages: 1, positions: 100, bytes: 1 << 20, open_tasks: None };
    let batch = store.take(&mut tx, taker, limits).await.unwrap().unwrap();
    let progress = Progress { handler, lane: 0, epoch: batch.epoch, pos: batch.reached };
    let progress = (batch.reached > batch.from).then_some(progress);
    let messages = match progress {
        Some(_) => batch.messages,
        None => {
            let limits = TaskLimits { tasks: 1, heads_only: true };
            store.take_tasks(&mut tx, taker, limits).await.unwrap().unwrap()
        }
    };
    assert_eq!(messages.len(), 1);
    let lease = |message: &StoredMessage| Unfinished {
        pos: message.place.pos,
        order_by: message.order_by.clone(),
        failures: message.failures,
        due_in: Duration::ZERO,
        error: None,
        attempts: message.attempts.clone(),
        body: None,
        scheduled: false,
        crashes: message.crashes,
    };
    store.lease(&mut tx, taker, process, &[lease(&messages[0])]).await.unwrap();
    store.finish(tx, progress).await.unwrap();
}

/// The message runs again after the lease has expired. A crash is no failed attempt.
pub async fn what_a_process_ran_when_it_crashed_runs_again<F: Fixture<Store: LogStore>>(fixture: F) {
    let store = fixture.store();
    let runs: Journal<String> = Arc::default();
    let judge = |_: &str, n| if n == 1 { Ok(()) } else { Err("not the first try".into()) };
    let inbox = with_mail(one_lane(&fixture), &runs, judge, |o| o).build().await.unwrap();
    let mail = id_of(&inbox, "mail").await;
    accept_new(&inbox, sample("a")).await;
    let dying = enter(&store, mail, 10).await;
    lease(&store, mail, dying).await;
    accept_new(&inbox, sample("b")).await;
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(read(&runs), ["b"], "another process runs the other one");
    assert_eq!(inbox.operators().tasks(None, 10).await.unwrap()[0].waits, Waits::Running);
    assert_eq!(crash(&fixture, dying).await, 1);
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed), (1, 0));
    assert_eq!(read(&runs), ["a"]);

    // A process that leaves gives back its messages in flight at once.
    accept_new(&inbox, sample("c")).await;
    let leaving = enter(&store, mail, 10).await;
    lease(&store, mail, leaving).await;
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    store.leave(leaving).await.unwrap();
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(read(&runs), ["c"]);
}

/// A single crash, such as a `kill -9` from outside, slows nothing down: its messages run together again. After a second one they
/// run one by one.
pub async fn messages_in_flight_in_two_crashes_run_one_by_one<F: Fixture<Store: LogStore>>(fixture: F) {
    let store = fixture.store();
    let (running, most) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let (now, peak) = (running.clone(), most.clone());
    let must_meet = Arc::new(AtomicBool::new(true));
    let (meet, both) = (must_meet.clone(), Arc::new(Barrier::new(2)));
    let handler = async move |_: Sample| -> Result<(), BoxError> {
        peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        if meet.load(Ordering::SeqCst) {
            both.wait().await;
        }
        now.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    };
    let inbox = one_lane(&fixture).on_with("mail", handler, |o| o.detached()).build().await.unwrap();
    let mail = id_of(&inbox, "mail").await;
    for (round, crashes) in [1, 2].into_iter().enumerate() {
        for id in ["a", "b"] {
            accept_new(&inbox, sample(&format!("{id}-{round}"))).await;
        }
        for _ in 0..crashes {
            let dying = enter(&store, mail, 10).await;
            lease(&store, mail, dying).await;
            lease(&store, mail, dying).await;
            assert_eq!(crash(&fixture, dying).await, 2);
        }
        must_meet.store(crashes == 1, Ordering::SeqCst);
        most.store(0, Ordering::SeqCst);
        let report = tokio::time::timeout(HANG_LIMIT, inbox.work_until_idle()).await.expect("one by one");
        assert_eq!(report.unwrap().done, 2);
        assert_eq!(most.load(Ordering::SeqCst), if crashes == 1 { 2 } else { 1 });
    }
}

/// After five crashes the message is a dead letter, and does not run.
pub async fn a_detached_message_of_which_processes_keep_dying_is_a_dead_letter<
    F: Fixture<Store: LogStore>,
>(
    fixture: F,
) {
    let store = fixture.store();
    let runs: Journal<String> = Arc::default();
    let inbox = with_mail(one_lane(&fixture), &runs, |_, _| Ok(()), |o| o).build().await.unwrap();
    let mail = id_of(&inbox, "mail").await;
    let poison = accept_new(&inbox, sample("poison")).await;
    for _ in 0..5 {
        let dying = enter(&store, mail, 10).await;
        lease(&store, mail, dying).await;
        assert_eq!(crash(&fixture, dying).await, 1);
    }
    accept_new(&inbox, sample("behind")).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead), (1, 1));
    assert_eq!(read(&runs), ["behind"]);
    let letters = inbox.operators().dead_letters(Select::all(), 10).await.unwrap();
    assert_eq!((letters.len(), letters[0].place), (1, poison));
    assert!(letters[0].error.contains("5 processes crashed"), "{}", letters[0].error);
    assert_eq!(inbox.operators().retry_dead(Select::all(), &operator("ann")).await.unwrap(), 1);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(read(&runs), ["poison"]);
}

/// Messages whose bodies run out of process do not count crashes of the processes that start them.
pub async fn an_out_of_process_message_runs_after_any_number_of_crashes<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let store = fixture.store();
    let runs: Journal<String> = Arc::default();
    let builder = with_mail(one_lane(&fixture), &runs, |_, _| Ok(()), |o| o.out_of_process());
    let inbox = builder.build().await.unwrap();
    let mail = id_of(&inbox, "mail").await;
    accept_new(&inbox, sample("a")).await;
    // One more than the crashes that make other detached messages dead letters.
    for _ in 0..6 {
        let dying = enter(&store, mail, 10).await;
        lease(&store, mail, dying).await;
        assert_eq!(crash(&fixture, dying).await, 1);
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead), (1, 0));
    assert_eq!(read(&runs), ["a"]);
}
