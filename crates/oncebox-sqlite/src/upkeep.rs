//! Retention.

use std::time::Duration;

use oncebox_core::Error;
use oncebox_core::store::row::LiveTimeRow;
use oncebox_core::store::{LiveTime, Upkeep, doing, row};
use sqlx::Row;

use crate::fault::failed;
use crate::statements;
use crate::store::SqliteStore;

impl Upkeep for SqliteStore {
    async fn beat(&self, tolerance: Duration) -> Result<(), Error> {
        let offset_ms = self.clock_offset_ms();
        let tolerance_ms = row::duration_to_ms(tolerance);
        self.write(doing::BEAT, async |conn| {
            let prolonged = sqlx::query(statements::beat())
                .bind(tolerance_ms)
                .bind(offset_ms)
                .execute(&mut *conn)
                .await?;
            // The last heartbeat is older than the tolerance: the time in between was downtime and does not count.
            if prolonged.rows_affected() == 0 {
                sqlx::query(statements::begin_live_time()).bind(offset_ms).execute(conn).await?;
            }
            Ok(())
        })
        .await
    }

    async fn live_time(&self) -> Result<(Vec<LiveTime>, i64), Error> {
        let rows: Vec<LiveTimeRow> = sqlx::query_as(statements::live_time())
            .bind(self.clock_offset_ms())
            .fetch_all(&self.pool)
            .await
            .map_err(failed(doing::READ_LIVE_TIME))?;
        Ok(row::live_time(rows))
    }

    async fn sweep(&self, before_ms: i64, limit: u32) -> Result<u64, Error> {
        self.write(doing::SWEEP, async |conn| {
            let swept =
                sqlx::query(statements::sweep()).bind(before_ms).bind(limit).fetch_all(&mut *conn).await?;
            // Results have a table of their own, which keeps the markers small. They expire together.
            for row in &swept {
                sqlx::query(statements::sweep_result())
                    .bind(row.try_get::<&str, _>(0)?)
                    .bind(row.try_get::<&str, _>(1)?)
                    .bind(row.try_get::<&[u8], _>(2)?)
                    .execute(&mut *conn)
                    .await?;
            }
            Ok(swept.len() as u64)
        })
        .await
    }

    async fn forget_live_time(&self, before_ms: i64) -> Result<(), Error> {
        self.write(doing::FORGET_LIVE_TIME, async |conn| {
            sqlx::query(statements::forget_live_time()).bind(before_ms).execute(conn).await?;
            Ok(())
        })
        .await
    }
}
