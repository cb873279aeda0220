//! Failures: retries and their times, dead letters, and no effect on neighbours.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use oncebox_core::store::Select;
use oncebox_core::{Attempt, BoxError, Envelope, Failure, Inbox, InboxBuilder, LogStore, Retry};

use super::stored::{AT_ONCE, Conn, accept_new, one_lane, sample};
use super::{Fixture, Sample};

const HOUR: Duration = Duration::from_secs(3600);

/// A stored inbox whose handler writes an effect and returns the result of `judge`.
fn that_fails<F: Fixture<Store: LogStore>>(
    fixture: &F,
    judge: impl Fn(&str, u32) -> Result<(), Failure> + Clone + Send + Sync + 'static,
) -> InboxBuilder<F::Store> {
    let effects = fixture.clone();
    let handler =
        async move |sample: Sample, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), Failure> {
            effects.effect(conn, &sample.id).await?;
            judge(&sample.id, n)
        };
    one_lane(fixture).retry(AT_ONCE).on("ledger", handler)
}

async fn assert_effects<F: Fixture>(fixture: &F, expected: &[(&str, u64)]) {
    for (name, count) in expected {
        assert_eq!(fixture.effects(name).await, *count, "{name}");
    }
}

/// A permanent failure has no second attempt.
pub async fn a_permanent_failure_is_a_dead_letter_at_once<F: Fixture<Store: LogStore>>(fixture: F) {
    let judge = |id: &str, _| match id {
        "never" => Err(Failure::permanent("no such customer")),
        _ => Ok(()),
    };
    let inbox = that_fails(&fixture, judge).build().await.unwrap();
    for id in ["before", "never", "behind"] {
        accept_new(&inbox, sample(id)).await;
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (2, 0, 1));
    let letters = inbox.operators().dead_letters(Select::all(), 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].error.as_str(), letters[0].attempts.len()), ("no such customer", 1));
    assert_eq!((letters[0].handler.as_str(), letters[0].kind.as_str()), ("ledger", "sample"));
    assert_effects(&fixture, &[("before", 1), ("never", 0), ("behind", 1)]).await;
}

/// The first and the last errors help most. The row of a message that fails for weeks must stay small.
pub async fn of_many_failed_attempts_the_first_and_the_last_are_kept<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    const TRIES: u32 = 40;
    let retry = Retry::new().max_attempts(TRIES).first_delay(Duration::ZERO).max_delay(Duration::ZERO);
    let judge = |_: &str, n: u32| Err(Failure::from(format!("try {n}")));
    let inbox = that_fails(&fixture, judge).retry(retry).build().await.unwrap();
    accept_new(&inbox, sample("never")).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.failed, report.dead), (u64::from(TRIES) - 1, 1));
    let letters = inbox.operators().dead_letters(Select::all(), 10).await.unwrap();
    let kept: Vec<u32> = letters[0].attempts.iter().map(|past| past.attempt).collect();
    let expected: Vec<u32> = (1..=5).chain(TRIES - 14..=TRIES).collect();
    assert_eq!(kept, expected);
    assert!(letters[0].attempts.iter().all(|past| past.error == format!("try {}", past.attempt)));
    assert_eq!(letters[0].attempt_count(), TRIES);
}

/// It is accepted, kept as it came, and dead.
pub async fn a_body_that_cannot_be_decoded_does_not_stop_its_lane<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = that_fails(&fixture, |_, _| Ok(())).build().await.unwrap();
    accept_new(&inbox, sample("before")).await;
    accept_new(&inbox, Envelope::new("sample", "\0 nonsense").with_key("x")).await;
    accept_new(&inbox, sample("behind")).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (2, 0, 1));
    let letters = inbox.operators().dead_letters(Select::all(), 10).await.unwrap();
    assert_eq!(letters[0].body, b"\0 nonsense");
    assert!(letters[0].error.starts_with("cannot decode the body"), "{}", letters[0].error);
    assert_effects(&fixture, &[("before", 1), ("behind", 1)]).await;
}

/// It is caught, undone and tried again.
pub async fn a_panic_is_a_failure_like_others<F: Fixture<Store: LogStore>>(fixture: F) {
    let judge = |id: &str, n| match (id, n) {
        ("panics", 1) => panic!("on purpose"),
        ("panics", 2) => Err("an error".into()),
        _ => Ok(()),
    };
    let inbox = that_fails(&fixture, judge).build().await.unwrap();
    for id in ["before", "panics", "behind"] {
        accept_new(&inbox, sample(id)).await;
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (3, 2, 0));
    assert_effects(&fixture, &[("before", 1), ("panics", 1), ("behind", 1)]).await;
}

/// The handler's own delay is kept.
pub async fn a_retry_after_waits_for_its_time_and_runs_once<F: Fixture<Store: LogStore>>(fixture: F) {
    let judge = |_: &str, n| if n == 1 { Err(Failure::after(HOUR, "busy")) } else { Ok(()) };
    let inbox = that_fails(&fixture, judge).build().await.unwrap();
    accept_new(&inbox, sample("later")).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed), (0, 1));
    fixture.travel(HOUR / 2);
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    assert_eq!(fixture.effects("later").await, 0);
    fixture.travel(HOUR / 2);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    fixture.travel(HOUR * 2);
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    assert_eq!(fixture.effects("later").await, 1);
}

/// Waiting for its time is no attempt.
pub async fn a_scheduled_message_waits_for_its_time_and_runs_once<F: Fixture<Store: LogStore>>(fixture: F) {
    let first_try = |_: &str, n| if n == 1 { Ok(()) } else { Err("not the first try".into()) };
    let inbox = that_fails(&fixture, first_try).build().await.unwrap();
    let now = SystemTime::now();
    accept_new(&inbox, sample("tomorrow").with_due_at(now + HOUR)).await;
    accept_new(&inbox, sample("yesterday").with_due_at(now - HOUR)).await;
    accept_new(&inbox, sample("now")).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.scheduled, report.failed), (2, 1, 0));
    assert_effects(&fixture, &[("tomorrow", 0), ("yesterday", 1), ("now", 1)]).await;
    let tasks = inbox.operators().tasks(Some("ledger"), 10).await.unwrap();
    assert_eq!((tasks.len(), tasks[0].failures, &tasks[0].error), (1, 0, &None));
    let off = tasks[0].due_at.duration_since(now).unwrap().abs_diff(HOUR);
    assert!(off < HOUR / 4, "due {off:?} off its time");
    fixture.travel(HOUR / 2);
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    fixture.travel(HOUR / 2);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    assert_effects(&fixture, &[("tomorrow", 1), ("yesterday", 1), ("now", 1)]).await;
}

/// One try in each of several processes: they count on from where the last one stopped.
pub async fn attempts_are_counted_durably<F: Fixture<Store: LogStore>>(fixture: F) {
    let seen: Arc<Mutex<Vec<u32>>> = Arc::default();
    let mut dead = 0;
    let mut processes = Vec::new();
    for process in 1..=3 {
        let log = seen.clone();
        let judge = move |_: &str, n| {
            log.lock().unwrap().push(n);
            Err("always".into())
        };
        let inbox = that_fails(&fixture, judge).build().await.unwrap();
        if process == 1 {
            accept_new(&inbox, sample("doomed")).await;
        }
        dead += inbox.work_once().await.unwrap().dead;
        processes.push(inbox);
    }
    assert_eq!(*seen.lock().unwrap(), [1, 2, 3]);
    assert_eq!(dead, 1);
    let inbox = that_fails(&fixture, |_, _| Ok(())).build().await.unwrap();
    assert!(inbox.work_until_idle().await.unwrap().is_empty(), "dead is dead");
    assert_eq!(inbox.operators().dead_letters(Select::all(), 10).await.unwrap()[0].attempts.len(), 3);
    assert_eq!(fixture.effects("doomed").await, 0);
}

/// Full jitter, within the policy's bounds.
pub async fn waits_between_attempts_double_to_their_limit<F: Fixture<Store: LogStore>>(fixture: F) {
    let retry = Retry::new().max_attempts(5).first_delay(HOUR).max_delay(HOUR * 3);
    let inbox = that_fails(&fixture, |_, _| Err("always".into())).retry(retry).build().await.unwrap();
    for n in 0..20 {
        accept_new(&inbox, sample(&format!("m-{n}"))).await;
    }
    let mut travelled = Duration::ZERO;
    for longest in [HOUR, HOUR * 2, HOUR * 3, HOUR * 3] {
        let before = SystemTime::now() + travelled;
        assert_eq!(inbox.work_until_idle().await.unwrap().failed, 20);
        let after = SystemTime::now() + travelled;
        let tasks = inbox.operators().tasks(None, 100).await.unwrap();
        assert_eq!(tasks.len(), 20);
        for task in &tasks {
            assert!(task.due_at <= after + longest + Duration::from_millis(1), "{task:?}");
            assert!(task.due_at >= before - Duration::from_millis(1), "{task:?}");
        }
        // By chance, but not all twenty in the first quarter.
        assert!(tasks.last().unwrap().due_at > before + longest / 4, "{tasks:?}");
        fixture.travel(longest);
        travelled += longest;
    }
    assert_eq!(inbox.work_until_idle().await.unwrap().dead, 20);
}

/// A set that fails is halved until the culprit is found.
pub async fn a_poisoned_message_in_a_set_dies_alone<F: Fixture<Store: LogStore>>(fixture: F) {
    let sets = Arc::new(AtomicUsize::new(0));
    let (effects, count) = (fixture.clone(), sets.clone());
    let handler = async move |samples: Vec<Sample>, conn: &mut Conn<F>| -> Result<(), Failure> {
        count.fetch_add(1, Ordering::SeqCst);
        for sample in &samples {
            effects.effect(conn, &sample.id).await?;
        }
        match samples.iter().any(|sample| sample.id == "m-63") {
            true => Err(Failure::permanent("poison")),
            false => Ok(()),
        }
    };
    let inbox = one_lane(&fixture).on("ledger", handler).build().await.unwrap();
    let accepted = inbox.accept_all((0..100).map(|n| sample(&format!("m-{n}")))).await;
    assert!(accepted.iter().all(|accept| accept.as_ref().unwrap().is_new()));
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (99, 0, 1));
    for n in 0..100 {
        assert_eq!(fixture.effects(&format!("m-{n}")).await, u64::from(n != 63), "m-{n}");
    }
    let letters = inbox.operators().dead_letters(Select::all(), 10).await.unwrap();
    assert_eq!((letters.len(), letters[0].attempts.len()), (1, 1));
    assert_eq!(letters[0].key.as_ref().map(ToString::to_string).as_deref(), Some("m-63"));
    let sets = sets.load(Ordering::SeqCst);
    // Halving takes about two runs per level to find one message in a batch.
    assert!(sets < 40, "{sets} sets for 100 messages");
}

/// Every run: of what, which attempt, and whether it came to its end.
type Runs = Arc<Mutex<Vec<(String, u32, bool)>>>;

/// An inbox whose handlers have little time. One of them hangs for this many attempts. It records every run.
fn that_hangs<F: Fixture<Store: LogStore>>(
    fixture: &F,
    attempts: u32,
    runs: &Runs,
) -> InboxBuilder<F::Store> {
    let (effects, runs) = (fixture.clone(), runs.clone());
    let handler =
        async move |sample: Sample, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), BoxError> {
            let run = {
                let mut runs = runs.lock().unwrap();
                runs.push((sample.id.clone(), n, false));
                runs.len() - 1
            };
            effects.effect(conn, &sample.id).await?;
            if sample.id.starts_with("hangs") && n <= attempts {
                std::future::pending::<()>().await;
            }
            runs.lock().unwrap()[run].2 = true;
            Ok(())
        };
    one_lane(fixture).handler_timeout(Duration::from_millis(100)).on("ledger", handler)
}

/// Its time is up, and each run counts as one attempt.
pub async fn a_handler_that_hangs_fails_alone<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs = Runs::default();
    let twice = AT_ONCE.max_attempts(2);
    let inbox = that_hangs(&fixture, 2, &runs).retry(twice).build().await.unwrap();
    accept_new(&inbox, sample("hangs alone")).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (0, 1, 1));
    assert_eq!(runs.lock().unwrap().len(), 2, "each run is an attempt");
    let letters = inbox.operators().dead_letters(Select::all(), 10).await.unwrap();
    assert_eq!((letters.len(), letters[0].attempts.len()), (1, 2));

    // On a busy machine the time of its neighbours may be up too: they need more attempts, and no other message does.
    let often = AT_ONCE.max_attempts(1_000);
    let inbox = that_hangs(&fixture, 1, &runs).retry(often).build().await.unwrap();
    let ids = ["before", "hangs", "behind"];
    for id in ids {
        accept_new(&inbox, sample(id)).await;
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead), (3, 0));
    let runs = runs.lock().unwrap().clone();
    for id in ids {
        let of_it = || runs.iter().filter(|(of, ..)| of == id);
        let attempts = of_it().map(|(_, attempt, _)| *attempt).max().unwrap();
        let cut_short = of_it().filter(|(.., ended)| !ended).count();
        assert!(cut_short >= usize::from(id == "hangs"), "{runs:?}");
        assert!(attempts as usize <= 1 + cut_short, "{id} pays for another one: {runs:?}");
    }
    assert_effects(&fixture, &[("before", 1), ("hangs", 1), ("behind", 1)]).await;
}

/// Failing messages do not delay the others of their lane, however many fail.
pub async fn neighbours_of_failing_messages_run_once<F: Fixture<Store: LogStore>>(fixture: F) {
    let fails = |id: &str| id[2..].parse::<u32>().is_ok_and(|n| n.is_multiple_of(7));
    let judge = move |id: &str, n| if fails(id) && n < 3 { Err("not yet".into()) } else { Ok(()) };
    let inbox: Inbox<F::Store> = that_fails(&fixture, judge).build().await.unwrap();
    let accepted = inbox.accept_all((0..200).map(|n| sample(&format!("m-{n}")))).await;
    assert!(accepted.iter().all(|accept| accept.as_ref().unwrap().is_new()));
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (200, 58, 0));
    for n in 0..200 {
        assert_eq!(fixture.effects(&format!("m-{n}")).await, 1, "m-{n}");
    }
}
