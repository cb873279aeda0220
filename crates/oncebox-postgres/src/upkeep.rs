//! Retention.

use std::time::Duration;

use oncebox_core::Error;
use oncebox_core::store::{LiveTime, Upkeep};
use sqlx::Row;

use crate::fault::failed;
use crate::store::PostgresStore;

impl Upkeep for PostgresStore {
    async fn beat(&self, tolerance: Duration) -> Result<(), Error> {
        let doing = "record that a process is alive";
        let beat = sqlx::query(self.statements.beat.clone())
            .bind(i64::try_from(tolerance.as_millis()).unwrap_or(i64::MAX))
            .bind(self.clock_offset_ms());
        self.line(doing).await?.execute(beat).await.map_err(self.failed(doing))?;
        Ok(())
    }

    async fn live_time(&self) -> Result<(Vec<LiveTime>, i64), Error> {
        let doing = "read the live time";
        let read = sqlx::query(self.statements.live_time.clone()).bind(self.clock_offset_ms());
        let rows = self.line(doing).await?.fetch_all(read).await.map_err(self.failed(doing))?;
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
        let doing = "sweep old markers";
        let sweep = sqlx::query(self.statements.sweep.clone())
            // Planned anew each time: a plan made while the table was small would scan it for ever.
            .persistent(false)
            .bind(before_ms)
            .bind(i64::from(limit));
        let row = self.line(doing).await?.fetch_one(sweep).await.map_err(self.failed(doing))?;
        let swept: i64 = row.try_get(0).map_err(failed(doing))?;
        Ok(swept.cast_unsigned())
    }

    async fn forget_live_time(&self, before_ms: i64) -> Result<(), Error> {
        let doing = "forget old live time";
        let forget = sqlx::query(self.statements.forget_live_time.clone()).bind(before_ms);
        self.line(doing).await?.execute(forget).await.map_err(self.failed(doing))?;
        Ok(())
    }
}
