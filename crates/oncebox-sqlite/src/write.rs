//! The store's own writes outside of handlers: migrations, imports, upkeep.

use std::time::{Duration, Instant};

use oncebox_core::store::Fault;
use oncebox_core::{AsyncFunc, Error};
use sqlx::SqliteConnection;

use crate::fault::{classify, failed};
use crate::store::SqliteStore;
use crate::transaction::SqliteTx;

/// How long such a write waits for the writer; handlers may hold it for a while.
const WRITER_LIMIT: Duration = Duration::from_secs(60);
/// The time of handlers: none runs in such a write.
const NO_HANDLER: Duration = Duration::ZERO;

impl SqliteStore {
    /// Runs statements in one write transaction.
    pub(crate) async fn write<R, F>(&self, doing: &'static str, statements: F) -> Result<R, Error>
    where
        for<'t> F: AsyncFnOnce(&'t mut SqliteConnection) -> Result<R, sqlx::Error>
            + AsyncFunc<&'t mut SqliteConnection, Result<R, sqlx::Error>, Fut: Send>
            + Send,
        R: Send,
    {
        self.write_within(WRITER_LIMIT, doing, statements).await
    }

    /// The same, waiting for the writer no longer than so.
    pub(crate) async fn write_within<R, F>(
        &self,
        limit: Duration,
        doing: &'static str,
        statements: F,
    ) -> Result<R, Error>
    where
        for<'t> F: AsyncFnOnce(&'t mut SqliteConnection) -> Result<R, sqlx::Error>
            + AsyncFunc<&'t mut SqliteConnection, Result<R, sqlx::Error>, Fut: Send>
            + Send,
        R: Send,
    {
        let mut tx = self.begin_write(limit).await?;
        match statements(tx.connection()).await {
            Ok(result) => tx.commit().await.map(|()| result),
            Err(error) => {
                // Awaited: the writer is free when the caller gets the error.
                tx.rollback().await;
                Err(failed(doing)(error))
            }
        }
    }

    /// Asks again until the limit: another program may hold the writer without our queue.
    async fn begin_write(&self, limit: Duration) -> Result<SqliteTx, Error> {
        let started = Instant::now();
        loop {
            let left = limit.saturating_sub(started.elapsed());
            match self.begin_within(left, NO_HANDLER).await {
                // No pause here: SQLite has waited already, for its busy timeout.
                Err(error) if classify(&error) == Fault::LockTimeout && started.elapsed() < limit => {}
                begun => return begun,
            }
        }
    }
}
