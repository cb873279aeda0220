//! The processes at work.

use oncebox_core::Error;
use oncebox_core::store::{HandlerId, NewProcess, Peer, ProcessId, Processes, doing, row};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};
use uuid::Uuid;

use crate::fault::failed;
use crate::json::to_json;
use crate::statements;
use crate::store::SqliteStore;

impl Processes for SqliteStore {
    async fn enter(&self, process: &NewProcess) -> Result<(), Error> {
        let offset_ms = self.clock_offset_ms();
        self.write(doing::ENTER, async |conn| {
            sqlx::query(statements::enter())
                .bind(&process.id.0.as_bytes()[..])
                .bind(&process.name)
                .bind(to_json(process.handlers.iter().map(|handler| handler.0))?)
                .bind(row::duration_to_ms(process.lease))
                .bind(process.in_flight)
                .bind(offset_ms)
                .bind(process.moves)
                .execute(&mut *conn)
                .await?;
            correct_due_times(conn, offset_ms).await
        })
        .await
    }

    /// There is one writer: it waits for that.
    async fn beat_process(&self, id: ProcessId) -> Result<bool, Error> {
        let offset_ms = self.clock_offset_ms();
        self.write(doing::BEAT_PROCESS, async |conn| {
            let beat = sqlx::query(statements::beat_process());
            let beat = beat.bind(&id.0.as_bytes()[..]).bind(offset_ms).execute(&mut *conn).await?;
            correct_due_times(conn, offset_ms).await?;
            Ok(beat.rows_affected() > 0)
        })
        .await
    }

    async fn leave(&self, id: ProcessId) -> Result<(), Error> {
        let offset_ms = self.clock_offset_ms();
        self.write(doing::LEAVE, async |conn| {
            let id = &id.0.as_bytes()[..];
            sqlx::query(statements::leave()).bind(id).execute(&mut *conn).await?;
            // No crash, so nothing is added to the tasks' crashes.
            let free = sqlx::query(statements::free_tasks()).bind(id).bind(0).bind(offset_ms);
            free.execute(&mut *conn).await?;
            sqlx::query(statements::free_lanes()).bind(id).execute(&mut *conn).await?;
            sqlx::query(statements::forget_attempts()).bind(id).execute(conn).await?;
            Ok(())
        })
        .await
    }

    async fn peers(&self, id: ProcessId) -> Result<Vec<Peer>, Error> {
        let rows = sqlx::query(statements::peers())
            .bind(&id.0.as_bytes()[..])
            .bind(self.clock_offset_ms())
            .fetch_all(&self.pool)
            .await;
        let peers = rows.and_then(|rows| rows.iter().map(read_peer).collect());
        peers.map_err(failed(doing::READ_PROCESSES))
    }

    async fn remove_crashed(&self, id: ProcessId, is_seen: bool) -> Result<Option<u64>, Error> {
        let offset_ms = self.clock_offset_ms();
        self.write(doing::REMOVE_CRASHED, async |conn| {
            let id = &id.0.as_bytes()[..];
            let remove = sqlx::query_as(statements::remove_crashed()).bind(id).bind(offset_ms).bind(is_seen);
            let removed: Option<(String, u32)> = remove.fetch_optional(&mut *conn).await?;
            let Some((handlers, in_flight)) = removed else { return Ok(None) };
            // One more crash for each task that it ran. Before the note below, which counts these tasks as waiting
            // again.
            let free = sqlx::query(statements::free_tasks()).bind(id).bind(1).bind(offset_ms);
            let freed = free.execute(&mut *conn).await?;
            sqlx::query(statements::free_lanes()).bind(id).execute(&mut *conn).await?;
            let note = sqlx::query(statements::note_crash()).bind(handlers).bind(in_flight);
            note.bind(offset_ms).execute(conn).await?;
            Ok(Some(freed.rows_affected()))
        })
        .await
    }
}

/// Corrects due times that a process wrote whose clock was ahead: others would wait too long.
async fn correct_due_times(conn: &mut SqliteConnection, offset_ms: i64) -> Result<(), sqlx::Error> {
    sqlx::query(statements::correct_due_times()).bind(offset_ms).execute(conn).await?;
    Ok(())
}

fn read_peer(row: &SqliteRow) -> Result<Peer, sqlx::Error> {
    let handlers: Vec<i32> =
        serde_json::from_str(row.try_get(2)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let id = Uuid::from_slice(row.try_get(0)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(Peer {
        id: ProcessId(id),
        name: row.try_get(1)?,
        handlers: handlers.into_iter().map(HandlerId).collect(),
        beats: row.try_get(3)?,
        silent_for: row::duration_from_ms(row.try_get(4)?),
        lease: row::duration_from_ms(row.try_get(5)?),
        moves: row.try_get(6)?,
    })
}
