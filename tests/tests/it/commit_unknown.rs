//! A commit whose answer was lost: found out, not guessed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use oncebox::{Error, Inbox, Once, Outcome};
use oncebox_testing::{Faulty, Fixture, Point};

use crate::cut::Cut;
use crate::every_store::{Conn, OrderPaid, envelope, on_every_store};

on_every_store!(
    a_commit_that_happened_is_done,
    a_commit_that_did_not_happen_is_tried_again,
    a_closure_whose_commit_happened_is_fresh,
    a_closure_whose_commit_did_not_happen_is_an_error,
);

async fn cut_once<F: Fixture>(fixture: &F, point: Point) -> (Inbox<Faulty<F::Store, Cut>>, Arc<AtomicU32>) {
    let bodies = Arc::new(AtomicU32::new(0));
    let (effects, counted) = (fixture.clone(), bodies.clone());
    let handler = async move |order: OrderPaid, conn: &mut Conn<F>| {
        counted.fetch_add(1, Ordering::SeqCst);
        effects.effect(conn, &order.order_id).await
    };
    let store = Faulty::new(fixture.store(), Cut::at(point, 1));
    (Inbox::builder(store).on("h", handler).build().await.unwrap(), bodies)
}

async fn a_commit_that_happened_is_done<F: Fixture>(fixture: F) {
    let (inbox, bodies) = cut_once(&fixture, Point::AfterCommit).await;
    let report = inbox.process(envelope("a")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{report:?}");
    assert_eq!((bodies.load(Ordering::SeqCst), fixture.effects("a").await), (1, 1));
}

async fn a_commit_that_did_not_happen_is_tried_again<F: Fixture>(fixture: F) {
    let (inbox, bodies) = cut_once(&fixture, Point::BeforeCommit).await;
    let report = inbox.process(envelope("a")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{report:?}");
    assert_eq!((bodies.load(Ordering::SeqCst), fixture.effects("a").await), (2, 1));
}

async fn once<F: Fixture>(fixture: &F, inbox: &Inbox<Faulty<F::Store, Cut>>) -> Result<Once<u32>, Error> {
    let effects = fixture.clone();
    inbox
        .once("o", "a", async |conn: &mut Conn<F>| -> Result<u32, Error> {
            effects.effect(conn, "a").await.map_err(|error| Error::unavailable("effect", error))?;
            Ok(7)
        })
        .await
}

async fn a_closure_whose_commit_happened_is_fresh<F: Fixture>(fixture: F) {
    let (inbox, _) = cut_once(&fixture, Point::AfterCommit).await;
    assert_eq!(once(&fixture, &inbox).await.unwrap(), Once::Fresh(7));
    assert_eq!(once(&fixture, &inbox).await.unwrap(), Once::Replayed(7));
    assert_eq!(fixture.effects("a").await, 1);
}

async fn a_closure_whose_commit_did_not_happen_is_an_error<F: Fixture>(fixture: F) {
    let (inbox, _) = cut_once(&fixture, Point::BeforeCommit).await;
    once(&fixture, &inbox).await.unwrap_err();
    assert_eq!(fixture.effects("a").await, 0);
    assert_eq!(once(&fixture, &inbox).await.unwrap(), Once::Fresh(7));
    assert_eq!(fixture.effects("a").await, 1);
}
