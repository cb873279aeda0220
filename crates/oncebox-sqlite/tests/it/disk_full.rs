//! No space is left: what was to be written is refused, and when there is space again the same connection goes on. SQLite ends
//! such a transaction by itself, which the driver does not notice.

use std::error::Error as StdError;

use oncebox_core::Error;
use oncebox_core::store::{LaneChoice, Log, NewMessage, Registry};
use oncebox_sqlite::SqliteStore;
use oncebox_testing::one_handler::{FOUR_LANES, message};
use sqlx::AssertSqlSafe;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use tempfile::TempDir;

/// More than fits into what is left.
const LARGE: usize = 200_000;

struct OneConnection {
    store: SqliteStore,
    _folder: TempDir,
}

impl OneConnection {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(folder.path().join("inbox.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal);
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        let store = SqliteStore::new(pool);
        store.migrate().await.unwrap();
        store.register(FOUR_LANES, &[]).await.unwrap();
        sqlx::query("create table effect (body blob)").execute(store.pool()).await.unwrap();
        Self { store, _folder: folder }
    }

    /// From now on the file does not grow; what was free in it is filled up.
    async fn fill(&self) {
        self.pragma("max_page_count = 1").await;
        while sqlx::query("insert into effect values (zeroblob(1000))")
            .execute(self.store.pool())
            .await
            .is_ok()
        {}
    }

    async fn make_room(&self) {
        self.pragma("max_page_count = 1000000").await;
    }

    async fn pragma(&self, pragma: &'static str) {
        sqlx::query(AssertSqlSafe(format!("pragma {pragma}"))).execute(self.store.pool()).await.unwrap();
    }

    async fn append(&self, key: &str) -> Result<(), Error> {
        let message = NewMessage { body: vec![0; LARGE], ..message("a", key) };
        self.store.append(LaneChoice::Only(0), &[message]).await.map(drop)
    }

    async fn messages(&self) -> i64 {
        let count = sqlx::query_scalar("select count(*) from oncebox_message");
        count.fetch_one(self.store.pool()).await.unwrap()
    }
}

fn is_full(error: &Error) -> bool {
    let causes = std::iter::successors(Some(error as &dyn StdError), |&cause| cause.source());
    causes.last().is_some_and(|cause| cause.to_string().contains("full"))
}

#[tokio::test]
async fn whoever_accepts_goes_on_when_there_is_space_again() {
    let one = OneConnection::new().await;
    one.append("before").await.unwrap();
    one.fill().await;
    for _ in 0..3 {
        let error = one.append("full").await.unwrap_err();
        assert!(is_full(&error), "each time for the same reason: {error:?}");
    }
    one.make_room().await;
    one.append("full").await.unwrap();
    assert_eq!(one.messages().await, 2);
}
