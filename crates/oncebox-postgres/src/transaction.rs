//! An open transaction on PostgreSQL.

use std::fmt;
use std::time::Duration;

use oncebox_core::store::Limits;
use oncebox_core::{Error, ErrorKind};
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgPool, Postgres, Row, SqlSafeStr};
use sqlx_core::transaction::TransactionManager;

use crate::fault::{failed, is_broken_transaction};
use crate::statements::Statements;

type Manager = <Postgres as sqlx::Database>::TransactionManager;

/// An open transaction. Dropping it rolls back.
pub struct PostgresTx {
    conn: PoolConnection<Postgres>,
    limits: Limits,
    /// What the guard compares; known once the transaction is armed.
    identity: Option<Identity>,
    open: bool,
}

/// Which transaction on which backend.
struct Identity {
    transaction_id: String,
    backend: i32,
}

impl PostgresTx {
    pub(crate) async fn begin(mut conn: PoolConnection<Postgres>, limits: Limits) -> Result<Self, sqlx::Error> {
        let begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE".into_sql_str();
        Manager::begin(&mut conn, Some(begin)).await?;
        Ok(Self { conn, limits, identity: None, open: true })
    }

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        &mut self.conn
    }

    /// The time limits as PostgreSQL's settings take them: lock, statement, idle.
    pub(crate) fn limits_as_settings(&self) -> (String, String, String) {
        let setting = |time: Duration| format!("{}ms", time.as_millis().clamp(1, i32::MAX as u128));
        let idle = self.limits.handler_timeout.saturating_add(Duration::from_secs(5));
        (setting(self.limits.lock_timeout), setting(self.limits.handler_timeout), setting(idle))
    }

    /// Notes which transaction this is, from a statement that armed it.
    pub(crate) fn armed_by(&mut self, row: &PgRow) -> Result<(), sqlx::Error> {
        self.identity = Some(Identity {
            transaction_id: row.try_get("transaction_id")?,
            backend: row.try_get("backend")?,
        });
        Ok(())
    }

    pub(crate) async fn arm(&mut self, statements: &Statements) -> Result<(), Error> {
        if self.identity.is_some() {
            return Ok(());
        }
        let (_, statement, idle) = self.limits_as_settings();
        let row = sqlx::query(statements.arm.clone())
            .bind(statement)
            .bind(idle)
            .fetch_one(&mut *self.conn)
            .await
            .map_err(failed("set the handler's limits"))?;
        self.armed_by(&row).map_err(failed("set the handler's limits"))
    }

    pub(crate) async fn guard(&mut self, statements: &Statements) -> Result<(), Error> {
        if Manager::get_transaction_depth(&self.conn) != 1 {
            let message = "the handler left a nested transaction open: commit it or drop it";
            return Err(Error::new(ErrorKind::Transaction, message));
        }
        let now: Option<String> =
            sqlx::query_scalar(statements.guard.clone()).fetch_one(&mut *self.conn).await.map_err(|error| {
                if is_broken_transaction(&error) {
                    Error::new(
                        ErrorKind::Transaction,
                        "the handler swallowed an SQL error, after which PostgreSQL commits nothing: return the error, or \
                         wrap the statement in a nested transaction",
                    )
                    .with_source(error)
                } else {
                    failed("check the guard")(error)
                }
            })?;
        if now.as_ref() == self.identity.as_ref().map(|identity| &identity.transaction_id) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Transaction,
            "the handler ended the transaction that it was lent: do not run COMMIT or ROLLBACK in a handler; use begin() \
             on the connection for a nested one",
        ))
    }

    pub(crate) async fn commit(mut self) -> Result<(), Error> {
        Manager::commit(&mut self.conn).await.map_err(failed("commit"))?;
        self.open = false;
        Ok(())
    }

    pub(crate) async fn rollback(mut self) {
        while Manager::get_transaction_depth(&self.conn) > 0 {
            if let Err(error) = Manager::rollback(&mut self.conn).await {
                tracing::debug!(%error, "a connection that cannot roll back is closed");
                self.conn.close_on_drop();
                break;
            }
        }
        self.open = false;
    }

    /// Closes the connection and ends its backend, whatever that is doing: a server does not notice that a client
    /// is gone before its statement has ended, and holds all locks until then.
    pub(crate) async fn abandon(mut self, pool: &PgPool, statements: &Statements) {
        self.open = false;
        self.conn.close_on_drop();
        let backend = self.identity.as_ref().map(|identity| identity.backend);
        drop(self);
        let Some(backend) = backend else { return };
        let end = sqlx::query(statements.end_statement.clone()).bind(backend).execute(pool);
        if let Err(error) = end.await {
            tracing::warn!(%error, backend, "a backend that overstayed could not be ended; its own time limit will do it");
        }
    }
}

impl Drop for PostgresTx {
    fn drop(&mut self) {
        if self.open {
            while Manager::get_transaction_depth(&self.conn) > 0 {
                Manager::start_rollback(&mut self.conn);
            }
        }
    }
}

impl fmt::Debug for PostgresTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTx").field("limits", &self.limits).finish_non_exhaustive()
    }
}
