//! No inbox: the naive consumer, one insert and with it one commit.

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::Pool;

use super::{Contender, Tally, decode, failed};
use crate::business::HandlerWork;
use crate::feed::Feed;
use crate::store::DatabaseKind;

pub(super) struct Bare<E: DatabaseKind> {
    pub(super) pool: Pool<E>,
    pub(super) work: HandlerWork,
}

impl<E: DatabaseKind> Contender for Bare<E> {
    fn deliver<'a>(&'a self, feed: &'a Feed) -> BoxFuture<'a, Result<Option<Tally>>> {
        async move {
            let Some(body) = feed.next() else { return Ok(None) };
            let paid = decode(&body)?;
            let mut conn = self.pool.acquire().await?;
            Ok(Some(match self.work.run::<E>(&paid, &mut conn).await {
                Ok(()) => Tally::DONE,
                Err(trouble) => failed(trouble)?,
            }))
        }
        .boxed()
    }
}
