//! Leased lanes: ranges of messages that a relay reads and settles.

use std::time::Duration;

use oncebox_core::store::{
    Account, AccountStep, Batch, Fence, ProcessId, Progress, Ranges, StoredMessage, TakeLimits, Taker, doing,
};
use oncebox_core::{DeadHead, Error};
use sqlx::Row;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;

use crate::connection::TimedConnection;
use crate::fault::failed;
use crate::store::PostgresStore;
use crate::work::{read_batch, read_message_id, read_taken};

impl Ranges for PostgresStore {
    async fn lease_lane(&self, taker: Taker<'_>, process: ProcessId) -> Result<Option<Fence>, Error> {
        let doing = doing::LEASE_LANE;
        let lease = sqlx::query(self.statements.lease_lane.clone())
            .bind(taker.handler.0)
            .bind(i32::from(taker.lane))
            .bind(process.0)
            .bind(taker.kinds)
            .bind(taker.ordered.map(DeadHead::name));
        let row = self.connections.fetch_optional(doing, lease).await?;
        row.map(|row| row.try_get(0).map(Fence)).transpose().map_err(failed(doing))
    }

    async fn read_range(
        &self,
        taker: Taker<'_>,
        fence: Fence,
        after: i64,
        limits: TakeLimits,
    ) -> Result<Option<Batch>, Error> {
        let doing = doing::READ_RANGE;
        let read = sqlx::query(self.statements.read_range.clone())
            .bind(taker.handler.0)
            .bind(i32::from(taker.lane))
            .bind(fence.0)
            .bind(taker.kinds)
            .bind(taker.ordered.map(DeadHead::name))
            .bind(after)
            .bind(i32::try_from(limits.messages).unwrap_or(i32::MAX))
            .bind(i64::from(limits.positions))
            .bind(i64::try_from(limits.bytes).unwrap_or(i64::MAX))
            .bind(limits.open_tasks.map(|tasks| i32::try_from(tasks).unwrap_or(i32::MAX)))
            .bind(self.clock_offset_ms());
        let rows = self.connections.fetch_all(doing, read).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        read_batch(first, &rows, taker.lane, limits, read_published).map(Some).map_err(failed(doing))
    }

    async fn settle_range(
        &self,
        taker: Taker<'_>,
        fence: Fence,
        account: &Account,
        progress: Option<Progress>,
    ) -> Result<bool, Error> {
        let doing = doing::SETTLE_RANGE;
        // Without exceptions one statement is the transaction.
        if account.is_empty() {
            let settle = self.settle_lane(taker, fence, progress);
            return Ok(self.connections.fetch_optional(doing, settle).await?.is_some());
        }
        self.connections
            .in_transaction(doing, Duration::ZERO, async |tx: &mut TimedConnection| {
                // First the lane's lock, under which the lease holds until the commit.
                if tx.fetch_optional(self.settle_lane(taker, fence, progress)).await?.is_none() {
                    return Ok(false);
                }
                for step in account.steps() {
                    let write = match step {
                        AccountStep::WriteTasks(messages) => {
                            self.write_unfinished(&self.statements.write_tasks, taker, messages)
                        }
                        AccountStep::WriteDeadLetters(messages) => {
                            self.write_unfinished(&self.statements.write_dead_letters, taker, messages)
                        }
                        // A relay has no markers, and its lanes need no crash care.
                        AccountStep::ForgetAttempt(_)
                        | AccountStep::SettleMarkers(..)
                        | AccountStep::Unclaim(_)
                        | AccountStep::RecordResults(_) => continue,
                    };
                    tx.execute(write).await?;
                }
                Ok(true)
            })
            .await
    }

    async fn release_lane(&self, taker: Taker<'_>, fence: Fence) -> Result<(), Error> {
        let release = sqlx::query(self.statements.release_lane.clone())
            .bind(taker.handler.0)
            .bind(i32::from(taker.lane))
            .bind(fence.0);
        self.connections.execute(doing::RELEASE_LANE, release).await.map(drop)
    }
}

impl PostgresStore {
    fn settle_lane(
        &self,
        taker: Taker<'_>,
        fence: Fence,
        progress: Option<Progress>,
    ) -> Query<'static, sqlx::Postgres, PgArguments> {
        sqlx::query(self.statements.settle_range.clone())
            .bind(taker.handler.0)
            .bind(i32::from(taker.lane))
            .bind(fence.0)
            .bind(progress.map(|progress| progress.epoch))
            .bind(progress.map(|progress| progress.pos))
    }
}

/// A published message that was read from a leased lane.
fn read_published(row: &PgRow, lane: u16) -> Result<StoredMessage, sqlx::Error> {
    let message = read_taken(row, lane)?;
    Ok(StoredMessage { message_id: read_message_id(row)?, ..message })
}
