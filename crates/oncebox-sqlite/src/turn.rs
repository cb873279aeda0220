//! Turns: SQLite has one writer, and everybody who wants to write waits in line for it.
//!
//! SQLite itself lets waiting processes look again and again, and a busy one that comes right back wins every time. So
//! processes take turns with two lock files beside the database before they begin. Whoever waits for the turn holds the
//! place at the head of the line; the one who has just had its turn finds that place taken, and queues behind.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::fault::writer_busy;

/// The line for the writer of one database.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// One permit: within the process, first come, first served.
    own: Arc<Semaphore>,
    /// Between processes; none for a database in memory.
    files: Option<Arc<LockFiles>>,
}

#[derive(Debug)]
struct LockFiles {
    head: PathBuf,
    turn: PathBuf,
}

/// The right to write, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _own: OwnedSemaphorePermit,
    _file: Option<File>,
}

impl Line {
    /// The line for a database file, or for one in memory.
    pub(crate) fn new(database: Option<&Path>) -> Self {
        let beside = |database: &Path, ending: &str| {
            let mut name = database.as_os_str().to_owned();
            name.push(ending);
            PathBuf::from(name)
        };
        let files = database.map(|database| {
            let (head, turn) = (beside(database, "-oncebox-line"), beside(database, "-oncebox-turn"));
            Arc::new(LockFiles { head, turn })
        });
        Self { own: Arc::new(Semaphore::new(1)), files }
    }

    /// Waits for the turn.
    pub(crate) async fn wait(&self, max: Duration) -> Result<Turn, Error> {
        tokio::time::timeout(max, self.take()).await.unwrap_or_else(|_elapsed| Err(writer_busy()))
    }

    async fn take(&self) -> Result<Turn, Error> {
        let own = self.own.clone().acquire_owned().await;
        let own = own.map_err(|closed| Error::unavailable("the writer's line is closed", closed))?;
        let Some(files) = &self.files else { return Ok(Turn { _own: own, _file: None }) };
        let failed = |error: io::Error| {
            Error::unavailable(
                "the lock files beside the SQLite database cannot be used: check the folder's rights",
                error,
            )
        };
        if let Some(file) = files.try_take().map_err(failed)? {
            return Ok(Turn { _own: own, _file: Some(file) });
        }
        // If nobody waits for it any more when it is our turn, the file is dropped, and the turn goes on.
        let files = files.clone();
        match tokio::task::spawn_blocking(move || files.take()).await {
            Ok(file) => Ok(Turn { _own: own, _file: Some(file.map_err(failed)?) }),
            Err(stopped) => Err(Error::unavailable("the runtime is shutting down", stopped)),
        }
    }
}

impl LockFiles {
    /// The turn, if nobody has it and nobody waits.
    fn try_take(&self) -> io::Result<Option<File>> {
        let head = open(&self.head)?;
        if head.try_lock().is_err() {
            return Ok(None);
        }
        let turn = open(&self.turn)?;
        Ok(turn.try_lock().is_ok().then_some(turn))
    }

    /// The turn, after all who came before.
    fn take(&self) -> io::Result<File> {
        let head = open(&self.head)?;
        head.lock()?;
        let turn = open(&self.turn)?;
        turn.lock()?;
        Ok(turn)
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(path)
}
