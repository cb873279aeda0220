//! A queue in a table, made well: a row for each message and handler, taken out in batches in the
//! transaction of the handlers' writes. It does not deduplicate, to its advantage.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::Pool;

use super::workers::work;
use super::{Keeper, chunks};
use crate::contenders::decode;
use crate::message::OrderPaid;
use crate::store::Value;
use crate::stored::engine::StoredDatabaseKind;
use crate::stored::ledger::write;
use crate::stored::meter::Meter;

const BATCH: i64 = 100;
const BATCH_OF_SETS: i64 = 500;
const SAVE: &str = "INSERT INTO row_queue (handler, body) VALUES (0, $1)";

pub(crate) struct RowQueue<E: StoredDatabaseKind> {
    pub(crate) callers: Pool<E>,
    pub(crate) consumers: Pool<E>,
    pub(crate) workers: usize,
    pub(crate) handlers: usize,
    /// Whether handlers write a batch with one statement.
    pub(crate) sets: bool,
    pub(crate) meter: Arc<Meter>,
}

impl<E: StoredDatabaseKind> Keeper for RowQueue<E> {
    fn accept(&self, body: Vec<u8>) -> BoxFuture<'_, Result<()>> {
        async move {
            let mut conn = self.callers.acquire().await?;
            E::execute(&mut conn, SAVE, &[Value::Text(std::str::from_utf8(&body)?)]).await?;
            Ok(())
        }
        .boxed()
    }

    fn fill(&self, numbers: Range<u64>) -> BoxFuture<'_, Result<()>> {
        async move {
            for chunk in chunks(numbers) {
                let mut conn = self.callers.acquire().await?;
                E::queue_fill(&mut conn, chunk, self.handlers).await?;
            }
            Ok(())
        }
        .boxed()
    }

    fn work(&self) -> BoxFuture<'_, Result<u64>> {
        let pool = self.consumers.clone();
        match self.sets {
            true => work(self.workers, &self.meter, move || consume_sets(pool.clone())).boxed(),
            false => work(self.workers, &self.meter, move || consume(pool.clone())).boxed(),
        }
    }

    fn waiting(&self) -> BoxFuture<'_, Result<u64>> {
        async move {
            let mut conn = self.callers.acquire().await?;
            let rows = E::number(&mut conn, "SELECT count(*) FROM row_queue".into()).await?;
            Ok(u64::try_from(rows)? / self.handlers as u64)
        }
        .boxed()
    }
}

async fn consume<E: StoredDatabaseKind>(pool: Pool<E>) -> Result<u64> {
    let mut tx = pool.begin_with(E::BEGIN).await?;
    let rows = E::queue_take(&mut tx, BATCH).await?;
    for row in &rows {
        let paid = decode(row.body.as_bytes())?;
        write::<E>(row.handler, &paid, &mut tx).await?;
    }
    tx.commit().await?;
    Ok(rows.len() as u64)
}

async fn consume_sets<E: StoredDatabaseKind>(pool: Pool<E>) -> Result<u64> {
    let mut tx = pool.begin_with(E::BEGIN).await?;
    let rows = E::queue_take(&mut tx, BATCH_OF_SETS).await?;
    let mut sets: BTreeMap<usize, Vec<OrderPaid>> = BTreeMap::new();
    for row in &rows {
        sets.entry(row.handler).or_default().push(decode(row.body.as_bytes())?);
    }
    for (handler, orders) in &sets {
        E::write_many(&mut tx, *handler, orders).await?;
    }
    tx.commit().await?;
    Ok(rows.len() as u64)
}
