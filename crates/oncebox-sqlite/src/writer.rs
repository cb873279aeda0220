//! The writer: the connection on which the last transaction ran is kept for the next, hooks and all.
//!
//! It waits a few milliseconds only: a connection that nobody needs belongs in its pool.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{Sqlite, SqlitePool};
use tokio::runtime::Handle;

use crate::seal::Seal;

/// How long a connection waits for the next transaction.
const LINGER: Duration = Duration::from_millis(5);
/// One transaction after the other uses the same connection for this long; then the pool sees it again, which knows when
/// it is too old.
const CONNECTION_TIME: Duration = Duration::from_secs(10);

/// A connection with its hooks.
pub(crate) struct Writer {
    pub(crate) conn: PoolConnection<Sqlite>,
    pub(crate) seal: Seal,
    /// When it was taken from its pool.
    since: Instant,
}

impl Writer {
    /// Makes a writer of a connection.
    pub(crate) async fn new(mut conn: PoolConnection<Sqlite>) -> Result<Self, sqlx::Error> {
        let seal = Seal::install(&mut conn).await?;
        Ok(Self { conn, seal, since: Instant::now() })
    }
}

/// Where the writer waits for its next transaction.
#[derive(Clone)]
pub(crate) struct Kept {
    pool: SqlitePool,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    waiting: Option<(Writer, Instant)>,
    /// Whether somebody looks after one that nobody takes.
    looked_after: bool,
}

impl Kept {
    pub(crate) fn new(pool: SqlitePool) -> Self {
        Self { pool, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer, if one waits.
    pub(crate) fn take(&self) -> Option<Writer> {
        self.state().waiting.take().map(|(writer, _)| writer)
    }

    /// Keeps a writer whose transaction has ended, unless others need the connection.
    pub(crate) fn put(&self, writer: Writer) {
        let others_have_some =
            self.pool.num_idle() > 0 || self.pool.size() < self.pool.options().get_max_connections();
        if !others_have_some || writer.since.elapsed() >= CONNECTION_TIME || self.pool.is_closed() {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let mut state = self.state();
        state.waiting = Some((writer, Instant::now()));
        if !std::mem::replace(&mut state.looked_after, true) {
            let kept = self.clone();
            runtime.spawn(async move {
                loop {
                    tokio::time::sleep(LINGER).await;
                    if !kept.give_up_old() {
                        return;
                    }
                }
            });
        }
    }

    /// Gives back one that has waited too long; whether there is one still.
    fn give_up_old(&self) -> bool {
        let mut state = self.state();
        let old = state.waiting.take_if(|(_, since)| since.elapsed() >= LINGER);
        state.looked_after = state.waiting.is_some();
        let goes_on = state.looked_after;
        drop(state);
        drop(old);
        goes_on
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("waiting", &self.state().waiting.is_some()).finish()
    }
}
