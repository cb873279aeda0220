//! Callers that go away at any await: nothing is split, nothing is poisoned.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use oncebox::{BoxError, Inbox, Outcome, PostgresStore, SqliteStore};
use oncebox_testing::Fixture;
use sqlx::postgres::PgPoolOptions;

use crate::every_store::{Conn, OrderPaid, envelope};

/// Polls a future so many times and then lets go of it.
struct GoAwayAfter<T> {
    future: Pin<Box<dyn Future<Output = T> + Send>>,
    polls_left: usize,
}

impl<T> Future for GoAwayAfter<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if self.polls_left == 0 {
            return Poll::Ready(None);
        }
        self.polls_left -= 1;
        self.future.as_mut().poll(cx).map(Some)
    }
}

/// Lets go at the first await, at the second, and so on until a call comes through; each time the next unit must find
/// everything clean.
async fn the_next_unit_is_clean<F: Fixture>(fixture: F, store: F::Store, rounds: usize) {
    let handler = {
        let fixture = fixture.clone();
        async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), BoxError> {
            tokio::task::yield_now().await;
            fixture.effect(conn, &order.order_id).await?;
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            Ok(())
        }
    };
    let inbox = Inbox::builder(store).on("h", handler).build().await.unwrap();
    let mut gone = 0;
    for round in 0..rounds {
        for polls in 1.. {
            let id = format!("left-{round}-{polls}");
            let call = inbox.clone();
            let future = {
                let id = id.clone();
                async move { call.process(envelope(&id)).await }
            };
            let answer = GoAwayAfter { future: Box::pin(future), polls_left: polls }.await;
            let report = inbox.process(envelope(&id)).await.unwrap();
            let settled = matches!(report.outcome("h"), Some(Outcome::Done | Outcome::Duplicate));
            assert!(settled, "after {polls} polls: {report:?}");
            assert_eq!(fixture.effects(&id).await, 1, "after {polls} polls");
            if answer.is_some() {
                break;
            }
            gone += 1;
        }
    }
    assert!(gone >= rounds * 3, "the callers never went away: {gone}");
}

#[tokio::test]
async fn on_sqlite_with_a_single_connection() {
    let sqlite = crate::sqlite::in_memory("cancellation").await.unwrap();
    let store: SqliteStore = sqlite.store();
    the_next_unit_is_clean(sqlite, store, 20).await;
}

#[tokio::test]
async fn on_postgres_with_a_single_connection() {
    let Some(postgres) = crate::postgres::as_owner("on_postgres_with_a_single_connection").await else {
        return;
    };
    let pool = PgPoolOptions::new().max_connections(1).connect(&postgres.database.url()).await.unwrap();
    the_next_unit_is_clean(postgres, PostgresStore::new(pool), 20).await;
}
