//! An open transaction on PostgreSQL.

use std::error::Error as StdError;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use oncebox_core::store::{Limits, Progress, doing, refusal};
use oncebox_core::{Error, ErrorKind};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row, SqlSafeStr, SqlStr};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::connection::TimedConnection;
use crate::fault::{failed, refused};
use crate::sessions::{SessionHealth, SessionSettings, SessionVerdict, UNKNOWN};
use crate::statements::Statements;
use crate::store::Session;

/// One transaction after the other uses the same connection for this long; then the pool sees it again, which knows when
/// it is too old.
const CONNECTION_TIME: Duration = Duration::from_secs(10);

/// An open transaction. Dropping it rolls back.
pub struct PostgresTx {
    /// `None` once the transaction has ended.
    conn: Option<TimedConnection>,
    session: Session,
    settings: Arc<OnceLock<SessionSettings>>,
    statements: Arc<Statements>,
    limits: Limits,
    /// What the guard compares; known once the transaction is armed.
    identity: Option<TransactionIdentity>,
    /// Whether the guard has let it through.
    guarded: bool,
    /// The progress that was appended with the batch, if one was.
    carried: Option<i64>,
    /// Whether the connection goes back to its pool behind this transaction: a body has failed on it.
    suspect: bool,
}

/// A transaction that was begun with the commit of the one before it. Dropping it rolls back.
#[derive(Debug)]
pub(crate) struct PostgresBegun(PostgresTx);

impl PostgresBegun {
    pub(crate) fn with(self, limits: Limits) -> PostgresTx {
        let Self(mut tx) = self;
        tx.limits = limits;
        tx.timed().may_take(limits.lock_timeout);
        tx
    }
}

/// Which transaction on which backend.
struct TransactionIdentity {
    transaction_id: u64,
    backend: i32,
}

impl PostgresTx {
    pub(crate) async fn begin(
        mut conn: TimedConnection,
        session: Session,
        settings: Arc<OnceLock<SessionSettings>>,
        statements: Arc<Statements>,
        limits: Limits,
    ) -> Result<Self, sqlx::Error> {
        let begin = match session {
            Session::Own => &statements.begin,
            Session::Shared => &statements.begin_shared,
        };
        conn.begin(begin.clone()).await?;
        conn.may_take(limits.lock_timeout);
        Ok(Self {
            conn: Some(conn),
            session,
            settings,
            statements,
            limits,
            identity: None,
            guarded: false,
            carried: None,
            suspect: false,
        })
    }

    /// On which the store itself sends its statements.
    pub(crate) fn timed(&mut self) -> &mut TimedConnection {
        match &mut self.conn {
            Some(conn) => conn,
            None => unreachable!("only what consumes the transaction takes its connection"),
        }
    }

    /// What handlers are lent.
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        self.timed().connection()
    }

    /// Whether an answer is missing.
    pub(crate) fn is_lost(&self) -> bool {
        self.conn.as_ref().is_some_and(TimedConnection::is_lost)
    }

    /// The time limits as PostgreSQL's settings take them: lock, statement, idle.
    pub(crate) fn limits_as_settings(&self) -> (String, String, String) {
        // The process itself acts at the limit. Five seconds later the server ends the transaction of one that hangs.
        let idle = self.limits.handler_timeout.saturating_add(Duration::from_secs(5));
        (setting(self.limits.lock_timeout), setting(self.limits.handler_timeout), setting(idle))
    }

    /// How long the handlers' statements may wait for a lock, if that is limited.
    pub(crate) fn body_lock_timeout_as_setting(&self) -> Option<String> {
        self.limits.body_lock_timeout.map(setting)
    }

    /// Notes which transaction this is, from a statement that armed it.
    pub(crate) fn armed_by(&mut self, row: &PgRow) -> Result<(), sqlx::Error> {
        let transaction_id: &str = row.try_get("transaction_id")?;
        let transaction_id = transaction_id
            .parse()
            .map_err(|error| sqlx::Error::Decode(Box::<std::num::ParseIntError>::from(error)))?;
        self.identity = Some(TransactionIdentity { transaction_id, backend: row.try_get("backend")? });
        // The handler's limit holds for our own statements too.
        let told = self.limits.handler_timeout.max(self.limits.lock_timeout);
        self.timed().may_take(told);
        Ok(())
    }

    pub(crate) async fn arm(&mut self) -> Result<(), Error> {
        // The claim, or taking a batch, has armed it in its own round trip.
        if self.identity.is_some() {
            return Ok(());
        }
        let (_, statement, idle) = self.limits_as_settings();
        let arm = sqlx::query(self.statements.arm.clone()).bind(statement).bind(idle);
        let row = self.timed().fetch_one(arm).await.map_err(failed(doing::ARM))?;
        self.armed_by(&row).map_err(failed(doing::ARM))
    }

    pub(crate) async fn guard(&mut self) -> Result<(), Error> {
        let Some(transaction_id) = self.unproved()? else { return Ok(()) };
        let settings = self.settings.get().unwrap_or(&UNKNOWN).json().as_bytes().to_vec();
        let guard =
            sqlx::query(self.statements.guard.clone()).bind(transaction_id.to_string()).bind(settings);
        self.timed().execute(guard).await.map_err(refused(doing::GUARD))?;
        self.guarded = true;
        Ok(())
    }

    /// The number of the transaction, once it is armed.
    pub(crate) fn transaction_id(&self) -> Option<u64> {
        self.identity.as_ref().map(|identity| identity.transaction_id)
    }

    /// Which transaction the guard is to prove; none where it has, or where no handler ran.
    fn unproved(&mut self) -> Result<Option<u64>, Error> {
        self.check_nested()?;
        Ok(self.identity.as_ref().filter(|_| !self.guarded).map(|identity| identity.transaction_id))
    }

    /// Whether a handler left a transaction open inside of ours, or another connection in place of ours.
    pub(crate) fn check_nested(&mut self) -> Result<(), Error> {
        refusal::check_depth(self.timed().depth())
    }

    /// Notes what the end of a body says about the session.
    pub(crate) fn body_ended(
        &mut self,
        sessions: &SessionHealth,
        ended: Result<(), &(dyn StdError + 'static)>,
    ) {
        let Some(identity) = &self.identity else { return };
        match sessions.body_ended(identity.backend, ended) {
            SessionVerdict::Good => {}
            SessionVerdict::Unknown => self.timed().prepare_anew(),
            SessionVerdict::Suspect => self.suspect = true,
            SessionVerdict::Bad => {
                self.suspect = true;
                self.timed().close_later();
            }
        }
    }

    /// Whether the next transaction may follow on the same connection.
    fn may_go_on(&mut self) -> bool {
        // A pooler would have to reserve a session for it. A suspect connection is returned, so that the next attempt
        // gets another.
        self.session == Session::Own && !self.suspect && self.since().elapsed() < CONNECTION_TIME
    }

    /// Runs one of the savepoint statements; all of them are the engine's own text.
    pub(crate) async fn run(&mut self, statements: &str) -> Result<(), Error> {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
        self.timed().execute(statements).await.map(drop).map_err(refused(doing::SAVEPOINT))
    }

    pub(crate) async fn commit(mut self) -> Result<(), Error> {
        // On failure dropping `self` ends what is left. Where no handler ran it is not armed, and without the guard the
        // session would stay read-only.
        if self.session == Session::Own {
            self.arm().await?;
        }
        match self.unproved()? {
            None => self.timed().commit().await.map_err(failed(doing::COMMIT))?,
            Some(transaction_id) => {
                self.commit_with(self.statements.commit.clone(), transaction_id).await?;
            }
        }
        // Dropping it rolls back what the commit's message has begun for the driver, and returns it to the pool.
        self.conn = None;
        Ok(())
    }

    /// When its connection was taken from the pool.
    pub(crate) fn since(&mut self) -> Instant {
        self.timed().since()
    }

    /// Commits, and begins the next transaction on the same connection, unless it has been in use for long.
    pub(crate) async fn commit_and_begin(mut self) -> Result<Option<PostgresBegun>, Error> {
        let ours = self.may_go_on();
        match self.unproved()? {
            Some(transaction_id) if ours => {
                self.commit_with(self.statements.commit_and_begin.clone(), transaction_id).await?;
                Ok(Some(self.begun()))
            }
            _ => self.commit().await.map(|()| None),
        }
    }

    /// Notes how far the progress was appended already.
    pub(crate) fn carries(&mut self, progress: Option<i64>) {
        self.carried = progress;
    }

    /// Commits with a handler's progress, and may begin the next transaction on the same connection.
    pub(crate) async fn finish(
        mut self,
        progress: Option<Progress>,
        may_go_on: bool,
    ) -> Result<Option<PostgresBegun>, Error> {
        // Taking the batch has appended the progress up to its first message (decision 15).
        let progress = progress.filter(|progress| self.carried != Some(progress.pos));
        let Some(Progress { handler, lane, epoch, pos }) = progress else {
            return match may_go_on {
                true => self.commit_and_begin().await,
                false => self.commit().await.map(|()| None),
            };
        };
        let ours = may_go_on && self.may_go_on();
        let statement = if ours { &self.statements.finish_and_begin } else { &self.statements.finish };
        // Safe: what is put in are numbers.
        let statement =
            statement.as_str().replace("{progress}", &format!("{}, {lane}, {epoch}, {pos}", handler.0));
        let statement = AssertSqlSafe(statement).into_sql_str();
        let Some(transaction_id) = self.unproved()? else {
            let message = "a lane's transaction that was never armed cannot be finished";
            return Err(Error::new(ErrorKind::Transaction, message));
        };
        self.commit_with(statement, transaction_id).await?;
        if ours {
            return Ok(Some(self.begun()));
        }
        self.conn = None;
        Ok(None)
    }

    /// What was begun with the commit.
    fn begun(mut self) -> PostgresBegun {
        self.identity = None;
        self.carried = None;
        PostgresBegun(self)
    }

    async fn commit_with(&mut self, commit: SqlStr, transaction_id: u64) -> Result<(), Error> {
        // Put in as text: a message with several statements takes no parameters.
        let settings = self.settings.get().unwrap_or(&UNKNOWN);
        let commit = commit
            .as_str()
            .replace("{transaction_id}", &transaction_id.to_string())
            .replace("{session}", settings.digits());
        // Safe: what is put in are digits.
        let commit = sqlx::raw_sql(AssertSqlSafe(commit));
        self.timed().execute(commit).await.map_err(refused(doing::COMMIT)).map(drop)
    }

    pub(crate) async fn rollback(mut self) {
        if let Some(rollback) = self.start_rollback() {
            // The task closes a connection that cannot roll back, so there is nothing left to do here.
            let _ = rollback.await;
        }
    }

    /// Rolls back in a task of its own: a caller that goes away leaves a clean connection all the same.
    fn start_rollback(&mut self) -> Option<JoinHandle<()>> {
        let conn = self.conn.take()?;
        let (session, statements) = (self.session, self.statements.clone());
        match Handle::try_current() {
            Ok(runtime) if !conn.is_lost() => {
                Some(runtime.spawn(async move { rollback(conn, session, &statements).await }))
            }
            _ => {
                // Without a runtime or a response nothing can wait for a rollback. The server rolls back when the
                // connection closes.
                conn.hang_up();
                None
            }
        }
    }

    /// Closes the connection. The backend that was there is to be ended too, whatever it is doing: a server does not notice that
    /// a client is gone before its statement has ended, and holds all locks until then.
    pub(crate) fn abandon(mut self) -> Option<i32> {
        if let Some(conn) = self.conn.take() {
            conn.hang_up();
        }
        self.identity.as_ref().map(|identity| identity.backend)
    }
}

/// Never zero: that would mean for ever.
fn setting(time: Duration) -> String {
    format!("{}ms", time.as_millis().clamp(1, i32::MAX as u128))
}

/// Ends a transaction with nothing kept, and gives the connection back as it was.
async fn rollback(mut conn: TimedConnection, session: Session, statements: &Statements) {
    let rolled_back = match conn.depth() {
        // Returning it to the pool rolls back, and the session was not changed.
        1 if session == Session::Shared => Ok(()),
        1 => conn.execute(sqlx::raw_sql(statements.rollback.clone())).await.map(drop),
        // A nested transaction that was forgotten: not worth taking apart.
        _ => Err(sqlx::Error::InvalidSavePointStatement),
    };
    let rolled_back = match rolled_back {
        Ok(()) => conn.forget_prepared().await,
        failed => failed,
    };
    if let Err(error) = rolled_back {
        tracing::debug!(%error, "a connection that cannot roll back is closed");
        conn.hang_up();
    }
}

impl Drop for PostgresTx {
    fn drop(&mut self) {
        self.start_rollback();
    }
}

impl fmt::Debug for PostgresTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTx").field("limits", &self.limits).finish_non_exhaustive()
    }
}
