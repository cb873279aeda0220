//! Business transactions: each writes a row, and publishes or does not.

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use oncebox::Outbox;
use sqlx::Pool;

use super::engine::OutboxDatabaseKind;
use crate::contenders::{Contender, Tally, decode};
use crate::feed::Feed;
use crate::store::Value;

const INSERT_BUSINESS_ROW: &str =
    "INSERT INTO placed (order_id, customer, cents, note) VALUES ($1, $2, $3, $4)";
const INSERT_POLLED: &str = "INSERT INTO polled_outbox (content) VALUES ($1)";

/// How a business transaction publishes.
pub(super) enum Publishes<E: OutboxDatabaseKind> {
    Nothing,
    ThroughOutbox(Outbox<E::Store>),
    /// Into a table that is polled.
    IntoTable,
}

/// Runs a business transaction for each delivery.
pub(super) struct Publisher<E: OutboxDatabaseKind> {
    pub(super) pool: Pool<E>,
    pub(super) publishes: Publishes<E>,
}

impl<E: OutboxDatabaseKind> Contender for Publisher<E> {
    fn deliver<'a>(&'a self, feed: &'a Feed) -> BoxFuture<'a, Result<Option<Tally>>> {
        async move {
            let Some(body) = feed.next() else { return Ok(None) };
            let paid = decode(&body)?;
            let mut tx = self.pool.begin_with(E::BEGIN).await?;
            let row = [
                Value::Uuid(paid.order_id),
                Value::Text(&paid.customer),
                Value::Int(paid.cents),
                Value::Text(&paid.note),
            ];
            E::execute(&mut tx, INSERT_BUSINESS_ROW, &row).await?;
            match &self.publishes {
                Publishes::Nothing => {}
                Publishes::ThroughOutbox(outbox) => {
                    E::publish(outbox, &mut tx, std::slice::from_ref(&paid)).await?;
                }
                Publishes::IntoTable => {
                    E::execute(&mut tx, INSERT_POLLED, &[Value::Text(std::str::from_utf8(&body)?)]).await?;
                }
            }
            tx.commit().await?;
            if let Publishes::ThroughOutbox(outbox) = &self.publishes {
                outbox.wake();
            }
            Ok(Some(Tally::DONE))
        }
        .boxed()
    }
}

/// Makes the tables of business transactions.
pub(crate) async fn make_tables<E: OutboxDatabaseKind>(pool: &Pool<E>) -> Result<()> {
    let mut conn = pool.acquire().await?;
    for statement in E::TABLES {
        E::execute(&mut conn, statement, &[]).await?;
    }
    Ok(())
}
