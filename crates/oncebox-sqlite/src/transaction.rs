//! An open transaction on SQLite.

use std::fmt;

use oncebox_core::store::Limits;
use oncebox_core::{Error, ErrorKind};
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Executor, SqlSafeStr, Sqlite, SqliteConnection};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::OwnedSemaphorePermit;

use crate::fault::failed;
use crate::seal::Seal;

type Manager = <Sqlite as sqlx::Database>::TransactionManager;

/// An open transaction. Dropping it rolls back.
pub struct SqliteTx {
    pub(crate) conn: PoolConnection<Sqlite>,
    seal: Seal,
    limits: Limits,
    open: bool,
    /// Held for as long as the transaction lasts; the next in line gets it then.
    _turn: OwnedSemaphorePermit,
}

impl SqliteTx {
    /// Begins on a connection, as the writer.
    pub(crate) async fn begin(
        mut conn: PoolConnection<Sqlite>,
        turn: OwnedSemaphorePermit,
        limits: Limits,
    ) -> Result<Self, sqlx::Error> {
        // A transaction that was dropped in the middle of a handler's own ROLLBACK leaves one behind.
        end_all(&mut conn).await?;
        let seal = Seal::install(&mut conn).await?;
        Manager::begin(&mut conn, Some("BEGIN IMMEDIATE".into_sql_str())).await?;
        Ok(Self { conn, seal, limits, open: true, _turn: turn })
    }

    /// Sets the savepoint that only a whole transaction still has afterwards, and closes the seal.
    pub(crate) async fn arm(&mut self) -> Result<(), Error> {
        self.conn.execute("SAVEPOINT oncebox_guard").await.map_err(failed("set the guard"))?;
        self.seal.close(self.limits.handler_timeout);
        Ok(())
    }

    /// Proves that the transaction is still the one that was armed, then opens the seal for the commit.
    pub(crate) async fn guard(&mut self) -> Result<(), Error> {
        let ended = || {
            Error::new(
                ErrorKind::Transaction,
                "the handler ended the transaction that it was lent: do not run COMMIT, ROLLBACK or OR ROLLBACK in a \
                 handler; use begin() on the connection for a nested one",
            )
        };
        self.seal.open();
        match self.conn.execute("RELEASE SAVEPOINT oncebox_guard").await {
            Ok(_) => {}
            Err(sqlx::Error::Database(_)) => return Err(ended()),
            Err(error) => return Err(failed("check the guard")(error)),
        }
        // Read after a statement: a nested transaction that was dropped rolls back in the background, in turn.
        if Manager::get_transaction_depth(&self.conn) != 1 {
            let message = "the handler left a nested transaction open: commit it or drop it";
            return Err(Error::new(ErrorKind::Transaction, message));
        }
        Ok(())
    }

    pub(crate) async fn commit(mut self) -> Result<(), Error> {
        self.seal.open();
        // On failure the transaction is still open, and dropping `self` ends it.
        Manager::commit(&mut self.conn).await.map_err(failed("commit"))?;
        self.open = false;
        Ok(())
    }

    pub(crate) async fn rollback(mut self) {
        self.seal.open();
        match end_all(&mut self.conn).await {
            Ok(()) => self.open = false,
            Err(error) => {
                tracing::debug!(%error, "a connection that cannot roll back is closed");
                self.conn.close_on_drop();
            }
        }
    }

    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.conn
    }
}

/// Ends whatever is open on a connection, even if a handler ended the transaction behind the driver's back.
async fn end_all(conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    while Manager::get_transaction_depth(conn) > 0 {
        if Manager::rollback(conn).await.is_err() {
            rebuild(conn).await?;
            Manager::rollback(conn).await?;
        }
    }
    Ok(())
}

/// Opens the transaction and the savepoints that the driver believes in, so that it can roll them back. Closing the
/// connection would do too, but a database in memory would be gone with it.
async fn rebuild(conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    // An error means that there was none.
    let _ = conn.execute("ROLLBACK").await;
    conn.execute("BEGIN").await?;
    for n in 1..Manager::get_transaction_depth(conn) {
        conn.execute(AssertSqlSafe(format!("SAVEPOINT _sqlx_savepoint_{n}"))).await?;
    }
    Ok(())
}

impl Drop for SqliteTx {
    fn drop(&mut self) {
        self.seal.open();
        if self.open {
            for _ in 0..Manager::get_transaction_depth(&self.conn).max(1) {
                Manager::start_rollback(&mut self.conn);
            }
        }
    }
}

impl fmt::Debug for SqliteTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTx").field("limits", &self.limits).finish_non_exhaustive()
    }
}
