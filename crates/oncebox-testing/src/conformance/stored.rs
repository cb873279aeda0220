//! The stored inbox: an accepted message takes effect later, once for each handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oncebox_core::store::{Place, Select};
use oncebox_core::{Accept, Attempt, BoxError, Envelope, Inbox, InboxBuilder, LogStore, Retry};

use super::{Fixture, Sample};
use crate::operator;

pub(super) type Conn<F> = <<F as Fixture>::Store as oncebox_core::store::Store>::Conn;

/// Longer than any visit, so that the size of a batch does not depend on the speed of the machine.
pub(super) const NO_LIMIT: Duration = Duration::from_secs(3600);

/// A stored inbox with one lane, where nothing runs beside anything else.
pub(super) fn one_lane<F: Fixture<Store: LogStore>>(fixture: &F) -> InboxBuilder<F::Store> {
    Inbox::builder(fixture.store()).stored().lanes(1).batch_time(NO_LIMIT)
}

/// A builder with a handler that writes one effect, named after handler and message.
pub(super) fn with_effect<F: Fixture>(
    fixture: &F,
    builder: InboxBuilder<F::Store>,
    handler: &'static str,
) -> InboxBuilder<F::Store> {
    let fixture = fixture.clone();
    builder.on(handler, async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
        fixture.effect(conn, &format!("{handler} {}", sample.id)).await
    })
}

pub(super) fn sample(id: &str) -> Envelope {
    Envelope::of(&Sample::new(id)).unwrap()
}

/// Retries that are due at once.
pub(super) const AT_ONCE: Retry =
    Retry::new().max_attempts(3).first_delay(Duration::ZERO).max_delay(Duration::ZERO);

/// Accepts a message that is new; where it sits.
pub(super) async fn accept_new<S: LogStore>(inbox: &Inbox<S>, envelope: Envelope) -> Place {
    match inbox.accept(envelope).await.unwrap() {
        Accept::Accepted(Place { lane, pos }) => Place { lane, pos },
        known => panic!("{known:?}"),
    }
}

/// Three handlers, three messages, copies before and after: nine effects.
pub async fn what_is_accepted_runs_once_for_each_handler<F: Fixture<Store: LogStore>>(fixture: F) {
    let mut builder = Inbox::builder(fixture.store()).stored();
    for handler in ["one", "two", "three"] {
        builder = with_effect(&fixture, builder, handler);
    }
    let inbox = builder.build().await.unwrap();
    for id in ["a", "b", "c"] {
        accept_new(&inbox, sample(id)).await;
        assert!(inbox.accept(sample(id)).await.unwrap().is_duplicate());
    }
    assert_eq!(fixture.effects("one a").await, 0, "nothing runs before the workers do");
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 9);
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    for handler in ["one", "two", "three"] {
        for id in ["a", "b", "c"] {
            assert_eq!(fixture.effects(&format!("{handler} {id}")).await, 1, "{handler} {id}");
            assert!(inbox.accept(sample(id)).await.unwrap().is_duplicate());
        }
    }
}

/// Copies at the same time, over two inboxes.
pub async fn copies_at_once_are_accepted_once<F: Fixture<Store: LogStore>>(fixture: F) {
    let inboxes = [
        with_effect(&fixture, Inbox::builder(fixture.store()).stored(), "ledger").build().await.unwrap(),
        with_effect(&fixture, Inbox::builder(fixture.store()).stored(), "ledger").build().await.unwrap(),
    ];
    for round in 0..5 {
        let id = format!("copy-{round}");
        let copies: Vec<_> = (0..32)
            .map(|n| {
                let (inbox, envelope) = (inboxes[n % 2].clone(), sample(&id));
                tokio::spawn(async move { inbox.accept(envelope).await.unwrap() })
            })
            .collect();
        let mut new = 0;
        for copy in copies {
            new += u32::from(copy.await.unwrap().is_new());
        }
        assert_eq!(new, 1, "{id}");
    }
    assert_eq!(inboxes[0].work_until_idle().await.unwrap().done, 5);
    for round in 0..5 {
        assert_eq!(fixture.effects(&format!("ledger copy-{round}")).await, 1);
    }
}

/// A failed message becomes a task; the messages before and behind it stay done.
pub async fn a_failed_message_runs_again_and_its_neighbours_do_not<F: Fixture<Store: LogStore>>(fixture: F) {
    let attempts = Arc::new(AtomicU32::new(0));
    let (effects, seen) = (fixture.clone(), attempts.clone());
    let handler =
        async move |sample: Sample, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), BoxError> {
            effects.effect(conn, &sample.id).await?;
            if sample.id == "fails" {
                seen.fetch_max(n, Ordering::SeqCst);
                if n < 3 {
                    return Err("not yet".into());
                }
            }
            Ok(())
        };
    let inbox = Inbox::builder(fixture.store())
        .stored()
        .lanes(1)
        .retry(AT_ONCE)
        .on("ledger", handler)
        .build()
        .await
        .unwrap();
    for id in ["before", "fails", "behind"] {
        accept_new(&inbox, sample(id)).await;
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (3, 2, 0));
    assert_eq!(attempts.load(Ordering::SeqCst), 3);
    for id in ["before", "fails", "behind"] {
        assert_eq!(fixture.effects(id).await, 1, "{id}");
    }
}

/// Without attempts left, the message waits for an operator, whose retry runs it again.
pub async fn a_message_that_keeps_failing_is_a_dead_letter<F: Fixture<Store: LogStore>>(fixture: F) {
    let heal = Arc::new(AtomicU32::new(0));
    let told = Arc::new(AtomicU32::new(0));
    let (effects, healed) = (fixture.clone(), heal.clone());
    let handler =
        async move |sample: Sample, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), BoxError> {
            effects.effect(conn, &sample.id).await?;
            match healed.load(Ordering::SeqCst) {
                0 => Err(format!("attempt {n} failed").into()),
                _ => Ok(()),
            }
        };
    let hook = told.clone();
    let inbox = Inbox::builder(fixture.store())
        .stored()
        .retry(AT_ONCE)
        .on("ledger", handler)
        .on_dead(move |letter| {
            assert_eq!(letter.attempts.len(), 3);
            hook.fetch_add(1, Ordering::SeqCst);
        })
        .build()
        .await
        .unwrap();
    accept_new(&inbox, sample("doomed")).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (0, 2, 1));
    assert_eq!(told.load(Ordering::SeqCst), 1);
    assert_eq!(fixture.effects("doomed").await, 0);

    let letters = inbox.operators().dead_letters(Select::all().handler("ledger"), 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!(letter.error, "attempt 3 failed");
    let history: Vec<_> = letter.attempts.iter().map(|past| (past.attempt, past.error.as_str())).collect();
    assert_eq!(history, [(1, "attempt 1 failed"), (2, "attempt 2 failed"), (3, "attempt 3 failed")]);
    assert!(inbox.accept(sample("doomed")).await.unwrap().is_duplicate());

    assert_eq!(
        inbox.operators().retry_dead(Select::all().error("no such text"), &operator("ann")).await.unwrap(),
        0
    );
    heal.store(1, Ordering::SeqCst);
    assert_eq!(
        inbox
            .operators()
            .retry_dead(Select::all().kind("sample").error("FAILED"), &operator("ann"))
            .await
            .unwrap(),
        1
    );
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(fixture.effects("doomed").await, 1);
    assert!(inbox.operators().dead_letters(Select::all(), 10).await.unwrap().is_empty());
    let audit = inbox.operators().audit(10).await.unwrap();
    assert_eq!(audit.len(), 1);
    assert_eq!((audit[0].operator.as_str(), audit[0].action.as_str()), ("ann", "retry"));
    assert_eq!(audit[0].place, Some(letter.place));
}
