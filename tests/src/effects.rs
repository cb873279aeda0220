//! What worker processes do in the database, and how they tell of it.

#![allow(dead_code, reason = "not every worker does all of it")]

use std::io::Write;

use oncebox::{InboxStore, PostgresStore, SqliteStore};

/// Reports to the parent.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The parent may be gone; then there is no receiver.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// How a handler writes its effect on this store.
pub(crate) trait Effects: InboxStore {
    fn effect(conn: &mut Self::Conn, name: String) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Whether the reason for which a message could never be handled is gone: the table `healed` says so.
    fn is_healed(conn: &mut Self::Conn, name: &str)
    -> impl Future<Output = Result<bool, sqlx::Error>> + Send;
}

impl Effects for SqliteStore {
    async fn effect(conn: &mut sqlx::SqliteConnection, name: String) -> Result<(), sqlx::Error> {
        sqlx::query("insert into effect (name) values (?)").bind(name).execute(conn).await.map(drop)
    }

    async fn is_healed(conn: &mut sqlx::SqliteConnection, name: &str) -> Result<bool, sqlx::Error> {
        sqlx::query_scalar("select exists (select 1 from healed where name = ?)")
            .bind(name)
            .fetch_one(conn)
            .await
    }
}

impl Effects for PostgresStore {
    async fn effect(conn: &mut sqlx::PgConnection, name: String) -> Result<(), sqlx::Error> {
        sqlx::query("insert into effect (name) values ($1)").bind(name).execute(conn).await.map(drop)
    }

    async fn is_healed(conn: &mut sqlx::PgConnection, name: &str) -> Result<bool, sqlx::Error> {
        sqlx::query_scalar("select exists (select from healed where name = $1)")
            .bind(name)
            .fetch_one(conn)
            .await
    }
}
