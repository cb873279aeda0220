//! The statements of the handlers.

use std::ops::DerefMut;

use oncebox::store::Store;
use oncebox::{OutboxStore, PostgresStore, SqliteStore};
use sqlx::pool::PoolConnection;
use sqlx::{Postgres, Row, Sqlite};

/// Any row, so that no search is needed. There is one, because the handler has just written it.
const ANY_EFFECT: &str = "select * from effect limit 1";

/// A store with a table of effects beside its own tables.
pub(crate) trait EffectStore: OutboxStore {
    /// A connection of the store's pool.
    type Session: DerefMut<Target = <Self as Store>::Conn> + Send;

    /// Begins a transaction of the application.
    const BEGIN: &'static str;

    /// Takes a connection from the store's pool.
    fn session(&self) -> impl Future<Output = Result<Self::Session, sqlx::Error>> + Send;

    /// Closes a connection whose state is unknown. It is not returned to the pool.
    fn discard(session: Self::Session);

    /// Executes statements without parameters.
    fn execute(
        conn: &mut <Self as Store>::Conn,
        statements: &'static str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Writes the effect of a handler on a message. The table has no unique constraint. With an outbox the token tells which
    /// transaction of the sender the effect comes from.
    fn effect(
        conn: &mut <Self as Store>::Conn,
        handler: &'static str,
        id: i64,
        token: Option<i64>,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Whether a handler has an effect on a message.
    fn has_effect(
        conn: &mut <Self as Store>::Conn,
        handler: &'static str,
        id: i64,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Updates the row of an account, so that other transactions of this account wait until the commit.
    fn lock_account(
        conn: &mut <Self as Store>::Conn,
        account: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Reads all columns of an effect. On PostgreSQL such a prepared statement fails after a change of the table.
    fn read_back(conn: &mut <Self as Store>::Conn) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Drops the prepared statements of this session without the driver's knowledge, as poolers do. SQLite has no sessions.
    fn deallocate(conn: &mut <Self as Store>::Conn) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Succeeds only if the transaction is still open.
    fn prove(conn: &mut <Self as Store>::Conn) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

impl EffectStore for SqliteStore {
    type Session = PoolConnection<Sqlite>;

    // With the lock at once: another transaction could write between this one's look and its insert.
    const BEGIN: &'static str = "begin immediate";

    async fn session(&self) -> Result<Self::Session, sqlx::Error> {
        self.pool().acquire().await
    }

    fn discard(session: Self::Session) {
        drop(session.detach());
    }

    async fn execute(conn: &mut sqlx::SqliteConnection, statements: &'static str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(statements).execute(conn).await.map(drop)
    }

    async fn effect(
        conn: &mut sqlx::SqliteConnection,
        handler: &'static str,
        id: i64,
        token: Option<i64>,
    ) -> Result<(), sqlx::Error> {
        let insert = sqlx::query("insert into effect (handler, id, token) values (?, ?, ?)");
        insert.bind(handler).bind(id).bind(token).execute(conn).await.map(drop)
    }

    async fn has_effect(
        conn: &mut sqlx::SqliteConnection,
        handler: &'static str,
        id: i64,
    ) -> Result<bool, sqlx::Error> {
        let exists = "select exists (select 1 from effect where id = ? and handler = ?)";
        sqlx::query_scalar(exists).bind(id).bind(handler).fetch_one(conn).await
    }

    async fn lock_account(conn: &mut sqlx::SqliteConnection, account: i64) -> Result<(), sqlx::Error> {
        let update = sqlx::query("update account set version = version + 1 where id = ?").bind(account);
        match update.execute(conn).await?.rows_affected() {
            1 => Ok(()),
            _ => Err(sqlx::Error::RowNotFound),
        }
    }

    async fn read_back(conn: &mut sqlx::SqliteConnection) -> Result<(), sqlx::Error> {
        // The driver's thread panics on a cached statement with an added column; then there is no row.
        let row = sqlx::query(ANY_EFFECT).fetch_optional(conn).await?.ok_or(sqlx::Error::WorkerCrashed)?;
        row.try_get::<i64, _>("id").map(drop)
    }

    async fn deallocate(_: &mut sqlx::SqliteConnection) -> Result<(), sqlx::Error> {
        Ok(())
    }

    async fn prove(conn: &mut sqlx::SqliteConnection) -> Result<(), sqlx::Error> {
        sqlx::query("select 1").execute(conn).await.map(drop)
    }
}

impl EffectStore for PostgresStore {
    type Session = PoolConnection<Postgres>;

    // A server does not notice when a connection is silent, and the session would keep the account's lock for ever.
    const BEGIN: &'static str =
        "begin; set local idle_in_transaction_session_timeout = '5s'; set local lock_timeout = '2s'";

    async fn session(&self) -> Result<Self::Session, sqlx::Error> {
        self.pool().acquire().await
    }

    fn discard(session: Self::Session) {
        drop(session.detach());
    }

    async fn execute(conn: &mut sqlx::PgConnection, statements: &'static str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(statements).execute(conn).await.map(drop)
    }

    async fn effect(
        conn: &mut sqlx::PgConnection,
        handler: &'static str,
        id: i64,
        token: Option<i64>,
    ) -> Result<(), sqlx::Error> {
        let insert = sqlx::query("insert into effect (handler, id, token) values ($1, $2, $3)");
        insert.bind(handler).bind(id).bind(token).execute(conn).await.map(drop)
    }

    async fn has_effect(
        conn: &mut sqlx::PgConnection,
        handler: &'static str,
        id: i64,
    ) -> Result<bool, sqlx::Error> {
        let exists = "select exists (select 1 from effect where id = $1 and handler = $2)";
        sqlx::query_scalar(exists).bind(id).bind(handler).fetch_one(conn).await
    }

    async fn lock_account(conn: &mut sqlx::PgConnection, account: i64) -> Result<(), sqlx::Error> {
        let update = sqlx::query("update account set version = version + 1 where id = $1").bind(account);
        match update.execute(conn).await?.rows_affected() {
            1 => Ok(()),
            _ => Err(sqlx::Error::RowNotFound),
        }
    }

    async fn read_back(conn: &mut sqlx::PgConnection) -> Result<(), sqlx::Error> {
        let row = sqlx::query(ANY_EFFECT).fetch_one(conn).await?;
        row.try_get::<i64, _>("id").map(drop)
    }

    async fn deallocate(conn: &mut sqlx::PgConnection) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("deallocate all").execute(conn).await.map(drop)
    }

    async fn prove(conn: &mut sqlx::PgConnection) -> Result<(), sqlx::Error> {
        sqlx::query("select 1").execute(conn).await.map(drop)
    }
}
