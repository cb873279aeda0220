//! No inbox, and a hundred messages with one insert: the maximum rate of the database.

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::Pool;

use super::{Contender, Tally, decode};
use crate::feed::Feed;
use crate::store::DatabaseKind;

const ROWS: usize = 100;

pub(super) struct Bulk<E: DatabaseKind> {
    pub(super) pool: Pool<E>,
}

impl<E: DatabaseKind> Contender for Bulk<E> {
    fn deliver<'a>(&'a self, feed: &'a Feed) -> BoxFuture<'a, Result<Option<Tally>>> {
        async move {
            let mut orders = Vec::with_capacity(ROWS);
            while orders.len() < ROWS
                && let Some(body) = feed.next()
            {
                orders.push(decode(&body)?);
            }
            if orders.is_empty() {
                return Ok(None);
            }
            let mut conn = self.pool.acquire().await?;
            E::insert_many(&mut conn, &orders).await?;
            Ok(Some(Tally { done: orders.len() as u64, ..Tally::default() }))
        }
        .boxed()
    }
}
