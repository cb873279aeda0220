//! Who is at work.

use std::time::Duration;

use oncebox_core::Error;
use oncebox_core::store::{HandlerId, NewProcess, Peer, ProcessId, Processes, doing, row};
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};

use crate::connection::{TimedConnection, within};
use crate::fault::failed;
use crate::store::PostgresStore;
use crate::work::to_i32;

impl Processes for PostgresStore {
    async fn enter(&self, process: &NewProcess) -> Result<(), Error> {
        let doing = doing::ENTER;
        let enter = sqlx::query(self.statements.enter.clone())
            .bind(process.id.0)
            .bind(&process.name)
            .bind(process.handlers.iter().map(|id| id.0).collect::<Vec<_>>())
            .bind(row::duration_to_ms(process.lease))
            .bind(to_i32(process.in_flight))
            .bind(self.clock_offset_ms())
            .bind(process.moves);
        self.connections.execute(doing, enter).await?;
        Ok(())
    }

    /// On a connection beside the pool: handlers may have all of that.
    async fn beat_process(&self, id: ProcessId) -> Result<bool, Error> {
        let doing = doing::BEAT_PROCESS;
        let mut kept = self.pulse.lock().await;
        let mut conn = match kept.take() {
            Some(conn) => conn,
            None => within(self.connections.answer_timeout, self.connections.servers.connect_apart())
                .await
                .map_err(failed(doing))?,
        };
        // One that fails, or whose caller does not wait any longer, is not kept.
        let beat = sqlx::query(self.statements.beat_process.clone()).bind(id.0).bind(self.clock_offset_ms());
        let beat = TimedConnection::on(&mut conn, self.connections.answer_timeout)
            .execute(beat)
            .await
            .map_err(failed(doing))?;
        *kept = Some(conn);
        Ok(beat.rows_affected() == 1)
    }

    async fn leave(&self, id: ProcessId) -> Result<(), Error> {
        self.pulse.lock().await.take();
        self.connections
            .in_transaction(doing::LEAVE, Duration::ZERO, async |tx: &mut TimedConnection| {
                tx.execute(sqlx::query(self.statements.leave.clone()).bind(id.0)).await?;
                // By a later statement: it sees what was leased while the first one waited.
                let free = sqlx::query(self.statements.free_tasks.clone()).bind(id.0);
                tx.execute(free.bind(self.clock_offset_ms())).await?;
                Ok(())
            })
            .await
    }

    async fn peers(&self, id: ProcessId) -> Result<Vec<Peer>, Error> {
        let doing = doing::READ_PROCESSES;
        let read = sqlx::query(self.statements.peers.clone()).bind(id.0).bind(self.clock_offset_ms());
        let rows = self.connections.fetch_all(doing, read).await?;
        rows.iter().map(read_peer).collect::<Result<_, _>>().map_err(failed(doing))
    }

    async fn remove_crashed(&self, id: ProcessId, is_seen: bool) -> Result<Option<u64>, Error> {
        let doing = doing::REMOVE_CRASHED;
        self.connections
            .in_transaction(doing, Duration::ZERO, async |tx: &mut TimedConnection| {
                let remove = sqlx::query(self.statements.remove_crashed.clone()).bind(id.0);
                let removed = tx.fetch_optional(remove.bind(self.clock_offset_ms()).bind(is_seen)).await?;
                let Some(removed) = removed else { return Ok(None) };
                let (handlers, in_flight) = <(Vec<i32>, i32)>::from_row(&removed)?;
                // By a later statement: it sees what was leased while the first one waited.
                let note = sqlx::query(self.statements.note_crash.clone())
                    .bind(id.0)
                    .bind(self.clock_offset_ms())
                    .bind(handlers)
                    .bind(in_flight);
                let tasks: i64 = tx.fetch_one(note).await?.try_get(0)?;
                Ok(Some(u64::try_from(tasks).unwrap_or(0)))
            })
            .await
    }
}

fn read_peer(row: &PgRow) -> Result<Peer, sqlx::Error> {
    let handlers: Vec<i32> = row.try_get("handlers")?;
    Ok(Peer {
        id: ProcessId(row.try_get("id")?),
        name: row.try_get("name")?,
        handlers: handlers.into_iter().map(HandlerId).collect(),
        beats: row.try_get("beats")?,
        silent_for: row::duration_from_ms(row.try_get("silent_ms")?),
        lease: row::duration_from_ms(row.try_get("lease_ms")?),
        moves: row.try_get("moves")?,
    })
}
