//! The schema: its versions, and how a database gets there.

use oncebox_core::Error;
use oncebox_core::store::{doing, refusal};
use sqlx::{Executor, SqliteConnection};

use crate::fault::failed;
use crate::statements;
use crate::store::SqliteStore;

/// Every step, in order; the first one leads to version 1.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001_inbox.sql"),
    include_str!("migrations/0002_log.sql"),
    include_str!("migrations/0003_set_at.sql"),
    include_str!("migrations/0004_deaths_without_progress.sql"),
    include_str!("migrations/0005_outbox.sql"),
    include_str!("migrations/0006_relays.sql"),
];

impl SqliteStore {
    /// Brings the database to the version of this crate. Any number of processes may do so at once; a database
    /// that is there already is left alone.
    pub async fn migrate(&self) -> Result<(), Error> {
        self.write(doing::MIGRATE, async |conn| {
            // Read as the writer: of processes that start at once, one migrates and the others find nothing to do.
            let from = usize::try_from(version(conn).await?).unwrap_or(0);
            for step in MIGRATIONS.iter().skip(from) {
                conn.execute(sqlx::raw_sql(*step)).await?;
            }
            Ok(())
        })
        .await?;
        // Also refuses a database of a newer version, which the loop above leaves alone.
        self.check_version().await
    }

    /// The SQL that `migrate` runs on an empty database, for migration tools.
    pub fn migration_sql() -> String {
        MIGRATIONS.join("\n")
    }

    /// The version of the schema that is there (0 where there is none), and the one that this crate needs.
    pub async fn schema_version(&self) -> Result<(i64, i64), Error> {
        let mut conn = self.pool.acquire().await.map_err(failed(doing::CONNECT))?;
        let there = version(&mut conn).await.map_err(failed(doing::READ_VERSION))?;
        Ok((there, MIGRATIONS.len() as i64))
    }

    pub(crate) async fn check_version(&self) -> Result<(), Error> {
        let (there, needed) = self.schema_version().await?;
        refusal::check_version(there, needed, "Oncebox tables", "SqliteStore::migration_sql()")
    }

    /// Logs settings that could lose a commit. Not an error: some are right in tests.
    pub(crate) async fn check_durability(&self) -> Result<(), Error> {
        let mut conn = self.pool.acquire().await.map_err(failed(doing::CONNECT))?;
        let journal: String = sqlx::query_scalar("pragma journal_mode")
            .fetch_one(&mut *conn)
            .await
            .map_err(failed(doing::READ_SETTINGS))?;
        let synchronous: i64 = sqlx::query_scalar("pragma synchronous")
            .fetch_one(&mut *conn)
            .await
            .map_err(failed(doing::READ_SETTINGS))?;
        // 2 is FULL. A database in memory survives no power failure anyway.
        if journal != "memory" && synchronous < 2 {
            tracing::error!(
                synchronous,
                "a power failure can lose acknowledged messages: set `synchronous = FULL` on the pool's connections"
            );
        }
        if journal != "wal" && journal != "memory" {
            tracing::warn!(journal, "readers and the writer block each other: set `journal_mode = WAL`");
        }
        Ok(())
    }
}

/// The version that the database has; 0 if it has none.
async fn version(conn: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    let tables: i64 = sqlx::query_scalar(statements::has_version_table()).fetch_one(&mut *conn).await?;
    if tables == 0 {
        return Ok(0);
    }
    Ok(sqlx::query_scalar::<_, Option<i64>>(statements::version()).fetch_one(conn).await?.unwrap_or(0))
}
