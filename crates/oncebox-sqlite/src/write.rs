//! The store's own writes outside of handlers: migrations, imports, upkeep.

use std::time::{Duration, Instant};

use oncebox_core::store::Fault;
use oncebox_core::{AsyncFunc, Error};
use sqlx::{Sqlite, SqliteConnection, Transaction};

use crate::fault::{classify, failed};
use crate::store::SqliteStore;

/// How long such a write waits for the writer; handlers may hold it for a while.
const PATIENCE: Duration = Duration::from_secs(60);

impl SqliteStore {
    /// Runs statements in one write transaction.
    pub(crate) async fn write<R, F>(&self, doing: &'static str, statements: F) -> Result<R, Error>
    where
        for<'t> F: AsyncFnOnce(&'t mut SqliteConnection) -> Result<R, sqlx::Error>
            + AsyncFunc<&'t mut SqliteConnection, Result<R, sqlx::Error>, Fut: Send>
            + Send,
        R: Send,
    {
        self.write_within(PATIENCE, doing, statements).await
    }

    /// The same, waiting for the writer no longer than so.
    pub(crate) async fn write_within<R, F>(
        &self,
        patience: Duration,
        doing: &'static str,
        statements: F,
    ) -> Result<R, Error>
    where
        for<'t> F: AsyncFnOnce(&'t mut SqliteConnection) -> Result<R, sqlx::Error>
            + AsyncFunc<&'t mut SqliteConnection, Result<R, sqlx::Error>, Fut: Send>
            + Send,
        R: Send,
    {
        let _turn = self.line.wait(patience).await?;
        let mut tx = self.begin_write(patience).await.map_err(failed(doing))?;
        let result = statements(&mut tx).await.map_err(failed(doing))?;
        tx.commit().await.map_err(failed(doing))?;
        Ok(result)
    }

    async fn begin_write(&self, patience: Duration) -> Result<Transaction<'static, Sqlite>, sqlx::Error> {
        let started = Instant::now();
        loop {
            let pool = self.pool.clone();
            // In a task of its own: a caller that goes away must not leave a transaction half begun.
            let begun = tokio::spawn(async move { pool.begin_with("BEGIN IMMEDIATE").await }).await;
            match begun.unwrap_or(Err(sqlx::Error::WorkerCrashed)) {
                Err(error) if classify(&error) == Fault::LockTimeout && started.elapsed() < patience => {}
                begun => return begun,
            }
        }
    }
}
