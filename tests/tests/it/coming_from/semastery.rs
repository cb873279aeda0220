//! SEMastery: the primary key is the referee.

use oncebox::{Inbox, Outcome};
use oncebox_testing::Fixture;

use crate::every_store::{Conn, OrderPaid, envelope, on_every_store};

on_every_store!(
    the_primary_key_refuses_a_second_marker,
    the_id_is_recorded_before_the_work_and_with_it,
    losers_of_the_race_step_aside,
);

/// A fixture into which a marker can be written behind the library's back.
trait HandwrittenMarkers {
    async fn insert_marker_by_hand(&self, handler: &str, key: &[u8]) -> Result<(), sqlx::Error>;
}

const BY_HAND_SQLITE: &str = "insert into oncebox_marker (handler, kind, key, state, received_at, processed_at) values (?, 'order.paid', ?, 'done', 0, 0)";
const BY_HAND_POSTGRES: &str =
    "insert into oncebox.marker (handler, kind, key, state, received_at, processed_at)
    values ($1, 'order.paid', $2, 'done', now(), now())";

impl HandwrittenMarkers for crate::sqlite::Sqlite {
    async fn insert_marker_by_hand(&self, handler: &str, key: &[u8]) -> Result<(), sqlx::Error> {
        sqlx::query(BY_HAND_SQLITE).bind(handler).bind(key).execute(self.store.pool()).await.map(drop)
    }
}

impl HandwrittenMarkers for crate::postgres::Postgres {
    async fn insert_marker_by_hand(&self, handler: &str, key: &[u8]) -> Result<(), sqlx::Error> {
        sqlx::query(BY_HAND_POSTGRES).bind(handler).bind(key).execute(self.store.pool()).await.map(drop)
    }
}

async fn the_primary_key_refuses_a_second_marker<F: Fixture + HandwrittenMarkers>(fixture: F) {
    let effects = fixture.clone();
    let handler =
        async move |order: OrderPaid, conn: &mut Conn<F>| effects.effect(conn, &order.order_id).await;
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    inbox.process(envelope("a")).await.unwrap();
    let error = fixture.insert_marker_by_hand("h", b"\0a").await.unwrap_err();
    assert!(error.as_database_error().unwrap().is_unique_violation(), "{error}");
    // And the other way round: an existing row counts, whichever program wrote it.
    fixture.insert_marker_by_hand("h", b"\0b").await.unwrap();
    let report = inbox.process(envelope("b")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Duplicate)), "{report:?}");
    assert_eq!((fixture.effects("a").await, fixture.effects("b").await), (1, 0));
}

async fn the_id_is_recorded_before_the_work_and_with_it<F: Fixture>(fixture: F) {
    let (store, effects) = (fixture.store(), fixture.clone());
    let claims = Inbox::builder(store).build().await.unwrap();
    let handler = async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), oncebox::BoxError> {
        // On the handler's own connection the marker is there already: a second claim is refused.
        if claims.claim(conn, "h", "order.paid", &order.order_id).await? {
            return Err("the marker was not there when the work began".into());
        }
        effects.effect(conn, &order.order_id).await
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    let report = inbox.process(envelope("a")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{report:?}");
    assert_eq!(fixture.effects("a").await, 1);
}

async fn losers_of_the_race_step_aside<F: Fixture>(fixture: F) {
    let effects = fixture.clone();
    let handler =
        async move |order: OrderPaid, conn: &mut Conn<F>| effects.effect(conn, &order.order_id).await;
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    let racers = (0..8).map(|_| inbox.process(envelope("raced")));
    let reports = futures_util::future::join_all(racers).await;
    let done =
        reports.iter().filter(|report| matches!(report.as_ref().unwrap().outcome("h"), Some(Outcome::Done)));
    assert_eq!(done.count(), 1);
    assert!(reports.iter().all(|report| report.as_ref().unwrap().settlement() == oncebox::Settlement::Ack));
    assert_eq!(fixture.effects("raced").await, 1);
}
