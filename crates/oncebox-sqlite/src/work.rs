//! Handing out the messages of the log, and keeping what became of them.
//!
//! A write transaction is the lock on every lane: SQLite has one writer.

use std::convert::Infallible;
use std::sync::LazyLock;

use oncebox_core::store::{
    Batch, HandlerId, Look, Progress, Settled, StoredMessage, TakeLimits, Taker, Waiting, Work,
};
use oncebox_core::{Error, Key};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use crate::fault::failed;
use crate::json::to_json;
use crate::many::Many;
use crate::message::read_message;
use crate::store::SqliteStore;
use crate::time::{as_ms, duration};
use crate::transaction::SqliteTx;

static SET_APART: LazyLock<Many> = LazyLock::new(|| Many::new(include_str!("sql/set_apart.sql")));
static BURY: LazyLock<Many> = LazyLock::new(|| Many::new(include_str!("sql/bury.sql")));

impl Work for SqliteStore {
    async fn look(&self, handlers: &[HandlerId]) -> Result<Look, Error> {
        let ids = to_json(handlers.iter().map(|handler| handler.0));
        let rows = sqlx::query(include_str!("sql/look.sql"))
            .bind(ids.map_err(failed("look for work"))?)
            .bind(self.clock_offset_ms())
            .fetch_all(&self.pool)
            .await;
        rows.and_then(|rows| read_look(&rows)).map_err(failed("look for work"))
    }

    async fn take(
        &self,
        tx: &mut SqliteTx,
        taker: Taker<'_>,
        limits: TakeLimits,
    ) -> Result<Option<Batch>, Error> {
        let batch = take(tx.connection(), taker, limits, self.clock_offset_ms()).await;
        let batch = batch.map_err(failed("take messages"))?;
        if batch.is_some() {
            tx.arm();
        }
        Ok(batch)
    }

    async fn take_tasks(
        &self,
        tx: &mut SqliteTx,
        taker: Taker<'_>,
        limit: u32,
    ) -> Result<Option<Vec<StoredMessage>>, Error> {
        let tasks = take_tasks(tx.connection(), taker, limit, self.clock_offset_ms()).await;
        let tasks = tasks.map_err(failed("take tasks"))?;
        if tasks.is_some() {
            tx.arm();
        }
        Ok(tasks)
    }

    async fn settle(&self, tx: &mut SqliteTx, taker: Taker<'_>, settled: &Settled) -> Result<(), Error> {
        let offset_ms = self.clock_offset_ms();
        let (handler, lane) = (taker.handler.0, taker.lane);
        let apart = SET_APART.run(tx.connection(), &settled.apart, |insert, one| {
            insert
                .bind(offset_ms)
                .bind(handler)
                .bind(lane)
                .bind(one.pos)
                .bind(one.order_by.as_ref().map(Key::as_bytes))
                .bind(one.failures)
                .bind(as_ms(one.due_in))
                .bind(one.error.as_deref())
                .bind(one.attempts.as_deref())
                .bind(one.body.as_deref())
        });
        apart.await.map_err(failed("set messages apart"))?;
        let dead = BURY.run(tx.connection(), &settled.dead, |insert, one| {
            insert
                .bind(offset_ms)
                .bind(handler)
                .bind(lane)
                .bind(one.pos)
                .bind(one.order_by.as_ref().map(Key::as_bytes))
                .bind(one.failures)
                .bind(one.error.as_deref())
                .bind(one.attempts.as_deref())
                .bind(one.body.as_deref())
        });
        dead.await.map_err(failed("keep dead letters"))?;
        Ok(())
    }

    async fn finish(
        &self,
        mut tx: SqliteTx,
        progress: Option<Progress>,
    ) -> Result<Option<Infallible>, Error> {
        // First the proof: what is written in a transaction of the handler's own would stay without its
        // effects.
        tx.guard_if_armed().await?;
        if let Some(progress) = progress {
            sqlx::query(include_str!("sql/advance.sql"))
                .bind(progress.handler.0)
                .bind(progress.lane)
                .bind(progress.epoch)
                .bind(progress.pos)
                .bind(self.clock_offset_ms())
                .execute(tx.connection())
                .await
                .map_err(failed("keep the progress"))?;
        }
        tx.commit().await.map(|()| None)
    }
}

fn read_look(rows: &[SqliteRow]) -> Result<Look, sqlx::Error> {
    let mut look = Look::default();
    for row in rows {
        match row.try_get::<Option<i32>, _>(0)? {
            Some(handler) => look.waiting.push(Waiting {
                handler: HandlerId(handler),
                lane: row.try_get(1)?,
                messages: row.try_get(2)?,
                tasks: row.try_get(3)?,
            }),
            None => look.next_due = row.try_get::<Option<i64>, _>(4)?.map(duration),
        }
    }
    Ok(look)
}

/// Epoch, position and the lane's newest one; `None` if the handler is gone.
async fn find_progress(
    conn: &mut SqliteConnection,
    taker: Taker<'_>,
) -> Result<Option<(i32, i64, i64)>, sqlx::Error> {
    sqlx::query_as(include_str!("sql/find_progress.sql"))
        .bind(taker.handler.0)
        .bind(taker.lane)
        .bind(to_json(taker.kinds.iter().map(String::as_str))?)
        .fetch_optional(conn)
        .await
}

async fn take(
    conn: &mut SqliteConnection,
    taker: Taker<'_>,
    limits: TakeLimits,
    offset_ms: i64,
) -> Result<Option<Batch>, sqlx::Error> {
    let Some((epoch, from, newest)) = find_progress(&mut *conn, taker).await? else { return Ok(None) };
    let head = newest.max(from);
    let looked = head.min(from.saturating_add(i64::from(limits.positions)));
    let rows = sqlx::query(include_str!("sql/take.sql"))
        .bind(taker.lane)
        .bind(from)
        .bind(looked)
        .bind(to_json(taker.kinds.iter().map(String::as_str))?)
        .bind(limits.messages)
        .bind(i64::try_from(limits.bytes).unwrap_or(i64::MAX))
        .bind(offset_ms)
        .fetch_all(conn)
        .await?;
    let mut messages = rows.iter().map(read_message).collect::<Result<Vec<_>, _>>()?;
    messages.sort_unstable_by_key(|message| message.place.pos);
    let found: u64 = rows.first().map_or(Ok(0), |row| row.try_get(15))?;
    // Where a limit ended the batch there may be more behind its last message; else there is nothing more
    // that far.
    let is_cut = messages.len() as u64 >= u64::from(limits.messages) || (messages.len() as u64) < found;
    let last = messages.last().map_or(from, |message| message.place.pos);
    Ok(Some(Batch { epoch, from, reached: if is_cut { last } else { looked }, head, messages }))
}

async fn take_tasks(
    conn: &mut SqliteConnection,
    taker: Taker<'_>,
    limit: u32,
    offset_ms: i64,
) -> Result<Option<Vec<StoredMessage>>, sqlx::Error> {
    if find_progress(&mut *conn, taker).await?.is_none() {
        return Ok(None);
    }
    let rows = sqlx::query(include_str!("sql/take_tasks.sql"))
        .bind(taker.handler.0)
        .bind(taker.lane)
        .bind(limit)
        .bind(offset_ms)
        .fetch_all(&mut *conn)
        .await?;
    let tasks = rows.iter().map(read_message).collect::<Result<Vec<_>, _>>()?;
    sqlx::query(include_str!("sql/remove_tasks.sql"))
        .bind(taker.handler.0)
        .bind(taker.lane)
        .bind(to_json(tasks.iter().map(|task| task.place.pos))?)
        .execute(conn)
        .await?;
    Ok(Some(tasks))
}
