//! Modulus: per-handler tracking, races on save, an inbox that is optional.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use oncebox::{BoxError, Inbox, InboxBuilder, Outcome};
use oncebox_testing::Fixture;

use crate::every_store::{Conn, OrderPaid, envelope, on_every_store};

on_every_store!(
    each_handler_of_an_event_is_tracked_on_its_own,
    two_copies_saved_at_once_run_the_handler_once,
    the_inbox_is_optional_for_all_handlers,
    the_inbox_is_optional_for_one_handler,
    has_been_processed_answers_per_handler,
    record_consumer_makes_later_copies_duplicates,
);

fn effect<F: Fixture>(
    fixture: &F,
    builder: InboxBuilder<F::Store>,
    name: &'static str,
) -> InboxBuilder<F::Store> {
    let fixture = fixture.clone();
    builder.on(name, async move |_: OrderPaid, conn: &mut Conn<F>| fixture.effect(conn, name).await)
}

async fn each_handler_of_an_event_is_tracked_on_its_own<F: Fixture>(fixture: F) {
    let only_a = effect(&fixture, Inbox::builder(fixture.store()), "a").build().await.unwrap();
    only_a.process(envelope("e-1")).await.unwrap();
    // Handlers that are added later have not processed it.
    let mut builder = Inbox::builder(fixture.store());
    for name in ["a", "b", "c"] {
        builder = effect(&fixture, builder, name);
    }
    let all = builder.build().await.unwrap();
    let report = all.process(envelope("e-1")).await.unwrap();
    let names: Vec<_> = report.outcomes().map(|(handler, outcome)| (handler, outcome.name())).collect();
    assert_eq!(names, [("a", "duplicate"), ("b", "done"), ("c", "done")]);
    for name in ["a", "b", "c"] {
        assert_eq!(fixture.effects(name).await, 1, "{name}");
    }
}

async fn two_copies_saved_at_once_run_the_handler_once<F: Fixture>(fixture: F) {
    let inbox = effect(&fixture, Inbox::builder(fixture.store()), "a").build().await.unwrap();
    for round in 0..20 {
        let id = format!("e-{round}");
        let (one, other) = tokio::join!(inbox.process(envelope(&id)), inbox.process(envelope(&id)));
        let mut names = [one.unwrap(), other.unwrap()].map(|report| report.outcome("a").unwrap().name());
        names.sort_unstable();
        assert_eq!(names, ["done", "duplicate"]);
    }
    assert_eq!(fixture.effects("a").await, 20);
}

async fn the_inbox_is_optional_for_all_handlers<F: Fixture>(fixture: F) {
    let builder = Inbox::builder(fixture.store()).without_dedup();
    let inbox = effect(&fixture, effect(&fixture, builder, "a"), "b").build().await.unwrap();
    for _ in 0..3 {
        // Not even a key is needed.
        for envelope in [envelope("e-1"), envelope("")] {
            let report = inbox.process(envelope).await.unwrap();
            assert!(matches!(report.outcome("a"), Some(Outcome::Done)), "{report:?}");
        }
    }
    assert_eq!((fixture.effects("a").await, fixture.effects("b").await), (6, 6));
    assert!(inbox.markers("e-1").await.unwrap().is_empty());
}

async fn the_inbox_is_optional_for_one_handler<F: Fixture>(fixture: F) {
    let runs = Arc::new(AtomicU32::new(0));
    let direct = {
        let (fixture, runs) = (fixture.clone(), runs.clone());
        async move |_: OrderPaid, conn: &mut Conn<F>| -> Result<(), BoxError> {
            fixture.effect(conn, "direct").await?;
            // Still a transaction: what fails leaves nothing.
            if runs.fetch_add(1, Ordering::SeqCst) == 1 { Err("once".into()) } else { Ok(()) }
        }
    };
    let builder =
        Inbox::builder(fixture.store()).on_with("direct", direct, |options| options.without_dedup());
    let inbox = effect(&fixture, builder, "a").build().await.unwrap();
    for _ in 0..3 {
        inbox.process(envelope("e-1")).await.unwrap();
    }
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    assert_eq!((fixture.effects("direct").await, fixture.effects("a").await), (2, 1));
}

async fn has_been_processed_answers_per_handler<F: Fixture>(fixture: F) {
    let inbox = effect(&fixture, Inbox::builder(fixture.store()), "a").build().await.unwrap();
    inbox.process(envelope("e-1")).await.unwrap();
    assert!(inbox.marker("a", "order.paid", "e-1").await.unwrap().is_some());
    assert!(inbox.marker("b", "order.paid", "e-1").await.unwrap().is_none());
    assert!(inbox.marker("a", "order.paid", "e-2").await.unwrap().is_none());
}

async fn record_consumer_makes_later_copies_duplicates<F: Fixture>(fixture: F) {
    let inbox = effect(&fixture, Inbox::builder(fixture.store()), "a").build().await.unwrap();
    assert_eq!(inbox.import_processed("a", ["e-1", "e-2", "e-1"]).await.unwrap(), 2);
    assert_eq!(inbox.import_processed("a", ["e-2", "e-3"]).await.unwrap(), 1);
    for id in ["e-1", "e-2", "e-3"] {
        let report = inbox.process(envelope(id)).await.unwrap();
        assert!(matches!(report.outcome("a"), Some(Outcome::Duplicate)), "{report:?}");
    }
    assert_eq!(fixture.effects("a").await, 0);
    let error = inbox.import_processed("unknown", ["e-1"]).await.unwrap_err();
    assert!(error.to_string().contains("there are: a"), "{error}");
}
