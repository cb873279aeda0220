//! Leased lanes: ranges of messages that a relay reads and settles.

use oncebox_core::store::{
    Account, AccountStep, Batch, Fence, ProcessId, Progress, Ranges, TakeLimits, Taker, doing,
};
use oncebox_core::{DeadHead, Error, mutant};
use sqlx::SqliteConnection;

use crate::fault::failed;
use crate::json::to_json;
use crate::statements;
use crate::store::SqliteStore;
use crate::work::take;

impl Ranges for SqliteStore {
    async fn lease_lane(&self, taker: Taker<'_>, process: ProcessId) -> Result<Option<Fence>, Error> {
        self.write(doing::LEASE_LANE, async |conn| {
            let process = &process.0.as_bytes()[..];
            let next = sqlx::query_scalar(statements::next_fence()).bind(process);
            let Some(fence): Option<i64> = next.fetch_optional(&mut *conn).await? else { return Ok(None) };
            let leased: Option<i64> = sqlx::query_scalar(statements::lease_lane())
                .bind(taker.handler.0)
                .bind(taker.lane)
                .bind(process)
                .bind(fence)
                .bind(to_json(taker.kinds.iter().map(String::as_str))?)
                .bind(taker.ordered.map(DeadHead::name))
                .fetch_optional(conn)
                .await?;
            Ok(leased.map(Fence))
        })
        .await
    }

    async fn read_range(
        &self,
        taker: Taker<'_>,
        fence: Fence,
        after: i64,
        limits: TakeLimits,
    ) -> Result<Option<Batch>, Error> {
        let read = async {
            // All statements must see the same: a transaction that only reads.
            let mut tx = self.pool.begin().await?;
            let batch = match is_leased(&mut tx, taker, fence).await? {
                true => take(&mut tx, taker, after, limits, self.clock_offset_ms()).await?,
                false => None,
            };
            tx.commit().await?;
            Ok(batch)
        };
        read.await.map_err(failed(doing::READ_RANGE))
    }

    async fn settle_range(
        &self,
        taker: Taker<'_>,
        fence: Fence,
        account: &Account,
        progress: Option<Progress>,
    ) -> Result<bool, Error> {
        let offset_ms = self.clock_offset_ms();
        self.write(doing::SETTLE_RANGE, async |conn| {
            if !is_leased(&mut *conn, taker, fence).await? && !mutant!("relay_settles_without_fence") {
                return Ok(false);
            }
            for step in account.steps() {
                match step {
                    AccountStep::WriteTasks(messages) => {
                        self.unfinished(taker, messages).write_tasks(&mut *conn, None).await?;
                    }
                    AccountStep::WriteDeadLetters(messages) => {
                        self.unfinished(taker, messages).write_dead_letters(&mut *conn).await?;
                    }
                    // A relay has no markers, and its lanes need no crash care.
                    AccountStep::ForgetAttempt(_)
                    | AccountStep::SettleMarkers(..)
                    | AccountStep::Unclaim(_)
                    | AccountStep::RecordResults(_) => {}
                }
            }
            if let Some(progress) = progress {
                sqlx::query(statements::advance())
                    .bind(progress.handler.0)
                    .bind(progress.lane)
                    .bind(progress.epoch)
                    .bind(progress.pos)
                    .bind(offset_ms)
                    .execute(conn)
                    .await?;
            }
            Ok(true)
        })
        .await
    }

    async fn release_lane(&self, taker: Taker<'_>, fence: Fence) -> Result<(), Error> {
        self.write(doing::RELEASE_LANE, async |conn| {
            let release = sqlx::query(statements::release_lane()).bind(taker.handler.0).bind(taker.lane);
            release.bind(fence.0).execute(conn).await.map(drop)
        })
        .await
    }
}

async fn is_leased(conn: &mut SqliteConnection, taker: Taker<'_>, fence: Fence) -> Result<bool, sqlx::Error> {
    let held = sqlx::query_scalar(statements::is_leased()).bind(taker.handler.0).bind(taker.lane);
    held.bind(fence.0).fetch_one(conn).await
}
