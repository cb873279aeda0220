//! Effects: once, or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use oncebox_core::store::Store;
use oncebox_core::{BoxError, Envelope, Inbox, InboxBuilder, Outcome, Settlement};

use crate::Harness;
use crate::conformance::{Fixture, Sample, TransactionBody};

type Conn<F> = <<F as Fixture>::Store as Store>::Conn;

fn envelope(id: &str) -> Envelope {
    Envelope::of(&Sample::new(id)).unwrap()
}

/// Registers a handler that writes one effect.
fn with_effect<F: Fixture>(
    builder: InboxBuilder<F::Store>,
    fixture: &F,
    name: &str,
) -> InboxBuilder<F::Store> {
    let fixture = fixture.clone();
    builder.on(name, async move |sample: Sample, conn: &mut Conn<F>| fixture.effect(conn, &sample.id).await)
}

/// 64 copies at once: one effect, bodies never overlap, every caller gets a result.
pub async fn copies_at_once_take_effect_once<F: Fixture>(fixture: F) {
    let running = Arc::new(AtomicU32::new(0));
    let overlapped = Arc::new(AtomicBool::new(false));
    let handler = {
        let (fixture, running, overlapped) = (fixture.clone(), running.clone(), overlapped.clone());
        async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
            if running.fetch_add(1, Ordering::SeqCst) > 0 {
                overlapped.store(true, Ordering::SeqCst);
            }
            let done = fixture.effect(conn, &sample.id).await;
            // Long enough for copies to come in while the first body runs.
            tokio::time::sleep(Duration::from_millis(20)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            done
        }
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    let copies: Vec<_> = (0..64)
        .map(|_| {
            let inbox = inbox.clone();
            tokio::spawn(async move { inbox.process(envelope("copied")).await })
        })
        .collect();
    let (mut done, mut duplicates) = (0, 0);
    for copy in copies {
        match copy.await.unwrap().unwrap().outcome("h") {
            Some(Outcome::Done) => done += 1,
            Some(Outcome::Duplicate) => duplicates += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((done, duplicates), (1, 63));
    assert_eq!(fixture.effects("copied").await, 1);
    assert!(!overlapped.load(Ordering::SeqCst), "two bodies ran at the same time");
}

/// Fails or panics on the first call, works on the second; the first leaves nothing.
async fn first_try_fails<F: Fixture>(fixture: F, panics: bool) {
    let tries = Arc::new(AtomicU32::new(0));
    let handler = {
        let (fixture, tries) = (fixture.clone(), tries.clone());
        async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
            fixture.effect(conn, &sample.id).await?;
            match (tries.fetch_add(1, Ordering::SeqCst), panics) {
                (0, true) => panic!("on purpose"),
                (0, false) => Err("on purpose".into()),
                _ => Ok(()),
            }
        }
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    let first = inbox.process(envelope("retried")).await.unwrap();
    let Some(Outcome::Retry { cause, .. }) = first.outcome("h") else { panic!("{first:?}") };
    assert!(cause.to_string().contains("on purpose"), "{cause}");
    assert_eq!(first.settlement(), Settlement::Retry { after: None });
    // Without a shared transaction the effect of a failed handler stays.
    let left = u64::from(!fixture.capabilities().transactional);
    assert_eq!(fixture.effects("retried").await, left);
    assert!(inbox.marker("h", "sample", "retried").await.unwrap().is_none());

    let second = inbox.process(envelope("retried")).await.unwrap();
    assert!(matches!(second.outcome("h"), Some(Outcome::Done)), "{second:?}");
    assert_eq!(second.settlement(), Settlement::Ack);
    let third = inbox.process(envelope("retried")).await.unwrap();
    assert!(matches!(third.outcome("h"), Some(Outcome::Duplicate)), "{third:?}");
    assert_eq!(third.settlement(), Settlement::Ack);
    assert_eq!(fixture.effects("retried").await, left + 1);
}

/// A handler whose first try failed runs on redelivery.
pub async fn a_failed_handler_leaves_nothing_and_runs_again<F: Fixture>(fixture: F) {
    first_try_fails(fixture, false).await;
}

/// A panic is a failure like any other.
pub async fn a_panicking_handler_leaves_nothing_and_runs_again<F: Fixture>(fixture: F) {
    first_try_fails(fixture, true).await;
}

async fn harness<F: Fixture>(fixture: &F) -> Harness<F::Store> {
    let fixture = fixture.clone();
    Harness::new(fixture.store(), |inbox| {
        inbox.on("h", async move |sample: Sample, conn: &mut Conn<F>| fixture.effect(conn, &sample.id).await)
    })
    .await
    .unwrap()
}

/// After a crash before the commit, nothing has happened.
pub async fn a_crash_before_commit_leaves_nothing<F: Fixture>(fixture: F) {
    let delivered = harness(&fixture)
        .await
        .deliver(&Sample::new("crashed"))
        .copies(3)
        .crash_before_commit(2)
        .await
        .unwrap();
    assert_eq!((delivered.crashes, delivered.done("h"), delivered.duplicates("h")), (2, 1, 2));
    let repeated = if fixture.capabilities().transactional { 0 } else { 2 };
    assert_eq!(fixture.effects("crashed").await, 1 + repeated);
}

/// After a crash behind the commit, the next delivery is a duplicate.
pub async fn a_crash_after_commit_is_a_duplicate<F: Fixture>(fixture: F) {
    let delivered = harness(&fixture)
        .await
        .deliver(&Sample::new("crashed"))
        .copies(3)
        .crash_after_commit(1)
        .await
        .unwrap();
    assert_eq!((delivered.crashes, delivered.done("h"), delivered.duplicates("h")), (1, 0, 3));
    assert_eq!(fixture.effects("crashed").await, 1);
}

/// A caller that is dropped in the middle of the body leaves nothing behind, and nothing locked.
pub async fn a_caller_that_goes_away_leaves_nothing<F: Fixture>(fixture: F) {
    let (entered, mut inside) = tokio::sync::mpsc::unbounded_channel();
    let tries = Arc::new(AtomicU32::new(0));
    let handler = {
        let fixture = fixture.clone();
        async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
            fixture.effect(conn, &sample.id).await?;
            if tries.fetch_add(1, Ordering::SeqCst) == 0 {
                let _ = entered.send(());
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    let caller = tokio::spawn({
        let inbox = inbox.clone();
        async move { inbox.process(envelope("cancelled")).await }
    });
    inside.recv().await.unwrap();
    caller.abort();
    // Waits until the call is dropped; aborting only asks for that.
    let _ = caller.await;
    let again = inbox.process(envelope("cancelled")).await.unwrap();
    assert!(matches!(again.outcome("h"), Some(Outcome::Done)), "{again:?}");
    let left = u64::from(!fixture.capabilities().transactional);
    assert_eq!(fixture.effects("cancelled").await, 1 + left);
}

/// One id, three handlers: each runs once, and one that fails does not hold the others.
pub async fn three_handlers_of_one_message_run_once_each<F: Fixture>(fixture: F) {
    let failing = Arc::new(AtomicBool::new(true));
    let second = {
        let (fixture, failing) = (fixture.clone(), failing.clone());
        async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
            if failing.load(Ordering::SeqCst) {
                return Err("not yet".into());
            }
            fixture.effect(conn, &sample.id).await
        }
    };
    let builder = with_effect(Inbox::builder(fixture.store()), &fixture, "first").on("second", second);
    let inbox = with_effect(builder, &fixture, "third").build().await.unwrap();

    let report = inbox.process(envelope("shared")).await.unwrap();
    let names: Vec<_> = report.outcomes().map(|(handler, outcome)| (handler, outcome.name())).collect();
    assert_eq!(names, [("first", "done"), ("second", "retry"), ("third", "done")]);
    failing.store(false, Ordering::SeqCst);
    let report = inbox.process(envelope("shared")).await.unwrap();
    let names: Vec<_> = report.outcomes().map(|(handler, outcome)| (handler, outcome.name())).collect();
    assert_eq!(names, [("first", "duplicate"), ("second", "done"), ("third", "duplicate")]);
    assert_eq!(report.settlement(), Settlement::Ack);
    assert_eq!(fixture.effects("shared").await, 3);
    assert_eq!(inbox.markers("shared").await.unwrap().len(), 3);
}

/// In a transaction of the application's own, committed or not.
pub async fn a_claim_joins_a_transaction_of_the_user<F: Fixture>(fixture: F) {
    let inbox = Inbox::builder(fixture.store()).build().await.unwrap();
    for (commits, is_expected) in [(false, true), (true, true), (true, false)] {
        let (inbox, effects) = (inbox.clone(), fixture.clone());
        let body: TransactionBody<Conn<F>> = Box::new(move |conn| {
            Box::pin(async move {
                let is_fresh = inbox.claim(conn, "h", "k", "a").await.unwrap();
                assert_eq!(is_fresh, is_expected);
                if is_fresh {
                    effects.effect(conn, "a").await.unwrap();
                }
            })
        });
        let has_run = fixture.transaction(commits, body).await;
        assert_eq!(has_run, fixture.capabilities().transactional, "implement Fixture::transaction");
        if !has_run {
            return;
        }
    }
    assert_eq!(fixture.effects("a").await, 1);
    let body: TransactionBody<Conn<F>> = Box::new(move |conn| {
        Box::pin(async move {
            for (handler, kind, key) in [("", "k", "a"), ("h", "@once", "a"), ("h", "k", "")] {
                assert!(inbox.claim(conn, handler, kind, key).await.is_err(), "{handler} {kind} {key}");
            }
        })
    });
    assert!(fixture.transaction(false, body).await);
}

/// Markers on disk outlive the process.
pub async fn what_was_done_is_still_known_after_a_restart<F: Fixture>(fixture: F) {
    let inbox = with_effect(Inbox::builder(fixture.store()), &fixture, "h").build().await.unwrap();
    let report = inbox.process(envelope("a")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{report:?}");
    drop(inbox);
    let Some(fixture) = fixture.reopen().await else { return };
    let inbox = with_effect(Inbox::builder(fixture.store()), &fixture, "h").build().await.unwrap();
    let report = inbox.process(envelope("a")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Duplicate)), "{report:?}");
    assert_eq!(fixture.effects("a").await, 1);
}

/// No statement is there to be ended by the database.
pub async fn a_handler_that_waits_outside_the_database_times_out_too<F: Fixture>(fixture: F) {
    let waits = Arc::new(AtomicBool::new(false));
    let (effects, is_there) = (fixture.clone(), waits.clone());
    let handler = async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
        effects.effect(conn, &sample.id).await?;
        is_there.store(true, Ordering::SeqCst);
        std::future::pending().await
    };
    let builder = Inbox::builder(fixture.store()).handler_timeout(Duration::from_millis(50));
    let inbox = builder.on("h", handler).build().await.unwrap();
    loop {
        let report = inbox.process(envelope("a")).await.unwrap();
        let Some(Outcome::Retry { cause, .. }) = report.outcome("h") else { panic!("{report:?}") };
        if fixture.capabilities().transactional {
            assert_eq!(fixture.effects("a").await, 0);
        }
        // On a busy machine its time may be up before that.
        if waits.load(Ordering::SeqCst) {
            assert!(cause.to_string().contains("longer than 50ms"), "{cause}");
            return;
        }
    }
}
