//! One message per transaction in its shortest form: claim the key, do the work, commit; again after a deadlock.

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, try_join_all};
use sqlx::Pool;

use super::{Contender, HANDLER, SECOND_HANDLER, Tally, decode};
use crate::business::{BodyError, HandlerWork};
use crate::feed::Feed;
use crate::message::OrderPaid;
use crate::store::{DatabaseKind, Value};

const CLAIM: &str = "INSERT INTO claim (handler, message_key, processed_at) \
                     VALUES ($1, $2, CURRENT_TIMESTAMP) ON CONFLICT DO NOTHING";

pub(super) struct ClaimLoop<E: DatabaseKind> {
    pub(super) pool: Pool<E>,
    pub(super) work: HandlerWork,
}

impl<E: DatabaseKind> Contender for ClaimLoop<E> {
    fn deliver<'a>(&'a self, feed: &'a Feed) -> BoxFuture<'a, Result<Option<Tally>>> {
        async move {
            let Some(body) = feed.next() else { return Ok(None) };
            let paid = decode(&body)?;
            let handlers = [(HANDLER, Some(self.work)), (SECOND_HANDLER, self.work.of_second_handler())];
            let handlers = handlers.into_iter().filter_map(|(name, work)| Some((name, work?)));
            let all = try_join_all(handlers.map(|(name, work)| self.until_known(name, work, &paid))).await?;
            // The message is done if all its handlers are.
            Ok(all.into_iter().find(|tally| *tally != Tally::DONE).or(Some(Tally::DONE)))
        }
        .boxed()
    }
}

impl<E: DatabaseKind> ClaimLoop<E> {
    /// Repeats one handler's transaction until its outcome is known.
    async fn until_known(&self, handler: &str, work: HandlerWork, paid: &OrderPaid) -> Result<Tally> {
        loop {
            match self.once(handler, work, paid).await {
                Ok(tally) => return Ok(tally),
                Err(BodyError::Meant) => return Ok(Tally::FAILED),
                Err(BodyError::Database(error)) if is_worth_another_try(&error) => {}
                Err(BodyError::Database(error)) => return Err(error.into()),
            }
        }
    }

    async fn once(&self, handler: &str, work: HandlerWork, paid: &OrderPaid) -> Result<Tally, BodyError> {
        let key = paid.order_id.to_string();
        let mut tx = self.pool.begin_with(E::BEGIN).await?;
        if E::execute(&mut tx, CLAIM, &[Value::Text(handler), Value::Text(&key)]).await? == 0 {
            tx.rollback().await?;
            return Ok(Tally::DUPLICATE);
        }
        if let Err(trouble) = work.run::<E>(paid, &mut tx).await {
            tx.rollback().await?;
            return Err(trouble);
        }
        tx.commit().await?;
        Ok(Tally::DONE)
    }
}

// A deadlock, or no free connection because all transactions wait for each other.
fn is_worth_another_try(error: &sqlx::Error) -> bool {
    let is_deadlock = error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("40P01"));
    is_deadlock || matches!(error, sqlx::Error::PoolTimedOut)
}
