//! The writer: the connection on which the last transaction ran is kept for the next, hooks and all.

use std::time::{Duration, Instant};

use oncebox_core::store::Lingering;
use sqlx::pool::PoolConnection;
use sqlx::{Sqlite, SqlitePool};

use crate::seal::Seal;

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
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pool: SqlitePool,
    writer: Lingering<Writer>,
}

impl Kept {
    pub(crate) fn new(pool: SqlitePool) -> Self {
        Self { pool, writer: Lingering::new() }
    }

    /// The writer, if one waits.
    pub(crate) fn take(&self) -> Option<Writer> {
        self.writer.take()
    }

    /// Keeps a writer whose transaction has ended, unless others need the connection.
    pub(crate) fn put(&self, writer: Writer) {
        // No other caller can use a kept connection. With a single one in the pool, readers would wait for it.
        let others_have_some =
            self.pool.num_idle() > 0 || self.pool.size() < self.pool.options().get_max_connections();
        if others_have_some && writer.since.elapsed() < CONNECTION_TIME && !self.pool.is_closed() {
            self.writer.keep(writer);
        }
    }
}
