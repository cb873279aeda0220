//! Milan Jovanović's inbox: the consumer inserts, the processor takes a thousand messages, dispatches each,
//! and marks all with one update.
//!
//! His handlers have a connection and a transaction of their own. Beside that there is a variant, to his advantage, in
//! which they write on the processor's; with one writer it is the only one.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::Pool;

use super::workers::work;
use super::{Keeper, chunks};
use crate::contenders::decode;
use crate::store::Value;
use crate::stored::engine::StoredDatabaseKind;
use crate::stored::ledger::write;
use crate::stored::meter::Meter;

/// The type that his inbox stores with a message.
pub(crate) const TYPE: &str = "Shop.Orders.OrderPaidIntegrationEvent";

const BATCH: i64 = 1_000;

pub(crate) struct Milan<E: StoredDatabaseKind> {
    pub(crate) consumers: Pool<E>,
    pub(crate) processors: Pool<E>,
    pub(crate) workers: usize,
    /// Whether handlers write in the processor's transaction.
    pub(crate) in_tx: bool,
    pub(crate) meter: Arc<Meter>,
}

impl<E: StoredDatabaseKind> Keeper for Milan<E> {
    fn accept(&self, body: Vec<u8>) -> BoxFuture<'_, Result<()>> {
        async move {
            let id = decode(&body)?.order_id;
            let values = [Value::Uuid(id), Value::Text(TYPE), Value::Text(std::str::from_utf8(&body)?)];
            let mut conn = self.consumers.acquire().await?;
            E::execute(&mut conn, E::MILAN_SAVE, &values).await?;
            Ok(())
        }
        .boxed()
    }

    fn fill(&self, numbers: Range<u64>) -> BoxFuture<'_, Result<()>> {
        async move {
            for chunk in chunks(numbers) {
                let mut conn = self.consumers.acquire().await?;
                E::milan_fill(&mut conn, chunk).await?;
            }
            Ok(())
        }
        .boxed()
    }

    fn work(&self) -> BoxFuture<'_, Result<u64>> {
        let (pool, in_tx) = (self.processors.clone(), self.in_tx || E::ONE_WRITER);
        work(self.workers, &self.meter, move || process(pool.clone(), in_tx)).boxed()
    }

    fn waiting(&self) -> BoxFuture<'_, Result<u64>> {
        async move {
            let mut conn = self.consumers.acquire().await?;
            let count = "SELECT count(*) FROM inbox_messages WHERE processed_on_utc IS NULL";
            Ok(u64::try_from(E::number(&mut conn, count.into()).await?)?)
        }
        .boxed()
    }
}

async fn process<E: StoredDatabaseKind>(pool: Pool<E>, in_tx: bool) -> Result<u64> {
    let mut tx = pool.begin_with(E::BEGIN).await?;
    let messages = E::milan_take(&mut tx, BATCH).await?;
    let mut ids = Vec::with_capacity(messages.len());
    for (id, content) in messages {
        let paid = decode(content.as_bytes())?;
        match in_tx {
            true => write::<E>(0, &paid, &mut tx).await?,
            false => write::<E>(0, &paid, &mut *pool.acquire().await?).await?,
        }
        ids.push(id);
    }
    if !ids.is_empty() {
        E::milan_mark(&mut tx, &ids).await?;
    }
    tx.commit().await?;
    Ok(ids.len() as u64)
}
