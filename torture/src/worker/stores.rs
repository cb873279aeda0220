//! Connecting with a pool of a given size, and creating the tables.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use oncebox::{PostgresStore, SqliteStore};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Short, because a half-open connection is not detected sooner. A response that is only late is requested again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) async fn sqlite(path: &str, connections: u32) -> Result<SqliteStore> {
    let options = SqliteConnectOptions::from_str(path)
        .context("the path of the database")?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT);
    // The first connection creates the file and its journal, as in a user's program.
    drop(SqliteStore::connect(path).await?);
    let pool = SqlitePoolOptions::new().max_connections(connections).test_before_acquire(false);
    let store = SqliteStore::new(pool.connect_with(options).await?);
    store.migrate().await?;
    Ok(store)
}

pub(crate) async fn postgres(url: &str, connections: u32, schema: &str) -> Result<PostgresStore> {
    let options = PgConnectOptions::from_str(url).context("the URL of the database")?;
    let pool = PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false);
    let store = PostgresStore::new(pool.connect_with(options).await?)
        .with_schema(schema)?
        .answer_timeout(ANSWER_TIMEOUT);
    store.migrate().await?;
    Ok(store)
}
