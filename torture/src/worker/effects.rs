//! What handlers do in the database.

use oncebox::store::Store;
use oncebox::{LogStore, PostgresStore, SqliteStore};

/// A store on which a handler can write its effect.
pub(crate) trait Effects: LogStore {
    /// Writes that a handler took effect on a message. Nothing keeps a second row out.
    fn effect(
        conn: &mut <Self as Store>::Conn,
        handler: &'static str,
        id: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

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

    async fn prove(conn: &mut sqlx::PgConnection) -> Result<(), sqlx::Error> {
        sqlx::query("select 1").execute(conn).await.map(drop)
    }
}
