//! A migrated PostgreSQL database with a table for effects.

use std::time::Duration;

use oncebox_core::BoxError;
use oncebox_postgres::PostgresStore;
use oncebox_servers::database::{TestDatabase, test_database};
use oncebox_testing::conformance::{EFFECT, HostileStatements, InboxRow, NestedEnd, TransactionBody};
use oncebox_testing::{Capabilities, Fixture, MigratingFixture, SqlFixture, TestTime};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

#[derive(Clone)]
pub(crate) struct Postgres {
    pub(crate) database: TestDatabase,
    pub(crate) store: PostgresStore,
    /// How the store reaches the database.
    url: String,
}

impl Postgres {
    /// The same database through another store.
    pub(crate) fn through(&self, store: PostgresStore) -> Self {
        Self { store, ..self.clone() }
    }
}

/// A database that was migrated by its owner, who also uses it.
pub(crate) async fn as_owner(test: &str) -> Option<Postgres> {
    let database = test_database(test).await?;
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query("create table effect (name text not null)").execute(store.pool()).await.unwrap();
    Some(Postgres { url: database.url(), database, store })
}

/// The same database as a role that has the documented grants and nothing else.
pub(crate) async fn as_least_privileged(test: &str) -> Option<Postgres> {
    let owner = as_owner(test).await?;
    let role = format!("app_{}", owner.database.url().rsplit('/').next().unwrap());
    let sql = format!(
        "create role \"{role}\" login; grant select, insert on effect to \"{role}\"; {}",
        owner.store.grants_sql(&role)
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(owner.store.pool()).await.unwrap();
    owner.store.pool().close().await;
    let url = owner.database.url_as(&role);
    let store = PostgresStore::connect(&url).await.unwrap();
    Some(Postgres { database: owner.database, store, url })
}

impl Fixture for Postgres {
    type Store = PostgresStore;

    fn capabilities(&self) -> Capabilities {
        Capabilities { transactional: true, counts_live_time: true, counts_crashes: true }
    }

    fn store(&self) -> PostgresStore {
        self.store.clone()
    }

    async fn effect(&self, conn: &mut PgConnection, name: &str) -> Result<(), BoxError> {
        sqlx::query("insert into effect (name) values ($1)").bind(name).execute(conn).await?;
        Ok(())
    }

    async fn effects(&self, name: &str) -> u64 {
        let count = sqlx::query_scalar("select count(*) from effect where name = $1").bind(name);
        let count: i64 = count.fetch_one(self.store.pool()).await.unwrap();
        count.cast_unsigned()
    }

    fn travel(&self, time: Duration) {
        self.store.travel(time);
    }

    async fn reopen(&self) -> Option<Self> {
        self.store.pool().close().await;
        Some(self.through(PostgresStore::connect(&self.url).await.unwrap()))
    }

    async fn transaction(&self, commits: bool, body: TransactionBody<PgConnection>) -> bool {
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
        // The role of a program may not.
        let mut owner = PgConnection::connect(&self.database.url()).await.unwrap();
        sqlx::query("update oncebox.layout set hash = 'other'").execute(&mut owner).await.unwrap();
        true
    }

    async fn inbox_view(&self) -> Option<Vec<InboxRow>> {
        let rows =
            "select id, processed_on_utc is not null, error from oncebox.inbox_message order by lane, pos";
        let rows: Vec<(Option<String>, bool, Option<String>)> =
            sqlx::query_as(rows).fetch_all(self.store.pool()).await.unwrap();
        let row = |(id, is_processed, error)| InboxRow { id, is_processed, error };
        Some(rows.into_iter().map(row).collect())
    }
}

impl SqlFixture for Postgres {
    const HARMLESS: &'static [&'static str] =
        &["savepoint s", "select 1/0", "rollback to s", "set constraints all immediate", EFFECT];

    async fn hostile(&self) -> Vec<HostileStatements> {
        let table: &[&[&str]] = &[
            &[EFFECT, "COMMIT"],
            &[EFFECT, "COMMIT", EFFECT],
            &[EFFECT, "/* sly */ commit", EFFECT],
            &[EFFECT, "COMMIT AND CHAIN", EFFECT],
            &[EFFECT, "ROLLBACK"],
            &[EFFECT, "ROLLBACK", EFFECT],
            &[EFFECT, "ROLLBACK; BEGIN", EFFECT, "COMMIT"],
            &[EFFECT, "ROLLBACK AND CHAIN", EFFECT],
            &[EFFECT, "select 1/0", EFFECT],
            &[EFFECT, "select 1/0", "ROLLBACK", EFFECT],
        ];
        // A transaction that is lost may be the work of an error that does not come again.
        let hostile =
            |statements: &&'static [&'static str]| HostileStatements { statements, is_rejected: false };
        table.iter().map(hostile).collect()
    }

    async fn execute(conn: &mut PgConnection, statement: &'static str) {
        let _ = Executor::execute(conn, statement).await;
    }

    async fn nest(&self, conn: &mut PgConnection, end: NestedEnd) -> Result<(), BoxError> {
        let mut nested = conn.begin().await?;
        self.effect(&mut nested, "a").await?;
        match end {
            NestedEnd::Commit => nested.commit().await?,
            NestedEnd::Rollback => nested.rollback().await?,
            NestedEnd::Drop => drop(nested),
            NestedEnd::Fail => Self::execute(&mut nested, "select 1/0").await,
            NestedEnd::Forget => std::mem::forget(nested),
        }
        Ok(())
    }

    async fn use_pool(&self) {
        for _ in 0..20 {
            let scratch = "create temporary table if not exists scratch (n int)";
            sqlx::query(scratch).execute(self.store.pool()).await.unwrap();
        }
    }
}

/// An empty database, and how it gets a schema.
#[derive(Clone)]
pub(crate) struct EmptyDatabase(TestDatabase);

pub(crate) async fn empty_database(test: &str) -> Option<EmptyDatabase> {
    let database = test_database(test).await?;
    // Whatever a server's settings are, migrations work.
    let mut admin = PgConnection::connect(&database.url()).await.unwrap();
    let name = database.url().rsplit('/').next().unwrap().to_owned();
    let setting = format!("alter database {name} set default_transaction_isolation = 'repeatable read'");
    sqlx::query(AssertSqlSafe(setting)).execute(&mut admin).await.unwrap();
    Some(EmptyDatabase(database))
}

impl MigratingFixture for EmptyDatabase {
    type Store = PostgresStore;

    async fn connect(&self) -> PostgresStore {
        PostgresStore::connect(&self.0.url()).await.unwrap()
    }

    async fn migrate(&self, store: &PostgresStore) {
        store.migrate().await.unwrap();
    }

    async fn run_printed_sql(&self, store: &PostgresStore) {
        sqlx::raw_sql(AssertSqlSafe(store.migration_sql())).execute(store.pool()).await.unwrap();
    }

    async fn schema_version(&self, store: &PostgresStore) -> (i64, i64) {
        store.schema_version().await.unwrap()
    }

    async fn record_version(&self, store: &PostgresStore, version: i64) {
        let insert = sqlx::query("insert into oncebox.version (version) values ($1)");
        insert.bind(i32::try_from(version).unwrap()).execute(store.pool()).await.unwrap();
    }

    async fn count_objects(&self, store: &PostgresStore) -> i64 {
        let schemas = "select count(*) from pg_namespace where nspname = 'oncebox'";
        sqlx::query_scalar(schemas).fetch_one(store.pool()).await.unwrap()
    }

    async fn count_versions(&self, store: &PostgresStore) -> i64 {
        sqlx::query_scalar("select count(*) from oncebox.version").fetch_one(store.pool()).await.unwrap()
    }
}
