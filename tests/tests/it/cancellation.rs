//! Callers that go away at any await: nothing is split, nothing is poisoned.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use oncebox::{BoxError, Error, Inbox, PostgresStore, SqliteStore};
use oncebox_testing::Fixture;
use sqlx::postgres::PgPoolOptions;

use crate::every_store::{Conn, OrderPaid, envelope, judged};

/// A caller's call; its answer is the outcome's name.
type Call = Pin<Box<dyn Future<Output = &'static str> + Send>>;

/// When a caller that has had its polls goes away.
#[derive(Clone, Copy, Debug)]
enum Goes {
    /// While what it waits for is still under way.
    AtOnce,
    /// When that is over, but before it has seen it.
    WhenWoken,
}

/// Polls a call this many times and then drops it.
struct GoAwayAfter {
    call: Call,
    polls_left: usize,
    goes: Goes,
}

impl Future for GoAwayAfter {
    type Output = Option<&'static str>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls_left == 0 {
            return Poll::Ready(None);
        }
        self.polls_left -= 1;
        match (self.call.as_mut().poll(cx), self.goes) {
            (Poll::Pending, Goes::AtOnce) if self.polls_left == 0 => Poll::Ready(None),
            (polled, _) => polled.map(Some),
        }
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

/// Lets go before the first await, at it, at the second, and so on until a call comes through, and then from the start
/// again. Each time the next one who uses the connection must find it clean: the application itself, whose row others
/// see, the next unit, and the same message when it is delivered again.
async fn whoever_comes_next_finds_it_clean<F: OwnWrites>(fixture: F, store: F::Store) {
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
    let mut names = vec![("duplicate".to_owned(), 1)];
    let (mut gone, mut most_polls) = (0, 0);
    for round in 0.. {
        if gone >= judged(1_000) {
            break;
        }
        let goes = if round % 2 == 0 { Goes::AtOnce } else { Goes::WhenWoken };
        for call in ["succeeds", "fails", "duplicate", "once"] {
            for polls in 0.. {
                let id =
                    if call == "duplicate" { call.to_owned() } else { format!("{call}-{round}-{polls}") };
                let at = format!("{call}, {polls} polls, goes {goes:?}");
                let call_then_go =
                    GoAwayAfter { call: calls(&fixture, &inbox, &id), polls_left: polls, goes };
                let answer = call_then_go.await;

                let own = format!("own-{call}-{round}-{polls}");
                fixture.write(&store, &own).await;
                assert_eq!(fixture.effects(&own).await, 1, "{at}: the application's own row is lost");
                let next = format!("next-{call}-{round}-{polls}");
                assert_eq!(calls(&fixture, &inbox, &next).await, "done", "{at}: the next unit");
                assert_eq!(fixture.effects(&next).await, 1, "{at}: the next unit");
                let before = fixture.effects(&id).await;
                let again = calls(&fixture, &inbox, &id).await;
                match (call, answer, before) {
                    ("fails", None | Some("retry"), 0) => assert_eq!(again, "retry", "{at}"),
                    ("duplicate", None | Some("duplicate"), 1) => assert_eq!(again, "duplicate", "{at}"),
                    ("succeeds" | "once", None | Some("done"), 1) => assert_eq!(again, "duplicate", "{at}"),
                    ("succeeds" | "once", None, 0) => assert_eq!(again, "done", "{at}"),
                    _ => panic!("{at}: answered {answer:?} with {before} effects"),
                }
                names.extend([(own, 1), (next, 1), (id, u64::from(call != "fails"))]);
                if answer.is_some() {
                    break;
                }
                gone += 1;
                most_polls = most_polls.max(polls);
            }
        }
    }
    // The handler alone has four awaits.
    assert!(most_polls >= 4, "the callers went away too early: {most_polls} polls");
    // Nothing was undone later, and nothing came late.
    for (name, effects) in names {
        assert_eq!(fixture.effects(&name).await, effects, "{name}");
    }
}

/// One call of an inbox: of its handler, or of `once` if the id says so.
fn calls<F: Fixture>(fixture: &F, inbox: &Inbox<F::Store>, id: &str) -> Call {
    let (effects, inbox, id) = (fixture.clone(), inbox.clone(), id.to_owned());
    if !id.starts_with("once") {
        return Box::pin(
            async move { inbox.process(envelope(&id)).await.unwrap().outcome("h").unwrap().name() },
        );
    }
    Box::pin(async move {
        let body = async |conn: &mut Conn<F>| -> Result<(), Error> {
            effects.effect(conn, &id).await.map_err(|error| Error::unavailable("effect", error))?;
            tokio::task::yield_now().await;
            Ok(())
        };
        if inbox.once("o", &id, body).await.unwrap().is_replayed() { "duplicate" } else { "done" }
    })
}

#[tokio::test]
async fn on_sqlite_with_a_single_connection() {
    let sqlite = crate::sqlite::in_memory("cancellation").await.unwrap();
    let store: SqliteStore = sqlite.store();
    assert_eq!(store.pool().options().get_max_connections(), 1);
    whoever_comes_next_finds_it_clean(sqlite, store).await;
}

#[tokio::test]
async fn on_postgres_with_a_single_connection() {
    let Some(postgres) = crate::postgres::as_owner("on_postgres_with_a_single_connection").await else {
        return;
    };
    let pool = PgPoolOptions::new().max_connections(1).connect(&postgres.database.url()).await.unwrap();
    whoever_comes_next_finds_it_clean(postgres, PostgresStore::new(pool)).await;
}
