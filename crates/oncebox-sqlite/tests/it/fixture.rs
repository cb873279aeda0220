//! A migrated SQLite database with a table for effects.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::BoxError;
use oncebox_sqlite::SqliteStore;
use oncebox_testing::conformance::{EFFECT, HostileStatements, InboxRow, NestedEnd, TransactionBody};
use oncebox_testing::{Capabilities, Fixture, MigratingFixture, SqlFixture, TestTime};
use sqlx::{Connection, Executor, SqliteConnection};
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

    async fn reopen(&self) -> Option<Self> {
        let folder = self.folder.as_ref()?;
        self.store.pool().close().await;
        Some(self.through(SqliteStore::connect(&path_in(folder)).await.unwrap()))
    }

    async fn transaction(&self, commits: bool, body: TransactionBody<SqliteConnection>) -> bool {
        let mut tx = self.store.pool().begin().await.unwrap();
        body(&mut tx).await;
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        true
    }

    async fn change_lane_hash(&self) -> bool {
        let update = "update oncebox_layout set hash = 'other'";
        sqlx::query(update).execute(self.store.pool()).await.unwrap();
        true
    }

    async fn inbox_view(&self) -> Option<Vec<InboxRow>> {
        let rows = "select id, processed_on_utc is not null, error from oncebox_inbox_message order by pos";
        let rows: Vec<(Option<String>, bool, Option<String>)> =
            sqlx::query_as(rows).fetch_all(self.store.pool()).await.unwrap();
        let row = |(id, is_processed, error)| InboxRow { id, is_processed, error };
        Some(rows.into_iter().map(row).collect())
    }
}

impl SqlFixture for Sqlite {
    // SQLite undoes a failed statement by itself, and goes on.
    const HARMLESS: &'static [&'static str] =
        &["savepoint s", EFFECT, "rollback to s", "insert into single values (1)", EFFECT];

    async fn hostile(&self) -> Vec<HostileStatements> {
        let single = "create table single (id integer primary key); insert into single values (1)";
        sqlx::raw_sql(single).execute(self.store.pool()).await.unwrap();
        // A handler that runs COMMIT will do so again. A lost transaction may come from an error that does not come again.
        let table: &[(&[&str], bool)] = &[
            (&[EFFECT, "COMMIT"], true),
            (&[EFFECT, "COMMIT", EFFECT], true),
            (&[EFFECT, "END", "BEGIN", EFFECT], true),
            (&[EFFECT, "ROLLBACK"], false),
            (&[EFFECT, "ROLLBACK", EFFECT], false),
            (&[EFFECT, "ROLLBACK", "BEGIN", EFFECT, "COMMIT"], true),
            (&[EFFECT, "insert or rollback into single values (1)"], false),
            (&[EFFECT, "insert or rollback into single values (1)", EFFECT], false),
        ];
        let hostile = |&(statements, is_rejected)| HostileStatements { statements, is_rejected };
        table.iter().map(hostile).collect()
    }

    async fn execute(conn: &mut SqliteConnection, statement: &'static str) {
        let _ = Executor::execute(conn, statement).await;
    }

    async fn nest(&self, conn: &mut SqliteConnection, end: NestedEnd) -> Result<(), BoxError> {
        let mut nested = conn.begin().await?;
        self.effect(&mut nested, "a").await?;
        match end {
            NestedEnd::Commit => nested.commit().await?,
            NestedEnd::Rollback => nested.rollback().await?,
            NestedEnd::Drop => drop(nested),
            NestedEnd::Fail => Self::execute(&mut nested, "select * from no_such_table").await,
            NestedEnd::Forget => std::mem::forget(nested),
        }
        Ok(())
    }

    async fn use_pool(&self) {
        for _ in 0..8 {
            let scratch = "create table if not exists scratch (n)";
            sqlx::query(scratch).execute(self.store.pool()).await.unwrap();
        }
    }
}

/// An empty file, and how it gets a schema.
#[derive(Clone)]
pub(crate) struct EmptyFile(Arc<TempDir>);

pub(crate) async fn empty_file(_test: &str) -> Option<EmptyFile> {
    Some(EmptyFile(Arc::new(tempfile::tempdir().unwrap())))
}

impl MigratingFixture for EmptyFile {
    type Store = SqliteStore;

    async fn connect(&self) -> SqliteStore {
        SqliteStore::connect(&path_in(&self.0)).await.unwrap()
    }

    async fn migrate(&self, store: &SqliteStore) {
        store.migrate().await.unwrap();
    }

    async fn run_printed_sql(&self, store: &SqliteStore) {
        let printed = sqlx::AssertSqlSafe(SqliteStore::migration_sql());
        sqlx::raw_sql(printed).execute(store.pool()).await.unwrap();
    }

    async fn schema_version(&self, store: &SqliteStore) -> (i64, i64) {
        store.schema_version().await.unwrap()
    }

    async fn record_version(&self, store: &SqliteStore, version: i64) {
        let insert = sqlx::query("insert into oncebox_version values (?, 0)").bind(version);
        insert.execute(store.pool()).await.unwrap();
    }

    async fn count_objects(&self, store: &SqliteStore) -> i64 {
        sqlx::query_scalar("select count(*) from sqlite_schema").fetch_one(store.pool()).await.unwrap()
    }

    async fn count_versions(&self, store: &SqliteStore) -> i64 {
        sqlx::query_scalar("select count(*) from oncebox_version").fetch_one(store.pool()).await.unwrap()
    }
}
