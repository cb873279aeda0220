//! A SQLite database in memory as a fixture.

use std::time::Duration;

use oncebox_core::BoxError;
use oncebox_sqlite::SqliteStore;
use oncebox_testing::{Capabilities, Fixture, TestTime};
use sqlx::SqliteConnection;

#[derive(Clone)]
pub(crate) struct Sqlite {
    store: SqliteStore,
}

pub(crate) async fn in_memory(_test: &str) -> Option<Sqlite> {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query("create table effect (name text not null)").execute(store.pool()).await.unwrap();
    Some(Sqlite { store })
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
