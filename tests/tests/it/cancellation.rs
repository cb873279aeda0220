//! Callers that go away at any await: nothing is split, nothing is poisoned.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use oncebox::{BoxError, Error, Inbox, Outcome, PostgresStore, SqliteStore};
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

/// A fixture whose pool can be used as an application would, besides the inbox.
trait OwnWrites: Fixture {
    /// Writes one row with no inbox around it, on the pool that the inbox uses.
    async fn write(&self, store: &Self::Store, name: &str);
}

impl OwnWrites for crate::sqlite::Sqlite {
    async fn write(&self, store: &SqliteStore, name: &str) {
        sqlx::query("insert into effect (name) values (?)").bind(name).execute(store.pool()).await.unwrap();
    }
}

impl OwnWrites for crate::postgres::Postgres {
    async fn write(&self, store: &PostgresStore, name: &str) {
        sqlx::query("insert into effect (name) values ($1)").bind(name).execute(store.pool()).await.unwrap();
    }
}

/// Lets go at the first await, at the second, and so on until a call comes through. Each time the next one who uses the
/// connection must find it clean: the application itself, whose row others see, and the next unit.
async fn whoever_comes_next_finds_it_clean<F: OwnWrites>(fixture: F, store: F::Store, rounds: usize) {
    let effects = fixture.clone();
    let handler = async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), BoxError> {
        tokio::task::yield_now().await;
        effects.effect(conn, &order.order_id).await?;
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        if order.order_id.starts_with("fails") { Err("on purpose".into()) } else { Ok(()) }
    };
    let inbox = Inbox::builder(store.clone()).on("h", handler).build().await.unwrap();
    inbox.process(envelope("duplicate")).await.unwrap();
    let effects = fixture.clone();
    let calls = ["succeeds", "fails", "duplicate", "once"];
    let mut gone = 0;
    for (round, call) in (0..rounds).flat_map(|round| calls.map(|call| (round, call))) {
        for polls in 1.. {
            let id = if call == "duplicate" { call.to_owned() } else { format!("{call}-{round}-{polls}") };
            let (inbox_of_call, effects, id_of_call) = (inbox.clone(), effects.clone(), id.clone());
            let future: Pin<Box<dyn Future<Output = ()> + Send>> = if call == "once" {
                Box::pin(async move {
                    let body = async |conn: &mut Conn<F>| -> Result<(), Error> {
                        effects
                            .effect(conn, &id_of_call)
                            .await
                            .map_err(|error| Error::unavailable("effect", error))?;
                        tokio::task::yield_now().await;
                        Ok(())
                    };
                    inbox_of_call.once("o", &id_of_call, body).await.map(drop).unwrap();
                })
            } else {
                Box::pin(async move { drop(inbox_of_call.process(envelope(&id_of_call)).await.unwrap()) })
            };
            let answered = GoAwayAfter { future, polls_left: polls }.await.is_some();

            let own = format!("own-{call}-{round}-{polls}");
            fixture.write(&store, &own).await;
            assert_eq!(
                fixture.effects(&own).await,
                1,
                "{call}, {polls} polls: the application's own row is lost"
            );
            let next = format!("next-{call}-{round}-{polls}");
            let report = inbox.process(envelope(&next)).await.unwrap();
            assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{call}, {polls} polls: {report:?}");
            assert_eq!(fixture.effects(&next).await, 1, "{call}, {polls} polls");
            assert!(fixture.effects(&id).await <= 1, "{call}, {polls} polls");
            if answered {
                break;
            }
            gone += 1;
        }
    }
    assert!(gone >= rounds * calls.len(), "the callers never went away: {gone}");
}

#[tokio::test]
async fn on_sqlite_with_a_single_connection() {
    let sqlite = crate::sqlite::in_memory("cancellation").await.unwrap();
    let store: SqliteStore = sqlite.store();
    whoever_comes_next_finds_it_clean(sqlite, store, 5).await;
}

#[tokio::test]
async fn on_postgres_with_a_single_connection() {
    let Some(postgres) = crate::postgres::as_owner("on_postgres_with_a_single_connection").await else {
        return;
    };
    let pool = PgPoolOptions::new().max_connections(1).connect(&postgres.database.url()).await.unwrap();
    whoever_comes_next_finds_it_clean(postgres, PostgresStore::new(pool), 10).await;
}
