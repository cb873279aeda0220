//! Retention.

use std::time::Duration;

use oncebox_core::Error;
use oncebox_core::store::row::LiveTimeRow;
use oncebox_core::store::{LiveTime, Upkeep, doing, row};
use sqlx::{FromRow, Row};

use crate::fault::failed;
use crate::store::PostgresStore;

impl Upkeep for PostgresStore {
    async fn beat(&self, tolerance: Duration) -> Result<(), Error> {
        let doing = doing::BEAT;
        let beat = sqlx::query(self.statements.beat.clone())
            .bind(row::duration_to_ms(tolerance))
            .bind(self.clock_offset_ms());
        self.connections.execute(doing, beat).await?;
        Ok(())
    }

    async fn live_time(&self) -> Result<(Vec<LiveTime>, i64), Error> {
        let doing = doing::READ_LIVE_TIME;
        let read = sqlx::query(self.statements.live_time.clone()).bind(self.clock_offset_ms());
        let rows = self.connections.fetch_all(doing, read).await?;
        let rows: Result<Vec<LiveTimeRow>, _> = rows.iter().map(LiveTimeRow::from_row).collect();
        rows.map(row::live_time).map_err(failed(doing))
    }

    async fn sweep(&self, before_ms: i64, limit: u32) -> Result<u64, Error> {
        let doing = doing::SWEEP;
        let sweep = sqlx::query(self.statements.sweep.clone())
            // Planned anew each time: a plan made while the table was small would scan it for ever.
            .persistent(false)
            .bind(before_ms)
            .bind(i64::from(limit));
        let row = self.connections.fetch_one(doing, sweep).await?;
        let swept: i64 = row.try_get(0).map_err(failed(doing))?;
        Ok(swept.cast_unsigned())
    }

    async fn forget_live_time(&self, before_ms: i64) -> Result<(), Error> {
        let doing = doing::FORGET_LIVE_TIME;
        let forget = sqlx::query(self.statements.forget_live_time.clone()).bind(before_ms);
        self.connections.execute(doing, forget).await?;
        Ok(())
    }
}
