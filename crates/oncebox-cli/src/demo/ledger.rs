//! The ledger in the database: the table to which the handlers add their entries, without a unique constraint.

use oncebox::store::Store;
use oncebox::{LogStore, PostgresStore, SqliteStore};
use oncebox_workload::plan::Entry;
use sqlx::{AssertSqlSafe, PgConnection, SqliteConnection};

/// An entry of the ledger, and how often it is there.
pub(super) type LedgerRow = (Entry, u64);

/// The name of the table, with its schema where there is one.
pub(super) fn table(schema: Option<&str>) -> String {
    schema.map_or_else(|| "ledger".to_owned(), |schema| format!("{schema}.ledger"))
}

/// A store with a ledger beside its own tables. The statements contain the table's name, with a schema that the store has checked.
pub(super) trait LedgerStore: LogStore {
    /// Creates the ledger.
    fn create(&self, table: &str) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Adds an entry, in the transaction of the connection.
    fn add(
        conn: &mut <Self as Store>::Conn,
        table: &str,
        entry: Entry,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// All rows, equal ones counted.
    fn rows(&self, table: &str) -> impl Future<Output = Result<Vec<LedgerRow>, sqlx::Error>> + Send;
}

fn create_sql(table: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!(
        "create table {table} (message bigint not null, account bigint not null, amount bigint not null)"
    ))
}

fn add_sql(table: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!("insert into {table} (message, account, amount) values ($1, $2, $3)"))
}

fn rows_sql(table: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!(
        "select message, account, amount, count(*) from {table} group by message, account, amount"
    ))
}

/// Databases have signed numbers only. This and [`row`] are each other's inverse, so a negative one equals no entry of the plan.
fn columns(Entry { message, account, amount }: Entry) -> [i64; 3] {
    [message, account, amount].map(u64::cast_signed)
}

fn row((message, account, amount, times): (i64, i64, i64, i64)) -> LedgerRow {
    let [message, account, amount] = [message, account, amount].map(i64::cast_unsigned);
    (Entry { message, account, amount }, times.unsigned_abs())
}

impl LedgerStore for SqliteStore {
    async fn create(&self, table: &str) -> Result<(), sqlx::Error> {
        sqlx::query(create_sql(table)).execute(self.pool()).await.map(drop)
    }

    async fn add(conn: &mut SqliteConnection, table: &str, entry: Entry) -> Result<(), sqlx::Error> {
        let [message, account, amount] = columns(entry);
        sqlx::query(add_sql(table)).bind(message).bind(account).bind(amount).execute(conn).await.map(drop)
    }

    async fn rows(&self, table: &str) -> Result<Vec<LedgerRow>, sqlx::Error> {
        let rows = sqlx::query_as(rows_sql(table)).fetch_all(self.pool()).await?;
        Ok(rows.into_iter().map(row).collect())
    }
}

impl LedgerStore for PostgresStore {
    async fn create(&self, table: &str) -> Result<(), sqlx::Error> {
        sqlx::query(create_sql(table)).execute(self.pool()).await.map(drop)
    }

    async fn add(conn: &mut PgConnection, table: &str, entry: Entry) -> Result<(), sqlx::Error> {
        let [message, account, amount] = columns(entry);
        sqlx::query(add_sql(table)).bind(message).bind(account).bind(amount).execute(conn).await.map(drop)
    }

    async fn rows(&self, table: &str) -> Result<Vec<LedgerRow>, sqlx::Error> {
        let rows = sqlx::query_as(rows_sql(table)).fetch_all(self.pool()).await?;
        Ok(rows.into_iter().map(row).collect())
    }
}
