//! Handing out the messages of the log.

use std::borrow::Cow;
use std::time::Duration;

use oncebox_core::store::{
    Account, AccountStep, Batch, Care, Claims, Completion, DueLanes, FailedAttempt, Fence, HandlerId, Place,
    ProcessId, Progress, StoredMessage, TakeLimits, Taker, TaskLimits, Unfinished, Unit, Waiting, Work,
    doing, row,
};
use oncebox_core::{DeadHead, Error, Headers, Key, MessageId};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::types::Uuid;
use sqlx::{Postgres, Row, SqlStr};

use crate::connection::TimedConnection;
use crate::fault::failed;
use crate::store::PostgresStore;
use crate::transaction::PostgresTx;

impl Work for PostgresStore {
    async fn look(&self, handlers: &[HandlerId]) -> Result<DueLanes, Error> {
        let doing = doing::LOOK;
        let look = sqlx::query(self.statements.look.clone())
            // Planned anew each time: a plan made while the table was small would scan it for ever.
            .persistent(false)
            .bind(handlers.iter().map(|id| id.0).collect::<Vec<_>>())
            .bind(self.clock_offset_ms());
        let mut conn = self.connections.open(doing).await?;
        let rows = conn.fetch_all(look).await.map_err(failed(doing))?;
        let mut waiting = Vec::with_capacity(rows.len());
        let mut next_due = None;
        let mut ordered = Vec::new();
        for row in &rows {
            let (place, due_in) = read_waiting(row).map_err(failed(doing))?;
            if row.try_get("has_ordered").map_err(failed(doing))? {
                ordered.push((place.handler, place.lane));
            }
            note_due(&mut next_due, due_in.filter(|_| !place.tasks));
            waiting.push(place);
        }
        // Only where order matters: whether a task can run depends on those before it.
        if !ordered.is_empty() {
            for (handler, lane, tasks, due_in) in
                self.look_ordered(&mut conn, &ordered).await.map_err(failed(doing))?
            {
                note_due(&mut next_due, due_in.filter(|_| !tasks));
                let place = waiting.iter_mut().find(|place| (place.handler, place.lane) == (handler, lane));
                if let Some(place) = place {
                    place.tasks = tasks;
                }
            }
        }
        // Lanes without work are listed for their next due time only.
        waiting.retain(|place| place.messages || place.tasks);
        Ok(DueLanes { waiting, next_due })
    }

    async fn take(
        &self,
        tx: &mut PostgresTx,
        taker: Taker<'_>,
        limits: TakeLimits,
    ) -> Result<Option<Batch>, Error> {
        let doing = doing::TAKE;
        let (_, statement, idle) = tx.limits_as_settings();
        let take = sqlx::query(self.statements.take.clone())
            .bind(taker.handler.0)
            .bind(i32::from(taker.lane))
            .bind(taker.kinds)
            .bind(taker.mode.name())
            .bind(taker.ordered.map(DeadHead::name))
            .bind(i32::try_from(limits.messages).unwrap_or(i32::MAX))
            .bind(i64::from(limits.positions))
            .bind(i64::try_from(limits.bytes).unwrap_or(i64::MAX))
            .bind(limits.open_tasks.map(|tasks| i32::try_from(tasks).unwrap_or(i32::MAX)))
            .bind(self.clock_offset_ms())
            .bind(statement)
            .bind(idle);
        let rows = tx.timed().fetch_all(take).await.map_err(failed(doing))?;
        // No row: another worker has the lane, or the handler is gone, paused or changed.
        let Some(first) = rows.first() else { return Ok(None) };
        tx.armed_by(first).map_err(failed(doing))?;
        let batch = read_batch(first, &rows, taker.lane, limits, read_taken).map_err(failed(doing))?;
        // Appended already, so that a row with the commit trigger protects this transaction (decision 15).
        tx.carries(batch.messages.first().map(|message| message.place.pos));
        Ok(Some(batch))
    }

    async fn take_tasks(
        &self,
        tx: &mut PostgresTx,
        taker: Taker<'_>,
        limits: TaskLimits,
    ) -> Result<Option<Vec<StoredMessage>>, Error> {
        let doing = doing::TAKE_TASKS;
        let (_, statement, idle) = tx.limits_as_settings();
        let take = sqlx::query(self.statements.take_tasks.clone())
            .bind(taker.handler.0)
            .bind(i32::from(taker.lane))
            .bind(taker.kinds)
            .bind(taker.mode.name())
            .bind(taker.ordered.map(DeadHead::name))
            .bind(i32::try_from(limits.tasks).unwrap_or(i32::MAX))
            .bind(limits.heads_only)
            .bind(self.clock_offset_ms())
            .bind(statement)
            .bind(idle);
        let rows = tx.timed().fetch_all(take).await.map_err(failed(doing))?;
        let Some(first) = rows.first() else { return Ok(None) };
        tx.armed_by(first).map_err(failed(doing))?;
        let read = |row| {
            let mut message = read_message(row, taker.lane)?;
            message.failures = u32::try_from(row.try_get::<i32, _>("failures")?).unwrap_or(0);
            message.attempts = Some(row.try_get("attempts")?);
            message.edited = row.try_get("edited")?;
            message.replay = row.try_get("replay")?;
            message.crashes = u32::try_from(row.try_get::<i32, _>("crashes")?).unwrap_or(0);
            message.spilled = row.try_get("spilled")?;
            message.message_id = read_message_id(row)?;
            Ok(message)
        };
        rows.iter().map(read).collect::<Result<_, _>>().map(Some).map_err(failed(doing))
    }

    async fn settle(&self, tx: &mut PostgresTx, taker: Taker<'_>, account: &Account) -> Result<(), Error> {
        for step in account.steps() {
            let (doing, write) = match step {
                AccountStep::ForgetAttempt(place) => {
                    let forget = sqlx::query(self.statements.forget_attempt.clone())
                        .bind(taker.handler.0)
                        .bind(i32::from(place.lane))
                        .bind(place.pos);
                    (doing::FORGET_ATTEMPT, forget)
                }
                AccountStep::WriteTasks(messages) => {
                    (doing::WRITE_TASKS, self.write_unfinished(&self.statements.write_tasks, taker, messages))
                }
                AccountStep::WriteDeadLetters(messages) => (
                    doing::WRITE_DEAD_LETTERS,
                    self.write_unfinished(&self.statements.write_dead_letters, taker, messages),
                ),
                AccountStep::SettleMarkers(state, markers) => {
                    let settle = of_markers(&self.statements.settle_markers, markers)
                        .bind(state.name())
                        .bind(self.clock_offset_ms());
                    (doing::SETTLE_MARKERS, settle)
                }
                AccountStep::Unclaim(units) => {
                    (doing::UNCLAIM, of_markers(&self.statements.unclaim_many, units))
                }
                AccountStep::RecordResults(results) => {
                    self.record_results(tx, &results).await?;
                    continue;
                }
            };
            tx.timed().execute(write).await.map_err(failed(doing))?;
        }
        Ok(())
    }

    async fn lease(
        &self,
        tx: &mut PostgresTx,
        taker: Taker<'_>,
        process: ProcessId,
        messages: &[Unfinished],
    ) -> Result<Option<Fence>, Error> {
        let doing = doing::LEASE;
        let lease = self.write_unfinished(&self.statements.lease, taker, messages).bind(process.0);
        let row = tx.timed().fetch_optional(lease).await.map_err(failed(doing))?;
        row.map(|row| row.try_get(0).map(Fence)).transpose().map_err(failed(doing))
    }

    async fn finish(&self, mut tx: PostgresTx, progress: Option<Progress>) -> Result<(), Error> {
        let may_go_on = self.connections.may_go_on(tx.since());
        let begun = tx.finish(progress, may_go_on).await?;
        self.keep_begun(begun);
        Ok(())
    }

    async fn complete(&self, completions: &[Completion]) -> Result<Vec<bool>, Error> {
        self.write_completions(completions).await
    }
}

impl Care for PostgresStore {
    async fn note_attempt(
        &self,
        handler: HandlerId,
        place: Place,
        process: ProcessId,
    ) -> Result<Option<u32>, Error> {
        let doing = doing::NOTE_ATTEMPT;
        // Committed before the message runs, so that the note survives a crash.
        let note = sqlx::query(self.statements.note_attempt.clone())
            .bind(handler.0)
            .bind(i32::from(place.lane))
            .bind(place.pos)
            .bind(process.0);
        let row = self.connections.fetch_optional(doing, note).await?;
        let crashes: Option<i32> = row.map(|row| row.try_get(0)).transpose().map_err(failed(doing))?;
        Ok(crashes.map(|crashes| u32::try_from(crashes).unwrap_or(0)))
    }

    async fn give_back_attempt(
        &self,
        handler: HandlerId,
        place: Place,
        process: ProcessId,
    ) -> Result<(), Error> {
        let doing = doing::GIVE_BACK_ATTEMPT;
        let give_back = sqlx::query(self.statements.give_back_attempt.clone())
            .bind(handler.0)
            .bind(i32::from(place.lane))
            .bind(place.pos)
            .bind(process.0);
        self.connections.execute(doing, give_back).await.map(drop)
    }

    async fn end_care(&self, handler: HandlerId, lane: u16) -> Result<(), Error> {
        let end = sqlx::query(self.statements.end_care.clone()).bind(handler.0).bind(i32::from(lane));
        self.connections.execute(doing::END_CARE, end).await.map(drop)
    }
}

impl PostgresStore {
    /// When the next task can run in lanes of ordered handlers.
    async fn look_ordered(
        &self,
        conn: &mut TimedConnection,
        lanes: &[(HandlerId, u16)],
    ) -> Result<Vec<(HandlerId, u16, bool, Option<Duration>)>, sqlx::Error> {
        // Planned anew each time, as `look` is.
        let look = sqlx::query(self.statements.look_ordered.clone())
            .persistent(false)
            .bind(lanes.iter().map(|(handler, _)| handler.0).collect::<Vec<_>>())
            .bind(lanes.iter().map(|(_, lane)| i32::from(*lane)).collect::<Vec<_>>())
            .bind(self.clock_offset_ms());
        let rows = conn.fetch_all(look).await?;
        let read = |row: &PgRow| {
            let due_in: Option<i64> = row.try_get("due_in_ms")?;
            Ok((
                HandlerId(row.try_get("handler")?),
                lane(row)?,
                row.try_get("tasks")?,
                due_in.map(row::duration_from_ms),
            ))
        };
        rows.iter().map(read).collect()
    }

    /// A statement that writes messages beside the progress, with what all of them begin with.
    pub(crate) fn write_unfinished<'m>(
        &self,
        statement: &SqlStr,
        taker: Taker<'_>,
        messages: &'m [Unfinished],
    ) -> Query<'m, Postgres, PgArguments> {
        let all = messages.iter();
        sqlx::query(statement.clone())
            .bind(taker.handler.0)
            .bind(i32::from(taker.lane))
            .bind(all.clone().map(|one| one.pos).collect::<Vec<_>>())
            .bind(all.clone().map(|one| one.order_by.as_ref().map(Key::as_bytes)).collect::<Vec<_>>())
            .bind(all.clone().map(|one| to_i32(one.failures)).collect::<Vec<_>>())
            .bind(all.clone().map(|one| row::duration_to_ms(one.due_in)).collect::<Vec<_>>())
            .bind(all.clone().map(|one| one.error.as_deref()).collect::<Vec<_>>())
            .bind(all.clone().map(history).collect::<Vec<_>>())
            .bind(all.clone().map(|one| one.body.as_deref()).collect::<Vec<_>>())
            .bind(self.clock_offset_ms())
            .bind(all.clone().map(|one| one.scheduled).collect::<Vec<_>>())
            .bind(all.map(|one| to_i32(one.crashes)).collect::<Vec<_>>())
    }
}

/// The failed attempts before this one, with room for it where it failed.
fn history(one: &Unfinished) -> Option<Cow<'_, str>> {
    let attempts = one.attempts.as_deref()?;
    Some(if one.error.is_some() { FailedAttempt::with_room(attempts) } else { Cow::Borrowed(attempts) })
}

/// A count, as far as the database can count.
pub(crate) fn to_i32(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn note_due(next: &mut Option<Duration>, due_in: Option<Duration>) {
    if let Some(due_in) = due_in {
        *next = Some(next.map_or(due_in, |next| next.min(due_in)));
    }
}

fn read_waiting(row: &PgRow) -> Result<(Waiting, Option<Duration>), sqlx::Error> {
    let due_in: Option<i64> = row.try_get("due_in_ms")?;
    let waiting = Waiting {
        handler: HandlerId(row.try_get("handler")?),
        lane: lane(row)?,
        messages: row.try_get("messages")?,
        tasks: row.try_get("tasks")?,
        careful: row.try_get("careful")?,
    };
    Ok((waiting, due_in.map(row::duration_from_ms)))
}

pub(crate) fn read_batch(
    first: &PgRow,
    rows: &[PgRow],
    lane: u16,
    limits: TakeLimits,
    read: fn(&PgRow, u16) -> Result<StoredMessage, sqlx::Error>,
) -> Result<Batch, sqlx::Error> {
    // A batch without messages is a row with nulls: it still says how far the lane was read.
    let is_empty = first.try_get::<Option<i64>, _>("pos")?.is_none();
    let messages: Vec<StoredMessage> = match is_empty {
        true => Vec::new(),
        false => rows.iter().map(|row| read(row, lane)).collect::<Result<_, _>>()?,
    };
    let reached = limits.reached(&messages, first.try_get("looked")?);
    let (epoch, from, head) = (first.try_get("epoch")?, first.try_get("since")?, first.try_get("head")?);
    Ok(Batch { epoch, from, reached, head, messages })
}

/// A message that was taken from a lane.
pub(crate) fn read_taken(row: &PgRow, lane: u16) -> Result<StoredMessage, sqlx::Error> {
    let message = read_message(row, lane)?;
    Ok(StoredMessage { held: row.try_get("held")?, replay: row.try_get("replay")?, ..message })
}

/// A message as every statement that reads some gives it; where it sits is known or in the row.
pub(crate) fn read_message(row: &PgRow, lane: u16) -> Result<StoredMessage, sqlx::Error> {
    let order_by: Option<&[u8]> = row.try_get("order_by")?;
    let due_in: Option<i64> = row.try_get("due_in_ms")?;
    let time = |column| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(column)?.map(row::time_from_ms));
    Ok(StoredMessage {
        place: Place { lane, pos: row.try_get("pos")? },
        kind: row.try_get("kind")?,
        key: read_key(row)?,
        order_by: order_by.map(Key::new),
        headers: Headers::from_json(row.try_get("headers")?),
        body: row.try_get("body")?,
        occurred_at: time("occurred_ms")?,
        due_at: time("due_ms")?,
        due_in: due_in.map(row::duration_from_ms).unwrap_or_default(),
        waited: row::duration_from_ms(row.try_get("waited_ms")?),
        failures: 0,
        attempts: None,
        edited: false,
        held: false,
        replay: false,
        crashes: 0,
        spilled: false,
        message_id: None,
    })
}

/// The id of a published message.
pub(crate) fn read_message_id(row: &PgRow) -> Result<Option<MessageId>, sqlx::Error> {
    let id: Option<Uuid> = row.try_get("message_id")?;
    Ok(id.map(|id| MessageId::from_bytes(id.into_bytes())))
}

/// The key of a message, if it has one.
pub(crate) fn read_key(row: &PgRow) -> Result<Option<Key>, sqlx::Error> {
    let (key, long_key): (Option<&[u8]>, Option<&[u8]>) = (row.try_get("key")?, row.try_get("long_key")?);
    Ok(key.map(|key| row::key(key, long_key)))
}

pub(crate) fn lane(row: &PgRow) -> Result<u16, sqlx::Error> {
    Ok(u16::try_from(row.try_get::<i32, _>("lane")?).unwrap_or(u16::MAX))
}

/// A statement on markers, with what all of them begin with.
fn of_markers<'m>(statement: &SqlStr, markers: &'m [Unit]) -> Query<'m, Postgres, PgArguments> {
    sqlx::query(statement.clone())
        .bind(markers.iter().map(|unit| &*unit.handler).collect::<Vec<_>>())
        .bind(markers.iter().map(|unit| &*unit.kind).collect::<Vec<_>>())
        .bind(markers.iter().map(|unit| unit.key.as_bytes()).collect::<Vec<_>>())
}
