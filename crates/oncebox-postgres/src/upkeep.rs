//! Retention.

use std::time::Duration;

use oncebox_core::Error;
use oncebox_core::store::{LiveTime, Upkeep};
use sqlx::Row;

use crate::fault::failed;
use crate::store::PostgresStore;

impl Upkeep for PostgresStore {
    async fn beat(&self, tolerance: Duration) -> Result<(), Error> {
        sqlx::query(self.statements.beat.clone())
            .bind(i64::try_from(tolerance.as_millis()).unwrap_or(i64::MAX))
            .bind(self.clock_offset_ms())
            .execute(&mut *self.acquire("record that a process is alive").await?)
            .await
            .map_err(self.failed("record that a process is alive"))?;
        Ok(())
    }

    async fn live_time(&self) -> Result<(Vec<LiveTime>, i64), Error> {
        let doing = "read the live time";
        let rows = sqlx::query(self.statements.live_time.clone())
            .bind(self.clock_offset_ms())
            .fetch_all(&mut *self.acquire(doing).await?)
            .await
            .map_err(self.failed(doing))?;
        let mut live = Vec::with_capacity(rows.len());
        let mut now_ms = 0;
        for row in rows {
            now_ms = row.try_get("now_ms").map_err(failed(doing))?;
            let from: Option<i64> = row.try_get("from_ms").map_err(failed(doing))?;
            let until: Option<i64> = row.try_get("until_ms").map_err(failed(doing))?;
            if let (Some(from_ms), Some(until_ms)) = (from, until) {
                live.push(LiveTime { from_ms, until_ms });
            }
        }
        Ok((live, now_ms))
    }

    async fn sweep(&self, before_ms: i64, limit: u32) -> Result<u64, Error> {
        let swept: i64 = sqlx::query_scalar(self.statements.sweep.clone())
            // Planned anew each time: a plan made while the table was small would scan it for ever.
            .persistent(false)
            .bind(before_ms)
            .bind(i64::from(limit))
            .fetch_one(&mut *self.acquire("sweep old markers").await?)
            .await
            .map_err(self.failed("sweep old markers"))?;
        Ok(swept.cast_unsigned())
    }

    async fn forget_live_time(&self, before_ms: i64) -> Result<(), Error> {
        sqlx::query(self.statements.forget_live_time.clone())
            .bind(before_ms)
            .execute(&mut *self.acquire("forget old live time").await?)
            .await
            .map_err(self.failed("forget old live time"))?;
        Ok(())
    }
}
