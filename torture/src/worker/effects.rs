//! The statements of the handlers.

use oncebox::store::Store;
use oncebox::{LogStore, PostgresStore, SqliteStore};
use sqlx::Row;

/// Any row, so that no search is needed. There is one, because the handler has just written it.
const ANY_EFFECT: &str = "select * from effect limit 1";

/// A store with a table of effects beside its own tables.
pub(crate) trait EffectStore: LogStore {
    /// Writes the effect of a handler on a message. The table has no unique constraint.
    fn effect(
        conn: &mut <Self as Store>::Conn,
        handler: &'static str,
        id: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Reads all columns of an effect. On PostgreSQL such a prepared statement fails after a change of the table.
    fn read_back(conn: &mut <Self as Store>::Conn) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Drops the prepared statements of this session without the driver's knowledge, as poolers do. SQLite has no sessions.
    fn deallocate(conn: &mut <Self as Store>::Conn) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Succeeds only if the transaction is still open.
    fn prove(conn: &mut <Self as Store>::Conn) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

impl EffectStore for SqliteStore {
    async fn effect(
        conn: &mut sqlx::SqliteConnection,
        handler: &'static str,
        id: i64,
    ) -> Result<(), sqlx::Error> {
        let insert = sqlx::query("insert into effect (handler, id) values (?, ?)").bind(handler).bind(id);
        insert.execute(conn).await.map(drop)
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
    async fn effect(
        conn: &mut sqlx::PgConnection,
        handler: &'static str,
        id: i64,
    ) -> Result<(), sqlx::Error> {
        let insert = sqlx::query("insert into effect (handler, id) values ($1, $2)").bind(handler).bind(id);
        insert.execute(conn).await.map(drop)
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
