//! The ledger: where the handlers' effect is. Nothing in it keeps a second row of a message out.

use oncebox::store::Store;
use oncebox::{LogStore, PostgresStore, SqliteStore};
use sqlx::{AssertSqlSafe, PgConnection, SqliteConnection};

use crate::demo::plan::Entry;

/// A row of the ledger, and how often it is there.
pub(super) type Row = (Entry, u64);

/// The name of the table, with its schema where there is one.
pub(super) fn table(schema: Option<&str>) -> String {
    schema.map_or_else(|| "ledger".to_owned(), |schema| format!("{schema}.ledger"))
}

/// A store with a ledger beside its own tables. Into the statements goes the table's name, with a schema that the store has checked.
pub(super) trait Ledger: LogStore {
    /// Creates the ledger.
    fn create(&self, table: &str) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Adds a row, in the transaction of the connection.
    fn add(
        conn: &mut <Self as Store>::Conn,
        table: &str,
        entry: Entry,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// All rows, equal ones counted.
    fn rows(&self, table: &str) -> impl Future<Output = Result<Vec<Row>, sqlx::Error>> + Send;
}

fn create_sql(table: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!(
        "create table {table} (message bigint not null, account bigint not null, amount bigint not null)"
    ))
}

fn rows_sql(table: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!(
        "select message, account, amount, count(*) from {table} group by message, account, amount"
    ))
}

fn row((message, account, amount, times): (i64, i64, i64, i64)) -> Row {
    (Entry { message, account, amount }, times.unsigned_abs())
}

impl Ledger for SqliteStore {
    async fn create(&self, table: &str) -> Result<(), sqlx::Error> {
        sqlx::query(create_sql(table)).execute(self.pool()).await.map(drop)
    }

    async fn add(conn: &mut SqliteConnection, table: &str, entry: Entry) -> Result<(), sqlx::Error> {
        let insert =
            AssertSqlSafe(format!("insert into {table} (message, account, amount) values (?, ?, ?)"));
        let Entry { message, account, amount } = entry;
        sqlx::query(insert).bind(message).bind(account).bind(amount).execute(conn).await.map(drop)
    }

    async fn rows(&self, table: &str) -> Result<Vec<Row>, sqlx::Error> {
        let rows = sqlx::query_as(rows_sql(table)).fetch_all(self.pool()).await?;
        Ok(rows.into_iter().map(row).collect())
    }
}

impl Ledger for PostgresStore {
    async fn create(&self, table: &str) -> Result<(), sqlx::Error> {
        sqlx::query(create_sql(table)).execute(self.pool()).await.map(drop)
    }

    async fn add(conn: &mut PgConnection, table: &str, entry: Entry) -> Result<(), sqlx::Error> {
        let insert =
            AssertSqlSafe(format!("insert into {table} (message, account, amount) values ($1, $2, $3)"));
        let Entry { message, account, amount } = entry;
        sqlx::query(insert).bind(message).bind(account).bind(amount).execute(conn).await.map(drop)
    }

    async fn rows(&self, table: &str) -> Result<Vec<Row>, sqlx::Error> {
        let rows = sqlx::query_as(rows_sql(table)).fetch_all(self.pool()).await?;
        Ok(rows.into_iter().map(row).collect())
    }
}
