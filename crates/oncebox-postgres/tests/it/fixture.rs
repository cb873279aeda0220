//! A migrated PostgreSQL database with a table for effects.

use std::time::Duration;

use oncebox_core::BoxError;
use oncebox_postgres::PostgresStore;
use oncebox_servers::database::{TestDatabase, test_database};
use oncebox_testing::TestTime;
use oncebox_testing::{Capabilities, Fixture};
use sqlx::{AssertSqlSafe, PgConnection};

#[derive(Clone)]
pub(crate) struct Postgres {
    pub(crate) database: TestDatabase,
    pub(crate) store: PostgresStore,
}

/// A database that was migrated by its owner, who also uses it.
pub(crate) async fn as_owner(test: &str) -> Option<Postgres> {
    let database = test_database(test).await?;
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query("create table effect (name text not null)").execute(store.pool()).await.unwrap();
    Some(Postgres { database, store })
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
    let store = PostgresStore::connect(&owner.database.url_as(&role)).await.unwrap();
    Some(Postgres { database: owner.database, store })
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
}
