//! The inbox of Vulthil: in one transaction ask for the marker, handle the message, write the marker.

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::Pool;

use super::{Contender, Tally, decode, failed, is_duplicate_key};
use crate::business::HandlerWork;
use crate::feed::Feed;
use crate::store::{DatabaseKind, Value};

const IS_PROCESSED: &str = "SELECT 1 FROM vulthil_message WHERE message_id = $1";
const MARK: &str = "INSERT INTO vulthil_message (message_id, processed_at) VALUES ($1, CURRENT_TIMESTAMP)";

/// Writes the rows that a processed message leaves.
pub(super) async fn remember<E: DatabaseKind>(conn: &mut E::Connection, body: &[u8]) -> Result<()> {
    let key = decode(body)?.order_id.to_string();
    E::execute(conn, MARK, &[Value::Text(&key)]).await?;
    Ok(())
}

pub(super) struct Vulthil<E: DatabaseKind> {
    pub(super) pool: Pool<E>,
    pub(super) work: HandlerWork,
}

impl<E: DatabaseKind> Contender for Vulthil<E> {
    fn deliver<'a>(&'a self, feed: &'a Feed) -> BoxFuture<'a, Result<Option<Tally>>> {
        async move {
            let Some(body) = feed.next() else { return Ok(None) };
            let paid = decode(&body)?;
            let key = paid.order_id.to_string();
            let marker = [Value::Text(&key)];
            let mut tx = self.pool.begin_with(E::BEGIN).await?;
            if E::exists(&mut tx, IS_PROCESSED, &marker).await? {
                tx.rollback().await?;
                return Ok(Some(Tally::DUPLICATE));
            }
            if let Err(trouble) = self.work.run::<E>(&paid, &mut tx).await {
                tx.rollback().await?;
                return failed(trouble).map(Some);
            }
            match E::execute(&mut tx, MARK, &marker).await {
                Ok(_) => {}
                // A copy at the same time was faster; this one is settled as a duplicate.
                Err(error) if is_duplicate_key(&error) => {
                    tx.rollback().await?;
                    return Ok(Some(Tally::DUPLICATE));
                }
                Err(error) => return Err(error.into()),
            }
            tx.commit().await?;
            Ok(Some(Tally::DONE))
        }
        .boxed()
    }
}
