//! The work of handlers, the same for every contender.

use std::time::Duration;

use oncebox::Failure;

use crate::message::{OrderPaid, scatter};
use crate::store::{DatabaseKind, Value};

const INSERT: &str = "INSERT INTO ledger (order_id, customer, cents, note) VALUES ($1, $2, $3, $4)";
const UPDATE: &str = "UPDATE account SET cents = cents + $2 WHERE id = $1";
const COUNT: &str = "UPDATE crossing SET updates = updates + 1 WHERE id = $1";

const SLOW: Duration = Duration::from_millis(20);
const HOT_ROWS: u64 = 10;
const ONE_IN_FAILS: u64 = 20;

/// A handler's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandlerWork {
    /// One insert.
    Insert,
    /// An update of one of ten rows.
    HotRow,
    /// Updates of two rows out of this many. A second handler updates the same two in opposite order.
    Crossing { rows: u64, backwards: bool },
    /// One insert, and then 5 % fail.
    Failing,
    /// 20 ms of waiting, then one insert.
    Slow,
}

/// The reason why a handler failed.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// The scenario wants it to fail.
    Meant,
    Database(sqlx::Error),
}

impl From<sqlx::Error> for BodyError {
    fn from(error: sqlx::Error) -> BodyError {
        BodyError::Database(error)
    }
}

impl From<BodyError> for Failure {
    fn from(trouble: BodyError) -> Failure {
        match trouble {
            BodyError::Meant => "one in twenty fails".into(),
            BodyError::Database(error) => error.into(),
        }
    }
}

impl HandlerWork {
    /// Does the work for one message.
    pub(crate) async fn run<E: DatabaseKind>(
        self,
        paid: &OrderPaid,
        conn: &mut E::Connection,
    ) -> Result<(), BodyError> {
        match self {
            HandlerWork::Insert => insert::<E>(paid, conn).await?,
            HandlerWork::HotRow => {
                let row = i64::try_from(chance(paid) % HOT_ROWS).unwrap_or_default();
                E::execute(conn, UPDATE, &[Value::Int(row), Value::Int(paid.cents)]).await?;
            }
            HandlerWork::Crossing { rows, backwards } => {
                let (first, second) = two_rows(paid, rows);
                for row in if backwards { [second, first] } else { [first, second] } {
                    E::execute(conn, COUNT, &[Value::Int(row)]).await?;
                }
            }
            HandlerWork::Failing => {
                insert::<E>(paid, conn).await?;
                // After the insert, so that a failure has a write to undo.
                if chance(paid).is_multiple_of(ONE_IN_FAILS) {
                    return Err(BodyError::Meant);
                }
            }
            HandlerWork::Slow => {
                tokio::time::sleep(SLOW).await;
                insert::<E>(paid, conn).await?;
            }
        }
        Ok(())
    }

    /// Whether each message that succeeds leaves a row in the ledger.
    pub(crate) fn fills_the_ledger(self) -> bool {
        !matches!(self, HandlerWork::HotRow | HandlerWork::Crossing { .. })
    }

    /// The work of a second handler of the same message, if there is one.
    pub(crate) fn of_second_handler(self) -> Option<HandlerWork> {
        match self {
            HandlerWork::Crossing { rows, backwards } => {
                Some(HandlerWork::Crossing { rows, backwards: !backwards })
            }
            _ => None,
        }
    }
}

async fn insert<E: DatabaseKind>(paid: &OrderPaid, conn: &mut E::Connection) -> Result<(), sqlx::Error> {
    let values = [
        Value::Uuid(paid.order_id),
        Value::Text(&paid.customer),
        Value::Int(paid.cents),
        Value::Text(&paid.note),
    ];
    E::execute(conn, INSERT, &values).await.map(drop)
}

// Two different rows out of this many.
fn two_rows(paid: &OrderPaid, rows: u64) -> (i64, i64) {
    let (first, further) = paid.order_id.as_u64_pair();
    let first = scatter(first) % rows;
    // The distance is 1 to rows - 1, so the second row is never the first again.
    let second = (first + 1 + scatter(further) % (rows - 1)) % rows;
    (first.cast_signed(), second.cast_signed())
}

// A number that looks random, and is the same for each contender.
fn chance(paid: &OrderPaid) -> u64 {
    scatter(paid.order_id.as_u64_pair().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_about_two_different_rows() {
        for rows in [2, 20, 1_000] {
            for number in 0..1_000 {
                let (first, second) = two_rows(&OrderPaid::numbered(number), rows);
                assert_ne!(first, second);
                assert!([first, second].iter().all(|row| (0..rows.cast_signed()).contains(row)), "{rows}");
            }
        }
    }
}
