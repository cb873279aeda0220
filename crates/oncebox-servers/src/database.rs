//! A fresh database for one test.

use std::env;

use anyhow::{Context, Result};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::skip::skip_or_fail;
use crate::url::DatabaseUrl;

/// The environment variable with the superuser's URL of the server for tests.
pub const TEST_POSTGRES: &str = "ONCEBOX_TEST_POSTGRES";

/// An empty database of its own; it goes away with its server.
#[derive(Clone, Debug)]
pub struct TestDatabase {
    url: DatabaseUrl,
}

impl TestDatabase {
    /// Creates a database on the server at `admin_url`.
    pub async fn create_on(admin_url: &str) -> Result<TestDatabase> {
        let name = format!("test_{}", Uuid::now_v7().simple());
        let url = DatabaseUrl::parse(admin_url)?.with_database(&name);
        let mut admin =
            PgConnection::connect(admin_url).await.context("connecting to the server for tests")?;
        // A template with open connections cannot be copied. template0 accepts no connections.
        // The name is made of letters and digits only.
        let statement = AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0"));
        sqlx::raw_sql(statement).execute(&mut admin).await.context("creating a database for a test")?;
        admin.close().await.context("leaving the server for tests")?;
        Ok(TestDatabase { url })
    }

    /// The URL for the superuser that created it.
    #[must_use]
    pub fn url(&self) -> String {
        self.url.to_string()
    }

    /// The address of the same database as another user.
    #[must_use]
    pub fn url_as(&self, role: &str) -> String {
        self.url.with_user(role).to_string()
    }
}

/// A fresh database for `test`. `None` if there is no server; the test returns then.
///
/// # Panics
///
/// Where `CI` is `true` and there is no server; and when the server that the environment names does not
/// work.
pub async fn test_database(test: &str) -> Option<TestDatabase> {
    let Ok(admin_url) = env::var(TEST_POSTGRES) else {
        skip_or_fail(
            test,
            &format!("{TEST_POSTGRES} is not set; `cargo xtask test` starts a server and sets it"),
        );
        return None;
    };
    match TestDatabase::create_on(&admin_url).await {
        Ok(database) => Some(database),
        Err(error) => panic!("{test} gets no database from the server in {TEST_POSTGRES}: {error:#}"),
    }
}
