//! SQLite: a file in a folder of its own, with WAL and `synchronous = FULL`.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use oncebox::{Inbox, SqliteStore};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Executor, QueryBuilder, Sqlite, SqliteConnection, SqlitePool};
use tempfile::TempDir;

use super::{
    DatabaseKind, Ground, HandlerCalls, Server, TABLES, inbox_handlers, open_pool, prepared_statements,
};
use crate::business::HandlerWork;
use crate::message::OrderPaid;

impl DatabaseKind for Sqlite {
    const STORE: &'static str = "sqlite";
    const BEGIN: &'static str = "BEGIN IMMEDIATE";
    // There is one writer: callers that wait in line for it are faster than connections that poll for it.
    const POOLS: &'static [u32] = &[1];
    const INBOX_POOL: u32 = 4;
    const ONE_WRITER: bool = true;

    type Server = Folder;
    type Ground = SqliteGround;
    type Store = SqliteStore;

    prepared_statements!(SqliteConnection);

    fn insert_many<'c>(
        conn: &'c mut SqliteConnection,
        orders: &'c [OrderPaid],
    ) -> BoxFuture<'c, Result<(), sqlx::Error>> {
        let mut insert = QueryBuilder::new("INSERT INTO ledger (order_id, customer, cents, note) ");
        insert.push_values(orders, |mut row, paid| {
            row.push_bind(paid.order_id)
                .push_bind(&*paid.customer)
                .push_bind(paid.cents)
                .push_bind(&*paid.note);
        });
        async move { insert.build().execute(conn).await.map(drop) }.boxed()
    }
}

/// A folder for this run's databases.
#[derive(Debug)]
pub(crate) struct Folder {
    folder: TempDir,
    files: AtomicU64,
}

impl Server for Folder {
    type DatabaseKind = Sqlite;

    async fn start() -> Result<Folder> {
        let folder = tempfile::Builder::new().prefix("oncebox-bench-").tempdir();
        Ok(Folder { folder: folder.context("creating a temporary folder")?, files: AtomicU64::new(0) })
    }

    async fn fresh(&self) -> Result<SqliteGround> {
        // A folder per database: `discard` also removes the files that SQLite creates beside it.
        let folder = self.folder.path().join(self.files.fetch_add(1, Ordering::Relaxed).to_string());
        std::fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let options = SqliteConnectOptions::new()
            .filename(folder.join("bench.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full);
        let file = SqliteGround { folder, options };
        let pool = file.pool(1).await?;
        pool.execute(TABLES).await.context("creating tables")?;
        let store = SqliteStore::new(pool);
        store.migrate().await?;
        store.pool().close().await;
        Ok(file)
    }
}

/// A database with empty tables.
#[derive(Debug)]
pub(crate) struct SqliteGround {
    folder: std::path::PathBuf,
    options: SqliteConnectOptions,
}

impl Ground for SqliteGround {
    type DatabaseKind = Sqlite;

    async fn pool(&self, connections: u32) -> Result<SqlitePool> {
        open_pool(connections, self.options.clone()).await
    }

    fn store(&self, pool: SqlitePool) -> Result<SqliteStore> {
        Ok(SqliteStore::new(pool))
    }

    async fn inbox(
        &self,
        pool: SqlitePool,
        batching: HandlerCalls,
        work: HandlerWork,
    ) -> Result<Inbox<SqliteStore>> {
        build_inbox(self.store(pool)?, batching, work).await
    }

    async fn ledger_rows(&self) -> Result<u64> {
        let pool = self.pool(1).await?;
        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM ledger").fetch_one(&pool).await?;
        pool.close().await;
        Ok(u64::try_from(rows)?)
    }

    async fn crossing_updates(&self) -> Result<u64> {
        let pool = self.pool(1).await?;
        let updates: i64 = sqlx::query_scalar("SELECT sum(updates) FROM crossing").fetch_one(&pool).await?;
        pool.close().await;
        Ok(u64::try_from(updates)?)
    }

    async fn log_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    async fn discard(self) -> Result<()> {
        std::fs::remove_dir_all(&self.folder).with_context(|| format!("removing {}", self.folder.display()))
    }
}

inbox_handlers!(Sqlite, SqliteConnection, SqliteStore);
