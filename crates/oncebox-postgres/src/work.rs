//! Handing out the messages of the log.

use std::time::{Duration, SystemTime};

use oncebox_core::store::{
    Batch, HandlerId, Look, Place, Progress, SetApart, Settled, StoredMessage, TakeLimits, Taker, Waiting,
    Work,
};
use oncebox_core::{Error, Headers, Key, StoredKey};
use sqlx::postgres::PgRow;
use sqlx::{Row, SqlStr};

use crate::fault::failed;
use crate::inspect::from_ms;
use crate::store::PostgresStore;
use crate::transaction::{PostgresBegun, PostgresTx};

impl Work for PostgresStore {
    async fn look(&self, handlers: &[HandlerId]) -> Result<Look, Error> {
        let doing = "look for work";
        let rows = sqlx::query(self.statements.look.clone())
            // Planned anew each time: a plan made while the table was small would scan it for ever.
            .persistent(false)
            .bind(handlers.iter().map(|id| id.0).collect::<Vec<_>>())
            .bind(self.clock_offset_ms())
            .fetch_all(&self.pool)
            .await
            .map_err(failed(doing))?;
        let mut look = Look::default();
        for row in &rows {
            let (waiting, due_in) = read_waiting(row).map_err(failed(doing))?;
            if waiting.messages || waiting.tasks {
                look.waiting.push(waiting);
            }
            if let (false, Some(due_in)) = (waiting.tasks, due_in) {
                look.next_due = Some(look.next_due.map_or(due_in, |next| next.min(due_in)));
            }
        }
        Ok(look)
    }

    async fn take(
        &self,
        tx: &mut PostgresTx,
        taker: Taker<'_>,
        limits: TakeLimits,
    ) -> Result<Option<Batch>, Error> {
        let doing = "take messages";
        let (_, statement, idle) = tx.limits_as_settings();
        let rows = sqlx::query(self.statements.take.clone())
            .bind(taker.handler.0)
            .bind(i32::from(taker.lane))
            .bind(taker.kinds)
            .bind(i32::try_from(limits.messages).unwrap_or(i32::MAX))
            .bind(i64::from(limits.positions))
            .bind(i64::try_from(limits.bytes).unwrap_or(i64::MAX))
            .bind(self.clock_offset_ms())
            .bind(statement)
            .bind(idle)
            .fetch_all(tx.connection())
            .await
            .map_err(failed(doing))?;
        let Some(first) = rows.first() else { return Ok(None) };
        tx.armed_by(first).map_err(failed(doing))?;
        let batch = read_batch(first, &rows, taker.lane, limits).map_err(failed(doing))?;
        tx.carries(batch.messages.first().map(|message| message.place.pos));
        Ok(Some(batch))
    }

    async fn take_tasks(
        &self,
        tx: &mut PostgresTx,
        taker: Taker<'_>,
        limit: u32,
    ) -> Result<Option<Vec<StoredMessage>>, Error> {
        let doing = "take tasks";
        let (_, statement, idle) = tx.limits_as_settings();
        let rows = sqlx::query(self.statements.take_tasks.clone())
            .bind(taker.handler.0)
            .bind(i32::from(taker.lane))
            .bind(taker.kinds)
            .bind(i32::try_from(limit).unwrap_or(i32::MAX))
            .bind(self.clock_offset_ms())
            .bind(statement)
            .bind(idle)
            .fetch_all(tx.connection())
            .await
            .map_err(failed(doing))?;
        let Some(first) = rows.first() else { return Ok(None) };
        tx.armed_by(first).map_err(failed(doing))?;
        let read = |row| {
            let mut message = read_message(row, taker.lane)?;
            message.failures = u32::try_from(row.try_get::<i32, _>("failures")?).unwrap_or(0);
            message.attempts = Some(row.try_get("attempts")?);
            message.edited = row.try_get("edited")?;
            Ok(message)
        };
        rows.iter().map(read).collect::<Result<_, _>>().map(Some).map_err(failed(doing))
    }

    async fn settle(&self, tx: &mut PostgresTx, taker: Taker<'_>, settled: &Settled) -> Result<(), Error> {
        self.set_apart(tx, &self.statements.set_apart, taker, &settled.apart).await?;
        self.set_apart(tx, &self.statements.bury, taker, &settled.dead).await
    }

    async fn finish(
        &self,
        tx: PostgresTx,
        progress: Option<Progress>,
    ) -> Result<Option<PostgresBegun>, Error> {
        tx.finish(progress, self.has_spare_connection()).await
    }
}

impl PostgresStore {
    async fn set_apart(
        &self,
        tx: &mut PostgresTx,
        statement: &SqlStr,
        taker: Taker<'_>,
        messages: &[SetApart],
    ) -> Result<(), Error> {
        if messages.is_empty() {
            return Ok(());
        }
        sqlx::query(statement.clone())
            .bind(taker.handler.0)
            .bind(i32::from(taker.lane))
            .bind(messages.iter().map(|one| one.pos).collect::<Vec<_>>())
            .bind(messages.iter().map(|one| one.order_by.as_ref().map(Key::as_bytes)).collect::<Vec<_>>())
            .bind(
                messages
                    .iter()
                    .map(|one| i32::try_from(one.failures).unwrap_or(i32::MAX))
                    .collect::<Vec<_>>(),
            )
            .bind(
                messages
                    .iter()
                    .map(|one| i64::try_from(one.due_in.as_millis()).unwrap_or(i64::MAX))
                    .collect::<Vec<_>>(),
            )
            .bind(messages.iter().map(|one| one.error.as_deref()).collect::<Vec<_>>())
            .bind(messages.iter().map(|one| one.attempts.as_deref()).collect::<Vec<_>>())
            .bind(messages.iter().map(|one| one.body.as_deref()).collect::<Vec<_>>())
            .bind(self.clock_offset_ms())
            .execute(tx.connection())
            .await
            .map_err(failed("set messages apart"))?;
        Ok(())
    }
}

fn read_waiting(row: &PgRow) -> Result<(Waiting, Option<Duration>), sqlx::Error> {
    let due_in: Option<i64> = row.try_get("due_in_ms")?;
    let waiting = Waiting {
        handler: HandlerId(row.try_get("handler")?),
        lane: lane(row)?,
        messages: row.try_get("messages")?,
        tasks: row.try_get("tasks")?,
    };
    Ok((waiting, due_in.map(millis)))
}

fn read_batch(first: &PgRow, rows: &[PgRow], lane: u16, limits: TakeLimits) -> Result<Batch, sqlx::Error> {
    let is_empty = first.try_get::<Option<i64>, _>("pos")?.is_none();
    let messages: Vec<StoredMessage> = match is_empty {
        true => Vec::new(),
        false => rows.iter().map(|row| read_message(row, lane)).collect::<Result<_, _>>()?,
    };
    let bytes: u64 = messages.iter().map(|message| message.body.len() as u64).sum();
    let looked: i64 = first.try_get("looked")?;
    let reached = match messages.last() {
        // There may be more before the end of what was looked at.
        Some(last) if messages.len() >= limits.messages as usize || bytes >= limits.bytes => last.place.pos,
        _ => looked,
    };
    let (epoch, from, head) = (first.try_get("epoch")?, first.try_get("since")?, first.try_get("head")?);
    Ok(Batch { epoch, from, reached, head, messages })
}

/// A message as every statement that reads some gives it; where it sits is known or in the row.
pub(crate) fn read_message(row: &PgRow, lane: u16) -> Result<StoredMessage, sqlx::Error> {
    let order_by: Option<&[u8]> = row.try_get("order_by")?;
    let due_in: Option<i64> = row.try_get("due_in_ms")?;
    let time = |column| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(column)?.map(from_signed_ms));
    Ok(StoredMessage {
        place: Place { lane, pos: row.try_get("pos")? },
        kind: row.try_get("kind")?,
        key: read_key(row)?,
        order_by: order_by.map(Key::new),
        headers: Headers::from_json(row.try_get("headers")?),
        body: row.try_get("body")?,
        occurred_at: time("occurred_ms")?,
        due_at: time("due_ms")?,
        due_in: due_in.map(millis).unwrap_or_default(),
        waited: millis(row.try_get("waited_ms")?),
        failures: 0,
        attempts: None,
        edited: false,
    })
}

/// The key of a message, if it has one.
pub(crate) fn read_key(row: &PgRow) -> Result<Option<Key>, sqlx::Error> {
    let (key, long_key): (Option<&[u8]>, Option<&[u8]>) = (row.try_get("key")?, row.try_get("long_key")?);
    Ok(key.map(|key| StoredKey::read(key, long_key).unwrap_or_else(|| Key::new(key))))
}

pub(crate) fn lane(row: &PgRow) -> Result<u16, sqlx::Error> {
    Ok(u16::try_from(row.try_get::<i32, _>("lane")?).unwrap_or(u16::MAX))
}

pub(crate) fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// A time that a sender said; it may be before 1970.
fn from_signed_ms(ms: i64) -> SystemTime {
    match u64::try_from(ms) {
        Ok(_) => from_ms(ms),
        Err(_) => SystemTime::UNIX_EPOCH - Duration::from_millis(ms.unsigned_abs()),
    }
}
