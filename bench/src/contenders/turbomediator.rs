//! The inbox of TurboMediator: ask whether the key was processed, handle the message, record it. Each is a
//! statement, and a transaction, of its own.

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::Pool;

use super::{Contender, HANDLER, Tally, decode, failed, is_duplicate_key};
use crate::business::HandlerWork;
use crate::feed::Feed;
use crate::store::{DatabaseKind, Value};

const TYPE: &str = "Shop.Orders.OrderPaid";

const HAS_BEEN_PROCESSED: &str =
    "SELECT 1 FROM turbomediator_message WHERE message_id = $1 AND handler_type = $2";
const RECORD: &str = "INSERT INTO turbomediator_message \
                      (message_id, handler_type, message_type, received_at, processed_at) \
                      VALUES ($1, $2, $3, CURRENT_TIMESTAMP, CURRENT_TIMESTAMP)";

/// Writes the rows that a processed message leaves.
pub(super) async fn remember<E: DatabaseKind>(conn: &mut E::Connection, body: &[u8]) -> Result<()> {
    let key = decode(body)?.order_id.to_string();
    E::execute(conn, RECORD, &[Value::Text(&key), Value::Text(HANDLER), Value::Text(TYPE)]).await?;
    Ok(())
}

pub(super) struct TurboMediator<E: DatabaseKind> {
    pub(super) pool: Pool<E>,
    pub(super) work: HandlerWork,
}

impl<E: DatabaseKind> Contender for TurboMediator<E> {
    fn deliver<'a>(&'a self, feed: &'a Feed) -> BoxFuture<'a, Result<Option<Tally>>> {
        async move {
            let Some(body) = feed.next() else { return Ok(None) };
            let paid = decode(&body)?;
            let key = paid.order_id.to_string();
            let record = [Value::Text(&key), Value::Text(HANDLER), Value::Text(TYPE)];
            let mut conn = self.pool.acquire().await?;
            if E::exists(&mut conn, HAS_BEEN_PROCESSED, &record[..2]).await? {
                return Ok(Some(Tally::DUPLICATE));
            }
            if let Err(trouble) = self.work.run::<E>(&paid, &mut conn).await {
                return failed(trouble).map(Some);
            }
            match E::execute(&mut conn, RECORD, &record).await {
                // For a copy, the original logs a warning and continues. Other errors would spoil the figures.
                Err(error) if !is_duplicate_key(&error) => Err(error.into()),
                _ => Ok(Some(Tally::DONE)),
            }
        }
        .boxed()
    }
}
