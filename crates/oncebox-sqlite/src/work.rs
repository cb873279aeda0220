//! Handing out the messages of the log, and keeping what became of them.
//!
//! A write transaction is the lock on every lane: SQLite has one writer.

use std::sync::LazyLock;

use oncebox_core::store::{
    Account, AccountStep, Batch, Care, Completion, DueLanes, Fence, HandlerId, MarkerState, Place, ProcessId,
    Progress, StoredMessage, TakeLimits, Taker, TaskLimits, Unfinished, Unit, Waiting, Work, doing, row,
};
use oncebox_core::{DeadHead, Error, Mode};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use crate::claims::{record_results, unclaim};
use crate::completion::complete;
use crate::fault::failed;
use crate::json::to_json;
use crate::many::Many;
use crate::message::read_published;
use crate::statements;
use crate::store::SqliteStore;
use crate::tasks::take_tasks;
use crate::transaction::SqliteTx;
use crate::unfinished::LaneUnfinished;

static SETTLE_MARKERS: LazyLock<Many> = LazyLock::new(|| Many::new(statements::settle_markers()));

impl Work for SqliteStore {
    async fn look(&self, handlers: &[HandlerId]) -> Result<DueLanes, Error> {
        let ids = to_json(handlers.iter().map(|handler| handler.0));
        let rows = sqlx::query(statements::look())
            .bind(ids.map_err(failed(doing::LOOK))?)
            .bind(self.clock_offset_ms())
            .fetch_all(&self.pool)
            .await;
        rows.and_then(|rows| read_look(&rows)).map_err(failed(doing::LOOK))
    }

    async fn take(
        &self,
        tx: &mut SqliteTx,
        taker: Taker<'_>,
        limits: TakeLimits,
    ) -> Result<Option<Batch>, Error> {
        let batch = take(tx.connection(), taker, 0, limits, self.clock_offset_ms()).await;
        let batch = batch.map_err(failed(doing::TAKE))?;
        if batch.is_some() {
            // A handler may run from here on: nothing commits until the guard has proved the transaction.
            tx.arm();
        }
        Ok(batch)
    }

    async fn take_tasks(
        &self,
        tx: &mut SqliteTx,
        taker: Taker<'_>,
        limits: TaskLimits,
    ) -> Result<Option<Vec<StoredMessage>>, Error> {
        let tasks = take_tasks(tx.connection(), taker, limits, self.clock_offset_ms()).await;
        let tasks = tasks.map_err(failed(doing::TAKE_TASKS))?;
        if tasks.is_some() {
            tx.arm();
        }
        Ok(tasks)
    }

    async fn settle(&self, tx: &mut SqliteTx, taker: Taker<'_>, account: &Account) -> Result<(), Error> {
        let conn = tx.connection();
        for step in account.steps() {
            match step {
                AccountStep::ForgetAttempt(place) => {
                    let forgotten = forget_attempt(&mut *conn, taker.handler, place).await;
                    forgotten.map_err(failed(doing::FORGET_ATTEMPT))?;
                }
                AccountStep::WriteTasks(messages) => {
                    let written = self.unfinished(taker, messages).write_tasks(&mut *conn, None).await;
                    written.map_err(failed(doing::WRITE_TASKS))?;
                }
                AccountStep::WriteDeadLetters(messages) => {
                    self.unfinished(taker, messages)
                        .write_dead_letters(&mut *conn)
                        .await
                        .map_err(failed(doing::WRITE_DEAD_LETTERS))?;
                }
                AccountStep::SettleMarkers(state, markers) => {
                    self.settle_markers(&mut *conn, markers, state).await?;
                }
                AccountStep::Unclaim(units) => unclaim(&mut *conn, units).await?,
                AccountStep::RecordResults(results) => record_results(&mut *conn, &results).await?,
            }
        }
        Ok(())
    }

    async fn lease(
        &self,
        tx: &mut SqliteTx,
        taker: Taker<'_>,
        process: ProcessId,
        messages: &[Unfinished],
    ) -> Result<Option<Fence>, Error> {
        let next = sqlx::query_scalar(statements::next_fence()).bind(&process.0.as_bytes()[..]);
        let next: Option<i64> = next.fetch_optional(tx.connection()).await.map_err(failed(doing::LEASE))?;
        // Another process has declared this one crashed, and would not know of the lease.
        let Some(fence) = next.map(Fence) else { return Ok(None) };
        let unfinished = self.unfinished(taker, messages);
        unfinished
            .write_tasks(tx.connection(), Some((process, fence)))
            .await
            .map_err(failed(doing::LEASE))?;
        Ok(Some(fence))
    }

    async fn finish(&self, mut tx: SqliteTx, progress: Option<Progress>) -> Result<(), Error> {
        // First the proof: what is written in a transaction of the handler's own would stay without its
        // effects.
        tx.guard_if_armed().await?;
        if let Some(progress) = progress {
            sqlx::query(statements::advance())
                .bind(progress.handler.0)
                .bind(progress.lane)
                .bind(progress.epoch)
                .bind(progress.pos)
                .bind(self.clock_offset_ms())
                .execute(tx.connection())
                .await
                .map_err(failed(doing::ADVANCE))?;
        }
        tx.commit().await
    }

    async fn complete(&self, completions: &[Completion]) -> Result<Vec<bool>, Error> {
        let offset_ms = self.clock_offset_ms();
        self.write(doing::COMPLETE, async |conn| {
            let mut ended = Vec::with_capacity(completions.len());
            for completion in completions {
                ended.push(complete(&mut *conn, completion, offset_ms).await?);
            }
            Ok(ended)
        })
        .await
    }
}

impl Care for SqliteStore {
    async fn note_attempt(
        &self,
        handler: HandlerId,
        place: Place,
        process: ProcessId,
    ) -> Result<Option<u32>, Error> {
        // Committed before the message runs, so that the note survives a crash.
        self.write(doing::NOTE_ATTEMPT, async |conn| {
            sqlx::query_scalar(statements::note_attempt())
                .bind(handler.0)
                .bind(place.lane)
                .bind(place.pos)
                .bind(&process.0.as_bytes()[..])
                .fetch_optional(conn)
                .await
        })
        .await
    }

    async fn give_back_attempt(
        &self,
        handler: HandlerId,
        place: Place,
        process: ProcessId,
    ) -> Result<(), Error> {
        self.write(doing::GIVE_BACK_ATTEMPT, async |conn| {
            sqlx::query(statements::give_back_attempt())
                .bind(handler.0)
                .bind(place.lane)
                .bind(place.pos)
                .bind(&process.0.as_bytes()[..])
                .execute(&mut *conn)
                .await?;
            // Earlier crashes still count against the message, so only an empty note goes.
            let drop = sqlx::query(statements::drop_empty_attempt()).bind(handler.0);
            drop.bind(place.lane).bind(place.pos).execute(conn).await?;
            Ok(())
        })
        .await
    }

    async fn end_care(&self, handler: HandlerId, lane: u16) -> Result<(), Error> {
        self.write(doing::END_CARE, async |conn| end_care(conn, handler, lane).await).await
    }
}

impl SqliteStore {
    pub(crate) fn unfinished<'a>(&self, taker: Taker<'_>, messages: &'a [Unfinished]) -> LaneUnfinished<'a> {
        let Taker { handler, lane, .. } = taker;
        LaneUnfinished { handler, lane, messages, offset_ms: self.clock_offset_ms() }
    }

    async fn settle_markers(
        &self,
        conn: &mut SqliteConnection,
        markers: &[Unit],
        state: MarkerState,
    ) -> Result<(), Error> {
        let offset_ms = self.clock_offset_ms();
        let settle = SETTLE_MARKERS.run(conn, markers, |update, unit| {
            update
                .bind(state.name())
                .bind(offset_ms)
                .bind(&unit.handler)
                .bind(&unit.kind)
                .bind(unit.key.as_bytes())
        });
        settle.await.map(drop).map_err(failed(doing::SETTLE_MARKERS))
    }
}

async fn forget_attempt(
    conn: &mut SqliteConnection,
    handler: HandlerId,
    place: Place,
) -> Result<(), sqlx::Error> {
    sqlx::query(statements::forget_attempt())
        .bind(handler.0)
        .bind(place.lane)
        .bind(place.pos)
        .execute(&mut *conn)
        .await?;
    let count = sqlx::query_scalar(statements::count_care()).bind(handler.0).bind(place.lane);
    match count.fetch_optional(&mut *conn).await? {
        // That was the last suspect message: batches are full again.
        Some(i64::MIN..=0) => end_care(conn, handler, place.lane).await,
        _ => Ok(()),
    }
}

async fn end_care(conn: &mut SqliteConnection, handler: HandlerId, lane: u16) -> Result<(), sqlx::Error> {
    let end = sqlx::query(statements::end_care()).bind(handler.0).bind(lane);
    end.execute(conn).await.map(drop)
}

fn read_look(rows: &[SqliteRow]) -> Result<DueLanes, sqlx::Error> {
    let mut look = DueLanes::default();
    for row in rows {
        match row.try_get::<Option<i32>, _>(0)? {
            Some(handler) => look.waiting.push(Waiting {
                handler: HandlerId(handler),
                lane: row.try_get(1)?,
                messages: row.try_get(2)?,
                tasks: row.try_get(3)?,
                careful: row.try_get(4)?,
            }),
            None => look.next_due = row.try_get::<Option<i64>, _>(5)?.map(row::duration_from_ms),
        }
    }
    Ok(look)
}

/// Where a handler stands in a lane.
struct Standing {
    epoch: i32,
    pos: i64,
    /// The lane's newest position.
    newest: i64,
    /// What dead letters mean for their keys, if it is ordered.
    ordered: Option<String>,
    /// Behind which position it runs again, if it does.
    after: Option<i64>,
    /// And up to which.
    until: Option<i64>,
}

/// `None` if the handler is gone, paused or not what the taker knows.
async fn find_standing(
    conn: &mut SqliteConnection,
    taker: Taker<'_>,
) -> Result<Option<Standing>, sqlx::Error> {
    let row = sqlx::query(statements::find_progress())
        .bind(taker.handler.0)
        .bind(taker.lane)
        .bind(to_json(taker.kinds.iter().map(String::as_str))?)
        .bind(taker.mode.name())
        .bind(taker.ordered.map(DeadHead::name))
        .fetch_optional(conn)
        .await?;
    let read = |row: SqliteRow| {
        Ok(Standing {
            epoch: row.try_get(0)?,
            pos: row.try_get(1)?,
            newest: row.try_get(2)?,
            ordered: row.try_get(3)?,
            after: row.try_get(4)?,
            until: row.try_get(5)?,
        })
    };
    row.map(read).transpose()
}

/// Whether a handler has reached the maximum number of tasks in a lane.
async fn is_full(
    conn: &mut SqliteConnection,
    taker: Taker<'_>,
    open_tasks: Option<u32>,
) -> Result<bool, sqlx::Error> {
    let Some(most) = open_tasks else { return Ok(false) };
    let tasks: i64 = sqlx::query_scalar(statements::count_tasks())
        .bind(taker.handler.0)
        .bind(taker.lane)
        .bind(most)
        .fetch_one(conn)
        .await?;
    Ok(tasks >= i64::from(most))
}

/// Takes the messages behind a position, or behind the progress if that is further.
pub(crate) async fn take(
    conn: &mut SqliteConnection,
    taker: Taker<'_>,
    behind: i64,
    limits: TakeLimits,
    offset_ms: i64,
) -> Result<Option<Batch>, sqlx::Error> {
    let Some(standing) = find_standing(&mut *conn, taker).await? else { return Ok(None) };
    let Standing { epoch, pos, newest, ordered, after, until } = standing;
    let from = pos.max(behind);
    let head = newest.max(from);
    // An empty batch rather than none: the handler is there, and its tasks may still run.
    if is_full(&mut *conn, taker, limits.open_tasks).await? {
        return Ok(Some(Batch { epoch, from, reached: from, head, messages: Vec::new() }));
    }
    let looked = head.min(from.saturating_add(i64::from(limits.positions)));
    let rows = sqlx::query(statements::take())
        .bind(taker.lane)
        .bind(from)
        .bind(looked)
        .bind(to_json(taker.kinds.iter().map(String::as_str))?)
        .bind(limits.messages)
        .bind(i64::try_from(limits.bytes).unwrap_or(i64::MAX))
        .bind(offset_ms)
        .bind(taker.handler.0)
        .bind(ordered)
        .bind(after)
        .bind(until)
        .bind(taker.mode == Mode::Relay)
        .fetch_all(conn)
        .await?;
    let mut messages = rows.iter().map(read_published).collect::<Result<Vec<_>, _>>()?;
    // Sorted here: `order by` would copy all bodies once more.
    messages.sort_unstable_by_key(|message| message.place.pos);
    Ok(Some(Batch { epoch, from, reached: limits.reached(&messages, looked), head, messages }))
}
