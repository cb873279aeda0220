//! Spilling: an inline message moves to the log, for one handler.

use std::time::Duration;

use oncebox_core::store::{Fault, Place, Spill, Spilled, Unfinished, Unit, doing, refusal, row};
use oncebox_core::{Error, Fingerprint, Key};
use sqlx::SqliteConnection;

use crate::fault::classify;
use crate::inspect::find_marker;
use crate::log::{Fresh, begin_append, insert_messages};
use crate::statements;
use crate::store::{BUSY_TIMEOUT, SqliteStore};
use crate::unfinished::LaneUnfinished;

impl SqliteStore {
    pub(crate) async fn spill_one(&self, spill: &Spill, lock_timeout: Duration) -> Result<Spilled, Error> {
        let offset_ms = self.clock_offset_ms();
        let spilled = self
            .write_within(lock_timeout.max(BUSY_TIMEOUT), doing::SPILL, async |conn| {
                write(conn, spill, offset_ms).await
            })
            .await;
        match spilled {
            Ok(spilled) => spilled,
            // The transaction that has the writer may be running a duplicate.
            Err(error) if classify(&error) == Fault::LockTimeout => Ok(Spilled::Busy),
            Err(error) => Err(error),
        }
    }
}

async fn write(
    conn: &mut SqliteConnection,
    spill: &Spill,
    offset_ms: i64,
) -> Result<Result<Spilled, Error>, sqlx::Error> {
    let lane = spill.lane.lane();
    let Some((newest, now_ms)) = begin_append(&mut *conn, lane, offset_ms).await? else {
        return Ok(Err(refusal::no_such_lane(lane)));
    };
    // The handler may have been removed or made inline since this process started.
    let there: Option<i64> = sqlx::query_scalar(statements::can_have_tasks())
        .bind(spill.handler.0)
        .fetch_optional(&mut *conn)
        .await?;
    if there.is_none() {
        return Ok(Err(refusal::no_tasks_for_handler()));
    }
    if let Some(unit) = &spill.marker
        && !mark_spilled(&mut *conn, unit, offset_ms).await?
    {
        // The one writer is ours: no sweep deletes the marker before it is read.
        let known = find_marker(conn, unit).await;
        return Ok(known.map(|known| known.map_or(Spilled::Busy, Spilled::Known)));
    }
    let place = Place { lane, pos: newest + 1 };
    let fresh = Fresh { message: &spill.message, place, target: Some(spill.handler), now_ms };
    insert_messages(&mut *conn, &[fresh]).await?;
    let message = Unfinished {
        pos: place.pos,
        order_by: spill.message.order_by.clone(),
        failures: spill.failures,
        due_in: spill.due_in,
        error: spill.error.clone(),
        attempts: None,
        body: None,
        scheduled: false,
        crashes: 0,
    };
    let unfinished = LaneUnfinished { handler: spill.handler, lane, messages: &[message], offset_ms };
    if spill.is_dead {
        unfinished.write_dead_letters(conn).await?;
    } else {
        unfinished.write_tasks(conn, None).await?;
    }
    Ok(Ok(Spilled::New(place)))
}

/// Whether the unit was not known before.
async fn mark_spilled(conn: &mut SqliteConnection, unit: &Unit, offset_ms: i64) -> Result<bool, sqlx::Error> {
    let inserted = sqlx::query(statements::mark_spilled())
        .bind(&unit.handler)
        .bind(&unit.kind)
        .bind(unit.key.as_bytes())
        .bind(unit.key.original().map(Key::as_bytes))
        .bind(unit.fingerprint.map(Fingerprint::to_i64))
        .bind(row::duration_to_ms(unit.waited))
        .bind(offset_ms)
        .execute(conn)
        .await?;
    Ok(inserted.rows_affected() > 0)
}
