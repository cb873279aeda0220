//! One message per transaction in its shortest form: claim the key, do the work, commit.

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::Pool;

use super::{Contender, HANDLER, Tally, decode, failed};
use crate::business::Work;
use crate::feed::Feed;
use crate::store::{Engine, Value};

const CLAIM: &str = "INSERT INTO claim (handler, message_key, processed_at) \
                     VALUES ($1, $2, CURRENT_TIMESTAMP) ON CONFLICT DO NOTHING";

pub(super) struct ClaimLoop<E: Engine> {
    pub(super) pool: Pool<E>,
    pub(super) work: Work,
}

impl<E: Engine> Contender for ClaimLoop<E> {
    fn deliver<'a>(&'a self, feed: &'a Feed) -> BoxFuture<'a, Result<Option<Tally>>> {
        async move {
            let Some(body) = feed.next() else { return Ok(None) };
            let paid = decode(&body)?;
            let key = paid.order_id.to_string();
            let mut tx = self.pool.begin_with(E::BEGIN).await?;
            if E::execute(&mut tx, CLAIM, &[Value::Text(HANDLER), Value::Text(&key)]).await? == 0 {
                tx.rollback().await?;
                return Ok(Some(Tally::DUPLICATE));
            }
            if let Err(trouble) = self.work.run::<E>(&paid, &mut tx).await {
                tx.rollback().await?;
                return failed(trouble).map(Some);
            }
            tx.commit().await?;
            Ok(Some(Tally::DONE))
        }
        .boxed()
    }
}
