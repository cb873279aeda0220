//! A connection with a time limit for every response of the server.
//!
//! A server that disappears, or a firewall that drops packets, leaves a connection half open. A statement waits there for ever, and
//! so does the pool, which sends a ping when a connection comes back. So every statement of the store goes through here. One that
//! gets no response in time fails like on a broken connection. That connection is closed at once, without the usual
//! terminate message, which would wait for a response.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use oncebox_core::store::Fault;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgQueryResult, PgRow};
use sqlx::{Connection, Execute, Executor, PgConnection, Postgres, SqlStr};
use sqlx_core::transaction::TransactionManager;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::fault::classify;
use crate::servers::Servers;

type Manager = <Postgres as sqlx::Database>::TransactionManager;

/// Waits for an answer, and no longer than this.
pub(crate) async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    timeout(limit, answer).await.unwrap_or_else(|_elapsed| Err(silent(limit)))
}

/// How many transactions are open on a connection, one inside the other.
pub(crate) fn depth(conn: &PgConnection) -> usize {
    Manager::get_transaction_depth(conn)
}

/// As on a broken connection: it is unknown what the server has done.
fn silent(limit: Duration) -> sqlx::Error {
    let message = format!("no response within {limit:?}: the connection is closed");
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, message))
}

/// A connection, and how long to wait for its answers. Dropping it gives a connection of a pool back, with what is left of a
/// transaction rolled back.
pub(crate) struct TimedConnection<C: AnyConnection = PoolConnection<Postgres>> {
    /// `None` only while it is being dropped.
    conn: Option<C>,
    answer: Duration,
    /// What the server may take, by what it was told, before it has to answer.
    told: Duration,
    /// When it came from its pool.
    since: Instant,
    /// Whether the state of the session is unknown: then the connection is closed, not returned to the pool.
    lost: bool,
    /// Whether its session is of no use to others: then it is closed too, when its transaction has ended.
    bad: bool,
    /// Whether what the driver has prepared there may be out of date.
    prepared_is_old: bool,
}

/// A connection of a pool, or one that the caller owns.
pub(crate) trait AnyConnection: AsMut<PgConnection> + Send {
    /// Lets it go: closes it if it is lost, and else waits this long at most until it is as others expect it.
    fn let_go(self, lost: bool, limit: Duration);
}

impl TimedConnection {
    /// Takes a connection from the pool, which has its own limit for that, connecting included.
    pub(crate) async fn open(servers: &Servers, answer: Duration) -> Result<Self, sqlx::Error> {
        Ok(Self::on(servers.acquire().await?, answer))
    }
}

impl<C: AnyConnection> TimedConnection<C> {
    pub(crate) fn on(conn: C, answer: Duration) -> Self {
        Self {
            conn: Some(conn),
            answer,
            told: Duration::ZERO,
            since: Instant::now(),
            lost: false,
            bad: false,
            prepared_is_old: false,
        }
    }

    /// From now on the server may take this long before it has to answer.
    pub(crate) fn may_take(&mut self, told: Duration) {
        self.told = told;
    }

    /// When it came from its pool.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Whether an answer is missing.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Whether it is closed when it is let go.
    pub(crate) fn is_bad(&self) -> bool {
        self.lost || self.bad
    }

    /// Closes the connection when it is let go.
    pub(crate) fn close_later(&mut self) {
        self.bad = true;
    }

    /// Has statements prepared anew when its transaction is rolled back.
    pub(crate) fn prepare_anew(&mut self) {
        self.prepared_is_old = true;
    }

    /// Forgets what the driver has prepared, where that may be out of date.
    pub(crate) async fn forget_prepared(&mut self) -> Result<(), sqlx::Error> {
        if !std::mem::take(&mut self.prepared_is_old) {
            return Ok(());
        }
        let limit = self.limit()?;
        let forgotten = timeout(limit, self.connection().clear_cached_statements()).await;
        self.heard(limit, forgotten)
    }

    /// Closes the connection, whatever the server is doing, and makes room in the pool.
    pub(crate) fn hang_up(mut self) {
        self.lost = true;
    }

    /// The connection itself, for callers with their own time limits.
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        match &mut self.conn {
            Some(conn) => conn.as_mut(),
            None => unreachable!("only dropping takes the inner connection"),
        }
    }

    /// How many transactions are open, one inside the other.
    pub(crate) fn depth(&mut self) -> usize {
        depth(self.connection())
    }

    pub(crate) async fn begin(&mut self, begin: SqlStr) -> Result<(), sqlx::Error> {
        // Without a response it is unknown how far the server got, also for the driver.
        self.lost = true;
        within(self.answer, Manager::begin(self.connection(), Some(begin))).await?;
        self.lost = false;
        Ok(())
    }

    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        let limit = self.limit()?;
        let committed = timeout(limit, Manager::commit(self.connection())).await;
        self.heard(limit, committed)
    }

    pub(crate) async fn rollback(&mut self) -> Result<(), sqlx::Error> {
        let limit = self.limit()?;
        let rolled_back = timeout(limit, Manager::rollback(self.connection())).await;
        self.heard(limit, rolled_back)
    }

    pub(crate) async fn execute<'q>(
        &mut self,
        query: impl Execute<'q, Postgres> + 'q,
    ) -> Result<PgQueryResult, sqlx::Error> {
        let limit = self.limit()?;
        let executed = timeout(limit, self.connection().execute(query)).await;
        self.heard(limit, executed)
    }

    pub(crate) async fn fetch_all<'q>(
        &mut self,
        query: impl Execute<'q, Postgres> + 'q,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let limit = self.limit()?;
        let fetched = timeout(limit, self.connection().fetch_all(query)).await;
        self.heard(limit, fetched)
    }

    pub(crate) async fn fetch_one<'q>(
        &mut self,
        query: impl Execute<'q, Postgres> + 'q,
    ) -> Result<PgRow, sqlx::Error> {
        self.fetch_optional(query).await?.ok_or(sqlx::Error::RowNotFound)
    }

    pub(crate) async fn fetch_optional<'q>(
        &mut self,
        query: impl Execute<'q, Postgres> + 'q,
    ) -> Result<Option<PgRow>, sqlx::Error> {
        let limit = self.limit()?;
        let fetched = timeout(limit, self.connection().fetch_optional(query)).await;
        self.heard(limit, fetched)
    }

    /// How long to wait for the next answer; there is none from a connection that is lost.
    fn limit(&self) -> Result<Duration, sqlx::Error> {
        let limit = self.told.saturating_add(self.answer);
        if self.lost { Err(silent(limit)) } else { Ok(limit) }
    }

    fn heard<T>(
        &mut self,
        limit: Duration,
        answer: Result<Result<T, sqlx::Error>, tokio::time::error::Elapsed>,
    ) -> Result<T, sqlx::Error> {
        let answer = answer.unwrap_or_else(|_elapsed| {
            // The response may still come, and would be taken for that of the next statement.
            self.lost = true;
            Err(silent(limit))
        });
        if let Err(error) = &answer
            // Its plans or prepared statements are outdated: the next attempt needs a new session (decision 30).
            && classify(error) == Fault::Session
        {
            self.bad = true;
        }
        answer
    }
}

impl<C: AnyConnection> Drop for TimedConnection<C> {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            // Only the time for a response: the ping needs none of the time that statements may take.
            conn.let_go(self.is_bad(), self.answer);
        }
    }
}

impl AnyConnection for PoolConnection<Postgres> {
    fn let_go(mut self, lost: bool, limit: Duration) {
        let runtime = match Handle::try_current() {
            // A nested transaction that was forgotten is not worth taking apart.
            Ok(runtime) if !lost && Manager::get_transaction_depth(&self) <= 1 => runtime,
            // Detached, so that the pool has room for another. No closing message, which could wait for ever.
            _ => return drop(self.detach()),
        };
        // Sent when the pool takes the connection back, without waiting for the response.
        Manager::start_rollback(&mut self);
        // As the pool does on drop, but with a time limit: its ping would wait for ever on a half-open connection.
        let back = self.return_to_pool();
        runtime.spawn(async move {
            if timeout(limit, back).await.is_err() {
                tracing::debug!("a connection that does not answer is not given back to its pool");
            }
        });
    }
}

impl AnyConnection for &mut PgConnection {
    fn let_go(self, _lost: bool, _limit: Duration) {}
}

impl<C: AnyConnection> fmt::Debug for TimedConnection<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answer, told, lost, .. } = self;
        f.debug_struct("TimedConnection")
            .field("answer", answer)
            .field("told", told)
            .field("lost", lost)
            .finish()
    }
}
