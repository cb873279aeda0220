//! The inbox of Modulus: save the event, ask whether this handler had it, handle it, record the consumer. Each
//! is a statement, and a transaction, of its own.

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::Pool;

use super::{Contender, HANDLER, Tally, decode, failed, is_duplicate_key};
use crate::business::HandlerWork;
use crate::feed::Feed;
use crate::store::{DatabaseKind, Value};

const TYPE: &str = "Shop.Orders.OrderPaid, Shop.Orders";

// A copy that was saved before is ignored.
const SAVE: &str = "INSERT INTO modulus_message (id, type, content, occurred_on_utc) \
                    VALUES ($1, $2, $3, CURRENT_TIMESTAMP) ON CONFLICT DO NOTHING";
const HAS_BEEN_PROCESSED: &str = "SELECT 1 FROM modulus_consumer WHERE inbox_message_id = $1 AND name = $2";
const RECORD_CONSUMER: &str = "INSERT INTO modulus_consumer (inbox_message_id, name) VALUES ($1, $2)";

/// Writes the rows that a processed message leaves.
pub(super) async fn remember<E: DatabaseKind>(conn: &mut E::Connection, body: &[u8]) -> Result<()> {
    let id = Value::Uuid(decode(body)?.order_id);
    E::execute(conn, SAVE, &[id, Value::Text(TYPE), Value::Text(std::str::from_utf8(body)?)]).await?;
    E::execute(conn, RECORD_CONSUMER, &[id, Value::Text(HANDLER)]).await?;
    Ok(())
}

pub(super) struct Modulus<E: DatabaseKind> {
    pub(super) pool: Pool<E>,
    pub(super) work: HandlerWork,
}

impl<E: DatabaseKind> Contender for Modulus<E> {
    fn deliver<'a>(&'a self, feed: &'a Feed) -> BoxFuture<'a, Result<Option<Tally>>> {
        async move {
            let Some(body) = feed.next() else { return Ok(None) };
            let paid = decode(&body)?;
            let content = std::str::from_utf8(&body)?;
            let consumer = [Value::Uuid(paid.order_id), Value::Text(HANDLER)];
            let mut conn = self.pool.acquire().await?;
            let event = [Value::Uuid(paid.order_id), Value::Text(TYPE), Value::Text(content)];
            E::execute(&mut conn, SAVE, &event).await?;
            if E::exists(&mut conn, HAS_BEEN_PROCESSED, &consumer).await? {
                return Ok(Some(Tally::DUPLICATE));
            }
            if let Err(trouble) = self.work.run::<E>(&paid, &mut conn).await {
                return failed(trouble).map(Some);
            }
            match E::execute(&mut conn, RECORD_CONSUMER, &consumer).await {
                // A copy at the same time was faster; both have run.
                Err(error) if !is_duplicate_key(&error) => Err(error.into()),
                _ => Ok(Some(Tally::DONE)),
            }
        }
        .boxed()
    }
}
