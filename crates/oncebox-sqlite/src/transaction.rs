//! An open transaction on SQLite.

use std::fmt;
use std::time::Duration;

use oncebox_core::store::{doing, refusal};
use oncebox_core::{Error, ErrorKind, mutant};
use sqlx::{AssertSqlSafe, Executor, SqlSafeStr, Sqlite, SqliteConnection};
use sqlx_core::transaction::TransactionManager;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::fault::failed;
use crate::seal::Seal;
use crate::writer::{Kept, Writer};
use crate::writer_queue::Turn;

/// The driver's thread can die with a question in its hand, for example of a cached `SELECT *` on a table with a new column. Then
/// no response comes. A thread that is only slow still ends the transaction, and the next one waits for SQLite's own lock.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(2);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

type Manager = <Sqlite as sqlx::Database>::TransactionManager;

/// An open transaction. Dropping it rolls back.
pub struct SqliteTx {
    /// `None` once the transaction has ended.
    held: Option<HeldWriter>,
    seal: Seal,
    kept: Kept,
    handler_timeout: Duration,
    /// Whether the guard is set.
    armed: bool,
}

/// What the transaction holds for as long as it lasts: a connection, and the turn, which the next in line gets then.
struct HeldWriter {
    writer: Writer,
    _turn: Turn,
}

impl SqliteTx {
    /// Begins on a connection, as the writer.
    pub(crate) async fn begin(
        mut writer: Writer,
        kept: Kept,
        turn: Turn,
        handler_timeout: Duration,
    ) -> Result<Self, sqlx::Error> {
        // A transaction that was dropped in the middle of a handler's own ROLLBACK leaves one behind.
        end_all(&mut writer.conn).await?;
        // The connection keeps its hooks, which still know how the transaction before ended.
        writer.seal.renew();
        // IMMEDIATE takes the write lock now. Otherwise the first write could fail because others have written since
        // a read.
        Manager::begin(&mut writer.conn, Some("BEGIN IMMEDIATE".into_sql_str())).await?;
        let seal = writer.seal.clone();
        Ok(Self { held: Some(HeldWriter { writer, _turn: turn }), seal, kept, handler_timeout, armed: false })
    }

    /// Closes the seal.
    pub(crate) fn arm(&mut self) {
        self.seal.close(self.handler_timeout);
        self.armed = true;
    }

    /// Proves that the transaction is still the one that was armed, then opens the seal for the commit.
    pub(crate) async fn guard(&mut self) -> Result<(), Error> {
        self.check_whole().await?;
        // Only after the proof: until now the commit hook has refused every commit.
        self.seal.open();
        self.armed = false;
        Ok(())
    }

    /// The same, unless the proof was given already or no handler ever had the connection.
    pub(crate) async fn guard_if_armed(&mut self) -> Result<(), Error> {
        if self.armed { self.guard().await } else { Ok(()) }
    }

    /// Whether it is still the same transaction, with no other left open in it.
    pub(crate) async fn check_whole(&mut self) -> Result<(), Error> {
        // The driver's thread works in order. So this waits for nested transactions that were dropped and roll back
        // in the background.
        let handle = timeout(ANSWER_TIMEOUT, self.connection().lock_handle()).await;
        // No response counts as a dead thread: an outage, which spends no attempt.
        let handle = handle.unwrap_or(Err(sqlx::Error::WorkerCrashed));
        drop(handle.map_err(failed(doing::GUARD))?);
        if self.seal.has_rolled_back() && !mutant!("guard_removed_sqlite") {
            return Err(self.ended());
        }
        refusal::check_depth(depth(self.connection()))
    }

    /// Runs one of the savepoint statements.
    pub(crate) async fn run(&mut self, statements: &'static str) -> Result<(), Error> {
        let done = self.connection().execute(sqlx::raw_sql(statements)).await;
        done.map(drop).map_err(failed(doing::SAVEPOINT))
    }

    /// A handler that ran COMMIT will do so again. One that lost its transaction otherwise may have swallowed an error
    /// after which SQLite rolls back by itself, such as a full disk: that has a cause, and another try.
    fn ended(&self) -> Error {
        let error = refusal::transaction_ended();
        if self.seal.has_refused() {
            return error;
        }
        error.with_source(Error::new(ErrorKind::Transaction, "SQLite has rolled the transaction back"))
    }

    pub(crate) async fn commit(mut self) -> Result<(), Error> {
        self.guard_if_armed().await?;
        // On failure the transaction is still open, and dropping `self` ends it.
        Manager::commit(self.connection()).await.map_err(failed(doing::COMMIT))?;
        if let Some(HeldWriter { writer, _turn }) = self.held.take() {
            // Before the turn ends, so that the next caller finds the connection.
            self.kept.put(writer);
        }
        Ok(())
    }

    pub(crate) async fn rollback(mut self) {
        if let Some(rollback) = self.start_rollback() {
            // The task closes a connection that cannot roll back, so there is nothing left to do here.
            let _ = rollback.await;
        }
    }

    /// Rolls back in a task of its own: a caller that goes away leaves a clean connection all the same, before the next
    /// in the queue gets its turn.
    fn start_rollback(&mut self) -> Option<JoinHandle<()>> {
        let mut held = self.held.take()?;
        let seal = self.seal.clone();
        // A statement may still be running: its result is not needed any more.
        seal.expire();
        match Handle::try_current() {
            Ok(runtime) => Some(runtime.spawn(async move {
                let ended = timeout(ROLLBACK_TIMEOUT, end_all(&mut held.writer.conn)).await;
                if let Err(error) = ended.unwrap_or(Err(sqlx::Error::WorkerCrashed)) {
                    tracing::debug!(%error, "a connection that cannot roll back is closed");
                    // Not returned to its pool, which would wait for the same response. The next caller gets its
                    // turn.
                    let HeldWriter { writer, _turn } = held;
                    drop(writer.conn.detach());
                }
                // The hooks stay on the connection, and its next user must be able to commit.
                seal.open();
            })),
            Err(_no_runtime) => {
                // No task can roll back without a runtime. Closing the connection does.
                held.writer.conn.close_on_drop();
                None
            }
        }
    }

    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        match &mut self.held {
            Some(held) => &mut held.writer.conn,
            None => unreachable!("only what consumes the transaction takes its connection"),
        }
    }
}

/// How many transactions are open on a connection, one inside the other.
pub(crate) fn depth(conn: &SqliteConnection) -> usize {
    Manager::get_transaction_depth(conn)
}

/// Ends whatever is open on a connection, even if a handler ended the transaction behind the driver's back.
async fn end_all(conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    while Manager::get_transaction_depth(conn) > 0 {
        // The driver does not notice a handler's own ROLLBACK: then it counts a transaction that is gone.
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
        self.start_rollback();
    }
}

impl fmt::Debug for SqliteTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTx").field("handler_timeout", &self.handler_timeout).finish_non_exhaustive()
    }
}
