//! A migrated SQLite database with a table for effects.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::BoxError;
use oncebox_sqlite::SqliteStore;
use oncebox_testing::TestTime;
use oncebox_testing::{Capabilities, Fixture};
use sqlx::SqliteConnection;
use tempfile::TempDir;

#[derive(Clone)]
pub(crate) struct Sqlite {
    pub(crate) store: SqliteStore,
    folder: Option<Arc<TempDir>>,
}

pub(crate) async fn in_a_file(_test: &str) -> Option<Sqlite> {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::connect(&path_in(&folder)).await.unwrap();
    Some(Sqlite::new(store, Some(Arc::new(folder))).await)
}

pub(crate) async fn in_memory(_test: &str) -> Option<Sqlite> {
    Some(Sqlite::new(SqliteStore::connect("sqlite::memory:").await.unwrap(), None).await)
}

fn path_in(folder: &TempDir) -> String {
    folder.path().join("inbox.db").to_str().unwrap().to_owned()
}

impl Sqlite {
    /// Where the file is, for other processes.
    pub(crate) fn path(&self) -> String {
        path_in(self.folder.as_ref().expect("a database in memory has no path"))
    }

    /// The same database through another store.
    pub(crate) fn through(&self, store: SqliteStore) -> Self {
        Self { store, ..self.clone() }
    }

    async fn new(store: SqliteStore, folder: Option<Arc<TempDir>>) -> Self {
        store.migrate().await.unwrap();
        sqlx::query("create table effect (name text not null)").execute(store.pool()).await.unwrap();
        Self { store, folder }
    }
}

impl Fixture for Sqlite {
    type Store = SqliteStore;

    fn capabilities(&self) -> Capabilities {
        Capabilities { transactional: true, counts_live_time: true, counts_crashes: true }
    }

    fn store(&self) -> SqliteStore {
        self.store.clone()
    }

    async fn effect(&self, conn: &mut SqliteConnection, name: &str) -> Result<(), BoxError> {
        sqlx::query("insert into effect (name) values (?)").bind(name).execute(conn).await?;
        Ok(())
    }

    async fn effects(&self, name: &str) -> u64 {
        let count = sqlx::query_scalar("select count(*) from effect where name = ?").bind(name);
        let count: i64 = count.fetch_one(self.store.pool()).await.unwrap();
        count.cast_unsigned()
    }

    fn travel(&self, time: Duration) {
        self.store.travel(time);
    }
}
