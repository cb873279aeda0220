//! Who is at work.

use oncebox_core::Error;
use oncebox_core::store::{HandlerId, NewProcess, Peer, ProcessId, Processes};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::fault::failed;
use crate::store::PostgresStore;
use crate::work::{millis, to_i32, to_ms};

impl Processes for PostgresStore {
    async fn enter(&self, process: &NewProcess) -> Result<(), Error> {
        sqlx::query(self.statements.enter.clone())
            .bind(process.id.0)
            .bind(&process.name)
            .bind(process.handlers.iter().map(|id| id.0).collect::<Vec<_>>())
            .bind(to_ms(process.lease))
            .bind(to_i32(process.in_hand))
            .bind(self.clock_offset_ms())
            .execute(&mut *self.acquire("begin to work").await?)
            .await
            .map_err(self.failed("begin to work"))?;
        Ok(())
    }

    /// On a connection beside the pool: handlers may have all of that.
    async fn beat_process(&self, id: ProcessId) -> Result<bool, Error> {
        let doing = "say that a process is alive";
        let mut kept = self.pulse.lock().await;
        let mut conn = match kept.take() {
            Some(conn) => conn,
            None => self.servers.connect_apart().await.map_err(failed(doing))?,
        };
        // One that fails, or whose caller does not wait any longer, is not kept.
        let beat = sqlx::query(self.statements.beat_process.clone())
            .bind(id.0)
            .bind(self.clock_offset_ms())
            .execute(&mut conn)
            .await
            .map_err(self.failed(doing))?;
        *kept = Some(conn);
        Ok(beat.rows_affected() == 1)
    }

    async fn leave(&self, id: ProcessId) -> Result<(), Error> {
        self.pulse.lock().await.take();
        self.in_transaction("end the work of a process", async |tx: &mut PgConnection| {
            sqlx::query(self.statements.leave.clone()).bind(id.0).execute(&mut *tx).await?;
            // By a later statement: it sees what was leased while the first one waited.
            let free = sqlx::query(self.statements.free_tasks.clone()).bind(id.0);
            free.bind(self.clock_offset_ms()).execute(tx).await?;
            Ok(())
        })
        .await
    }

    async fn peers(&self, id: ProcessId) -> Result<Vec<Peer>, Error> {
        let doing = "read the processes";
        let rows = sqlx::query(self.statements.peers.clone())
            .bind(id.0)
            .bind(self.clock_offset_ms())
            .fetch_all(&mut *self.acquire(doing).await?)
            .await
            .map_err(self.failed(doing))?;
        rows.iter().map(read_peer).collect::<Result<_, _>>().map_err(failed(doing))
    }

    async fn bury_process(&self, id: ProcessId) -> Result<Option<u64>, Error> {
        self.in_transaction("take over from a process that died", async |tx: &mut PgConnection| {
            let bury = sqlx::query_as(self.statements.bury_process.clone()).bind(id.0);
            let buried: Option<(Vec<i32>, i32)> =
                bury.bind(self.clock_offset_ms()).fetch_optional(&mut *tx).await?;
            let Some((handlers, in_hand)) = buried else { return Ok(None) };
            // By a later statement: it sees what was leased while the first one waited.
            let tasks: i64 = sqlx::query_scalar(self.statements.take_over.clone())
                .bind(id.0)
                .bind(self.clock_offset_ms())
                .bind(handlers)
                .bind(in_hand)
                .fetch_one(tx)
                .await?;
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
        silent_for: millis(row.try_get("silent_ms")?),
        lease: millis(row.try_get("lease_ms")?),
    })
}
