//! The store's connections: one of the pool for a statement or a few, a warm one for appends, a transaction of the store's own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncebox_core::store::Lingering;
use oncebox_core::{AsyncFunc, Error};
use sqlx::postgres::{PgQueryResult, PgRow};
use sqlx::{Execute, Postgres};

use crate::connection::TimedConnection;
use crate::fault::{begins_no_writes, failed, refused_to_write, takes_no_writes};
use crate::servers::Servers;
use crate::statements::Statements;

/// A pool replaces connections that are old when they come back: after this time one is not kept warm any more.
const WARM_FOR: Duration = Duration::from_secs(1);

/// Connections to the server that takes writes, each with a time limit for every response.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    pub(crate) servers: Servers,
    pub(crate) answer_timeout: Duration,
    statements: Arc<Statements>,
    /// Connections on which messages were appended.
    appenders: Lingering<TimedConnection>,
}

impl Connections {
    pub(crate) fn new(servers: Servers, answer_timeout: Duration, statements: Arc<Statements>) -> Self {
        Self { servers, answer_timeout, statements, appenders: Lingering::new() }
    }

    /// The same connections, for the statements of another schema.
    pub(crate) fn with_statements(self, statements: Arc<Statements>) -> Self {
        Self { statements, ..self }
    }

    /// A connection of the pool.
    pub(crate) async fn take(&self) -> Result<TimedConnection, sqlx::Error> {
        TimedConnection::open(&self.servers, self.answer_timeout).await
    }

    /// Wraps an error of a statement without a transaction; a server that takes no writes is not used any more.
    pub(crate) fn failed(&self, doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
        move |error| self.left_if(takes_no_writes(&error), doing, error)
    }

    /// Wraps an error of a statement that begins a transaction; a server that takes no writes is not used any more.
    pub(crate) fn not_begun(&self, doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
        move |error| self.left_if(begins_no_writes(&error), doing, error)
    }

    fn left_if(&self, takes_no_writes: bool, doing: &'static str, error: sqlx::Error) -> Error {
        if !takes_no_writes {
            return failed(doing)(error);
        }
        // The other connections of the pool lead to the same server.
        self.servers.distrust();
        refused_to_write(doing)(error)
    }

    /// A connection of the pool, for one statement or a few.
    pub(crate) async fn open(&self, doing: &'static str) -> Result<TimedConnection, Error> {
        self.take().await.map_err(failed(doing))
    }

    /// Runs a statement on a connection of the pool.
    pub(crate) async fn execute<'q>(
        &self,
        doing: &'static str,
        query: impl Execute<'q, Postgres> + 'q,
    ) -> Result<PgQueryResult, Error> {
        self.open(doing).await?.execute(query).await.map_err(self.failed(doing))
    }

    /// Runs a statement on a connection of the pool, and returns its rows.
    pub(crate) async fn fetch_all<'q>(
        &self,
        doing: &'static str,
        query: impl Execute<'q, Postgres> + 'q,
    ) -> Result<Vec<PgRow>, Error> {
        self.open(doing).await?.fetch_all(query).await.map_err(self.failed(doing))
    }

    /// Runs a statement on a connection of the pool, and returns its only row.
    pub(crate) async fn fetch_one<'q>(
        &self,
        doing: &'static str,
        query: impl Execute<'q, Postgres> + 'q,
    ) -> Result<PgRow, Error> {
        self.open(doing).await?.fetch_one(query).await.map_err(self.failed(doing))
    }

    /// Runs a statement on a connection of the pool, and returns its row if there is one.
    pub(crate) async fn fetch_optional<'q>(
        &self,
        doing: &'static str,
        query: impl Execute<'q, Postgres> + 'q,
    ) -> Result<Option<PgRow>, Error> {
        self.open(doing).await?.fetch_optional(query).await.map_err(self.failed(doing))
    }

    /// A connection that was kept, or one of the pool. A pool asks the server about each connection that comes back, which costs as
    /// much as a small statement. A connection on which a statement has failed is not kept.
    pub(crate) async fn warm(&self) -> Result<TimedConnection, sqlx::Error> {
        match self.appenders.take() {
            Some(conn) if self.servers.trust(conn.since()) => return Ok(conn),
            // It leads to a server that is no longer the primary.
            Some(conn) => conn.hang_up(),
            None => {}
        }
        self.take().await
    }

    /// Keeps a connection for the next statement, unless it is old or others need it.
    pub(crate) fn keep_warm(&self, conn: TimedConnection) {
        if conn.since().elapsed() < WARM_FOR && !conn.is_bad() && self.servers.have_room() {
            self.appenders.keep(conn);
        }
    }

    /// Begins a transaction whose statements see what was committed before each of them, whatever the default is.
    pub(crate) async fn begin(&self, doing: &'static str) -> Result<TimedConnection, Error> {
        let (servers, answer, begin) =
            (self.servers.clone(), self.answer_timeout, self.statements.begin_shared.clone());
        // In a task of its own: a caller that goes away must not leave a transaction half begun.
        let begun = tokio::spawn(async move {
            let mut conn = TimedConnection::open(&servers, answer).await?;
            conn.begin(begin).await.map(|()| conn)
        });
        begun.await.unwrap_or(Err(sqlx::Error::WorkerCrashed)).map_err(self.not_begun(doing))
    }

    /// Runs statements in one transaction; the server may take this long for each of them.
    pub(crate) async fn in_transaction<R, F>(
        &self,
        doing: &'static str,
        each: Duration,
        statements: F,
    ) -> Result<R, Error>
    where
        for<'t> F: AsyncFnOnce(&'t mut TimedConnection) -> Result<R, sqlx::Error>
            + AsyncFunc<&'t mut TimedConnection, Result<R, sqlx::Error>, Fut: Send>
            + Send,
        R: Send,
    {
        let mut tx = self.begin(doing).await?;
        tx.may_take(each);
        // On an error, dropping `tx` rolls back.
        let result = statements(&mut tx).await.map_err(failed(doing))?;
        tx.commit().await.map_err(failed(doing))?;
        Ok(result)
    }

    /// Whether a connection that left the pool then may be used again: there are others left, and it leads to the primary.
    pub(crate) fn may_go_on(&self, since: Instant) -> bool {
        self.servers.have_room() && self.servers.trust(since)
    }
}
