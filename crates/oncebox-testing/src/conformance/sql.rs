//! Handlers that are lent a connection of an SQL database, and what they do to its transaction.

use std::future::Future;

use oncebox_core::store::Store;
use oncebox_core::{BoxError, Envelope, Inbox, Outcome, Rejection};

use crate::conformance::{Fixture, Sample};

type Conn<F> = <<F as Fixture>::Store as Store>::Conn;

/// Stands for the statement that writes one effect, among the statements of a [`SqlFixture`].
pub const EFFECT: &str = "(effect)";

/// Statements that end a handler's transaction behind the inbox's back. The handler swallows every error.
#[derive(Clone, Copy, Debug)]
pub struct HostileStatements {
    /// One after the other.
    pub statements: &'static [&'static str],
    /// The handler would do the same at the next attempt: the message must be rejected. Otherwise a retry will do too.
    pub is_rejected: bool,
}

/// How a handler ends a transaction of its own within the inbox's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NestedEnd {
    /// It commits.
    Commit,
    /// It rolls back.
    Rollback,
    /// It drops the transaction.
    Drop,
    /// A statement fails, and it drops the transaction.
    Fail,
    /// It never ends it.
    Forget,
}

/// A store that lends connections of an SQL database.
pub trait SqlFixture: Fixture {
    /// Statements that must not leave half an effect. May create tables for them.
    fn hostile(&self) -> impl Future<Output = Vec<HostileStatements>> + Send;

    /// Statements, with a failing one among them, that leave one effect.
    const HARMLESS: &'static [&'static str];

    /// Runs a statement on the connection that a handler was lent.
    fn execute(conn: &mut Conn<Self>, statement: &'static str) -> impl Future<Output = ()> + Send;

    /// Begins a transaction on the connection that a handler was lent, writes an effect `a` and ends it.
    fn nest(
        &self,
        conn: &mut Conn<Self>,
        end: NestedEnd,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Writes outside of the inbox through the pool that it uses, more often than the pool has connections.
    fn use_pool(&self) -> impl Future<Output = ()> + Send;
}

/// Runs a handler that sends these statements one by one and swallows every error; its outcome, effects and markers.
async fn swallowing<F: SqlFixture>(
    fixture: &F,
    id: &str,
    statements: &'static [&'static str],
) -> (Outcome, u64, usize) {
    let effects = fixture.clone();
    let handler = async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
        for statement in statements {
            if *statement == EFFECT {
                // Ignored on purpose: this handler swallows every error.
                let _ = effects.effect(conn, &sample.id).await;
            } else {
                F::execute(conn, statement).await;
            }
        }
        Ok(())
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    let report = inbox.process(Envelope::of(&Sample::new(id)).unwrap()).await.unwrap();
    let markers = inbox.markers(id).await.unwrap().len();
    // Whatever the handler did, the pool's connections are as they were.
    fixture.use_pool().await;
    (report.outcome("h").unwrap().clone(), fixture.effects(id).await, markers)
}

/// A handler may end its transaction, by a statement or by an error that it swallows.
pub async fn whatever_a_handler_does_to_its_transaction_there_is_no_half_effect<F: SqlFixture>(fixture: F) {
    for HostileStatements { statements, is_rejected } in fixture.hostile().await {
        let (outcome, effects, markers) = swallowing(&fixture, "a", statements).await;
        let has_ended = match outcome {
            Outcome::Rejected(Rejection::EndedTransaction(_)) => true,
            Outcome::Retry { .. } => !is_rejected,
            _ => false,
        };
        assert!(has_ended, "{statements:?}: {outcome:?}");
        assert_eq!((effects, markers), (0, 0), "{statements:?}");
    }
    let (outcome, effects, markers) = swallowing(&fixture, "a", F::HARMLESS).await;
    assert!(matches!(outcome, Outcome::Done), "{outcome:?}");
    assert_eq!((effects, markers), (1, 1));
}

/// A nested transaction that is never ended makes the message a rejected one: it is unclear what of it counts.
pub async fn nested_transactions_are_savepoints<F: SqlFixture>(fixture: F) {
    let effects = fixture.clone();
    let handler = async move |_: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
        for end in [NestedEnd::Commit, NestedEnd::Rollback, NestedEnd::Drop, NestedEnd::Fail] {
            effects.nest(conn, end).await?;
        }
        Ok(())
    };
    let effects = fixture.clone();
    let forgets = async move |_: Sample, conn: &mut Conn<F>| effects.nest(conn, NestedEnd::Forget).await;
    let builder = Inbox::builder(fixture.store());
    let inbox = builder.on("h", handler).on("forgets", forgets).build().await.unwrap();
    let report = inbox.process(Envelope::of(&Sample::new("n")).unwrap()).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{report:?}");
    assert!(matches!(report.outcome("forgets"), Some(Outcome::Rejected(_))), "{report:?}");
    assert_eq!(fixture.effects("a").await, 1);
}
