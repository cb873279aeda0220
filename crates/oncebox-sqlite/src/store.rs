//! The store: a pool, and a queue for its one writer.

use std::error::Error as StdError;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use oncebox_core::store::{Fault, Guarantee, Limits, Retries, Store, TestTime, doing, refusal};
use oncebox_core::{Error, ErrorKind};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{SqliteConnection, SqlitePool};

use crate::fault::{classify, failed, is_about_data};
use crate::file::DatabaseFile;
use crate::transaction::{SqliteTx, depth};
use crate::writer::{Kept, Writer};
use crate::writer_queue::WriterQueue;

/// How long SQLite itself waits for the writer of another process before the store asks again.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum time to connect while another process creates the file.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
// One writes, the others read: with WAL, readers do not wait for the writer.
const CONNECTIONS: u32 = 4;

/// Oncebox on SQLite.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    pub(crate) pool: SqlitePool,
    file: DatabaseFile,
    /// SQLite has one writer.
    queue: WriterQueue,
    kept: Kept,
    clock_offset_ms: Arc<AtomicI64>,
}

impl SqliteStore {
    /// A store on your own pool. Handlers and your other code then share the database.
    ///
    /// The connections should use WAL and `synchronous = FULL`; `check` says so where they do not.
    pub fn new(pool: SqlitePool) -> Self {
        let options = pool.connect_options();
        let file = options.get_filename();
        // The driver gives a database in memory a name of this form. It has no file to check or to lock.
        let in_memory = file.to_string_lossy().starts_with("file:");
        let file = DatabaseFile::new((!in_memory).then_some(file));
        let queue = WriterQueue::new(file.path());
        let kept = Kept::new(pool.clone());
        Self { pool, file, queue, kept, clock_offset_ms: Arc::default() }
    }

    /// A store on a database file, which is created if need be, or in memory: `sqlite://orders.db`,
    /// `orders.db`, `sqlite::memory:`.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let bad_url = |error: sqlx::Error| {
            Error::new(
                ErrorKind::Configuration,
                "the SQLite URL cannot be read: use a path such as `orders.db`, `sqlite://orders.db` or `sqlite::memory:`",
            )
            .with_source(error)
        };
        let in_memory = url.contains(":memory:") || url.contains("mode=memory");
        let options = SqliteConnectOptions::from_str(url)
            .map_err(bad_url)?
            .create_if_missing(true)
            // Without WAL, readers and the writer block each other. Without FULL, a power failure can lose a commit.
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT);
        let pool = if in_memory {
            // Each connection to memory opens a database of its own, so the pool keeps a single one for ever.
            SqlitePoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None)
        } else {
            SqlitePoolOptions::new().max_connections(CONNECTIONS)
        };
        // There is no server that can go away. And a caller that is cancelled during the test would drop the connection, with
        // all contents of a database in memory.
        let pool = pool.test_before_acquire(false);
        let mut retries = Retries::within(CONNECT_LIMIT);
        loop {
            match pool.clone().connect_with(options.clone()).await {
                Ok(pool) => return Ok(Self::new(pool)),
                // Processes that start at once all switch the new file to WAL; SQLite does not queue them.
                Err(error) if classify(&error) == Fault::LockTimeout && !retries.is_over() => {
                    retries.pause().await;
                }
                Err(error) => {
                    let message =
                        "SQLite cannot open the database: check that the folder exists and can be written";
                    return Err(Error::unavailable(message, error));
                }
            }
        }
    }

    /// The pool underneath.
    pub fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    /// Begins a transaction as the writer, unless that takes longer than this.
    pub(crate) async fn begin_within(
        &self,
        limit: Duration,
        handler_timeout: Duration,
    ) -> Result<SqliteTx, Error> {
        let turn = self.queue.wait(limit).await?;
        // At each begin, before anything is written: a write to a removed file would be lost.
        self.file.check()?;
        let (pool, kept) = (self.pool.clone(), self.kept.clone());
        // In a task of its own: a caller that goes away must not leave a transaction half begun.
        let begun = tokio::spawn(async move {
            let writer = match kept.take() {
                Some(writer) => writer,
                None => Writer::new(pool.acquire().await?).await?,
            };
            SqliteTx::begin(writer, kept, turn, handler_timeout).await
        });
        match begun.await {
            Ok(begun) => begun.map_err(failed(doing::BEGIN)),
            Err(stopped) => Err(refusal::runtime_stops(stopped)),
        }
    }

    pub(crate) fn clock_offset_ms(&self) -> i64 {
        self.clock_offset_ms.load(Ordering::SeqCst)
    }
}

impl TestTime for SqliteStore {
    fn travel(&self, time: Duration) {
        self.clock_offset_ms.fetch_add(i64::try_from(time.as_millis()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }
}

impl Store for SqliteStore {
    const NAME: &'static str = "sqlite";
    const GUARANTEE: Guarantee = Guarantee::Exactly;
    type Conn = SqliteConnection;
    type Tx = SqliteTx;

    /// One writer.
    fn capacity(&self) -> usize {
        1
    }

    async fn check(&self) -> Result<(), Error> {
        self.check_version().await?;
        self.check_durability().await
    }

    async fn begin(&self, limits: Limits) -> Result<SqliteTx, Error> {
        // All keys share the writer: a unit that must not wait for its duplicate still waits for other units.
        self.begin_within(limits.lock_timeout.max(BUSY_TIMEOUT), limits.handler_timeout).await
    }

    fn connection(tx: &mut SqliteTx) -> &mut SqliteConnection {
        tx.connection()
    }

    async fn arm(&self, tx: &mut SqliteTx) -> Result<(), Error> {
        tx.arm();
        Ok(())
    }

    async fn guard(&self, tx: &mut SqliteTx) -> Result<(), Error> {
        tx.guard().await
    }

    async fn commit(&self, tx: SqliteTx) -> Result<(), Error> {
        tx.commit().await
    }

    async fn rollback(&self, tx: SqliteTx) {
        tx.rollback().await;
    }

    /// The deadline has interrupted the statement already: what is left to do is to roll back.
    async fn abandon(&self, tx: SqliteTx) {
        tx.rollback().await;
    }

    /// A nested transaction that was dropped rolls back in the background: until then the driver still counts it. One that is left
    /// open is found by the guard, which waits for that.
    fn is_lent(conn: &mut SqliteConnection) -> bool {
        depth(conn) >= 1
    }

    fn classify(error: &(dyn StdError + 'static)) -> Fault {
        classify(error)
    }

    fn is_about_data(error: &(dyn StdError + 'static)) -> bool {
        is_about_data(error)
    }
}
