//! What handlers do in the database.

use oncebox::store::Store;
use oncebox::{LogStore, PostgresStore, SqliteStore};
use sqlx::Row;

/// One row and no search; there is one, since the handler has just written it.
const ANY_EFFECT: &str = "select * from effect limit 1";

/// A store on which a handler can write its effect.
pub(crate) trait Effects: LogStore {
    /// Writes that a handler took effect on a message. Nothing keeps a second row out.
    fn effect(
        conn: &mut <Self as Store>::Conn,
        handler: &'static str,
        id: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Reads all columns of an effect, whatever they are by now: a prepared statement like this one does not survive a
    /// change of the table on PostgreSQL.
    fn read_back(conn: &mut <Self as Store>::Conn) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Drops the prepared statements of this session behind the driver's back, as poolers do. SQLite has no sessions.
    fn deallocate(conn: &mut <Self as Store>::Conn) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Proves that the transaction is still open.
    fn prove(conn: &mut <Self as Store>::Conn) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

impl Effects for SqliteStore {
    async fn effect(
        conn: &mut sqlx::SqliteConnection,
        handler: &'static str,
        id: i64,
    ) -> Result<(), sqlx::Error> {
        let insert = sqlx::query("insert into effect (handler, id) values (?, ?)").bind(handler).bind(id);
        insert.execute(conn).await.map(drop)
    }

    async fn read_back(conn: &mut sqlx::SqliteConnection) -> Result<(), sqlx::Error> {
        // The driver's thread dies of a cached statement that has another column by now. Without it there is no row.
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

impl Effects for PostgresStore {
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
