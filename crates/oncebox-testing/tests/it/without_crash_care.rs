//! A store with a log that keeps the defaults of [`Care`](oncebox_core::store::Care) passes the suite too.

use std::time::Duration;

use oncebox_core::{BoxError, Error};
use oncebox_sqlite::SqliteStore;
use oncebox_testing::{Capabilities, Faults, Faulty, Fixture, Point, TestTime};
use sqlx::SqliteConnection;

#[derive(Clone)]
struct NoCare;

impl Faults for NoCare {
    const COUNTS_CRASHES: bool = false;

    async fn at(&self, _point: Point) -> Result<(), Error> {
        Ok(())
    }
}

#[derive(Clone)]
struct WithoutCare {
    store: SqliteStore,
}

async fn in_memory(_test: &str) -> Option<WithoutCare> {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query("create table effect (name text not null)").execute(store.pool()).await.unwrap();
    Some(WithoutCare { store })
}

impl Fixture for WithoutCare {
    type Store = Faulty<SqliteStore, NoCare>;

    fn capabilities(&self) -> Capabilities {
        Capabilities { transactional: true, counts_live_time: true, counts_crashes: false }
    }

    fn store(&self) -> Self::Store {
        Faulty::new(self.store.clone(), NoCare)
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

oncebox_testing::conformance!(stored in_memory);
