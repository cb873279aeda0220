//! The queue for SQLite's one writer.
//!
//! SQLite lets waiting processes poll, and a busy process that comes back at once wins every time. So processes take turns with
//! two lock files beside the database before they begin a transaction. A process that waits for its turn holds the place at the
//! head of the queue. A process that has just had its turn finds this place taken, and queues behind.
//!
//! A process is in the queue once. A caller that times out leaves the place to the next caller of its process: abandoned places
//! would block all processes, their own most of all.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncebox_core::Error;
use oncebox_core::store::refusal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::fault::writer_busy;

/// The queue for the writer of one database.
#[derive(Clone, Debug)]
pub(crate) struct WriterQueue {
    /// One permit: within the process, first come, first served.
    own: Arc<Semaphore>,
    /// Between processes; none for a database in memory.
    files: Option<Arc<LockFiles>>,
}

#[derive(Debug)]
struct LockFiles {
    head: PathBuf,
    turn: PathBuf,
    place: Mutex<QueuePlace>,
}

/// This process's place in the queue.
#[derive(Debug, Default)]
struct QueuePlace {
    /// Whether a thread waits there.
    taken: bool,
    /// The caller that gets the turn.
    wanted: Option<oneshot::Sender<io::Result<File>>>,
}

/// The right to write, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _own: OwnedSemaphorePermit,
    _file: Option<File>,
}

impl WriterQueue {
    /// The queue for a database file, or for a database in memory.
    pub(crate) fn new(database: Option<&Path>) -> Self {
        let beside = |database: &Path, ending: &str| {
            let mut name = database.as_os_str().to_owned();
            name.push(ending);
            PathBuf::from(name)
        };
        let files = database.map(|database| {
            // Two files: one process waits at the head while another one has the turn.
            let (head, turn) = (beside(database, "-oncebox-line"), beside(database, "-oncebox-turn"));
            Arc::new(LockFiles { head, turn, place: Mutex::default() })
        });
        Self { own: Arc::new(Semaphore::new(1)), files }
    }

    /// Waits for the turn.
    pub(crate) async fn wait(&self, max: Duration) -> Result<Turn, Error> {
        tokio::time::timeout(max, self.take()).await.unwrap_or_else(|_elapsed| Err(writer_busy()))
    }

    async fn take(&self) -> Result<Turn, Error> {
        // First in line within the process, so that a process has a single place between processes.
        let own = self.own.clone().acquire_owned().await;
        let own = own.map_err(|closed| Error::unavailable("the queue for the writer is closed", closed))?;
        let Some(files) = &self.files else { return Ok(Turn { _own: own, _file: None }) };
        let failed = |error: io::Error| {
            Error::unavailable(
                "SQLite's lock files cannot be used: check that the program may write to the folder of the database",
                error,
            )
        };
        let file = match files.try_take().map_err(failed)? {
            Some(file) => file,
            None => match files.wait().await {
                Ok(file) => file.map_err(failed)?,
                Err(stopped) => return Err(refusal::runtime_stops(stopped)),
            },
        };
        Ok(Turn { _own: own, _file: Some(file) })
    }
}

impl LockFiles {
    fn place(&self) -> MutexGuard<'_, QueuePlace> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn, after all earlier callers. One caller of a process waits at a time.
    async fn wait(self: &Arc<Self>) -> Result<io::Result<File>, oneshot::error::RecvError> {
        let (give, given) = oneshot::channel();
        let is_taken = {
            let mut place = self.place();
            // This replaces a caller that has timed out, and takes over its place.
            place.wanted = Some(give);
            std::mem::replace(&mut place.taken, true)
        };
        if !is_taken {
            let files = self.clone();
            // On a thread of its own: waiting for a file lock blocks, and nothing can cancel it.
            tokio::task::spawn_blocking(move || {
                let file = files.take();
                let wanted = {
                    let mut place = files.place();
                    // Both under one lock: a new caller either gets this turn or starts a new thread.
                    place.taken = false;
                    place.wanted.take()
                };
                // If no caller is left, the file is dropped, which gives the turn to the next process.
                wanted.map(|give| give.send(file))
            });
        }
        given.await
    }

    /// The turn, if it is free and no process waits for it.
    fn try_take(&self) -> io::Result<Option<File>> {
        // A thread is in the queue already, for a caller that has timed out: take over its place.
        if self.place().taken {
            return Ok(None);
        }
        let head = open(&self.head)?;
        // Another process is at the head, and its turn comes first.
        if head.try_lock().is_err() {
            return Ok(None);
        }
        let turn = open(&self.turn)?;
        Ok(turn.try_lock().is_ok().then_some(turn))
    }

    /// The turn, after all earlier processes.
    fn take(&self) -> io::Result<File> {
        let head = open(&self.head)?;
        // Locked until the turn is there: it keeps a process that has just had its turn behind this one.
        head.lock()?;
        let turn = open(&self.turn)?;
        turn.lock()?;
        Ok(turn)
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(path)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// The number of waiters for the lock of a file, in all processes.
    fn waiting_at(file: &Path) -> usize {
        let number = format!(":{} ", file.metadata().unwrap().ino());
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().filter(|line| line.contains("->") && line.contains(&number)).count()
    }

    /// As two processes have them.
    fn two_queues(folder: &Path) -> [WriterQueue; 2] {
        let database = folder.join("inbox.db");
        [(); 2].map(|()| WriterQueue::new(Some(&database)))
    }

    #[tokio::test]
    async fn a_process_that_has_just_had_its_turn_queues_behind() {
        let folder = tempfile::tempdir().unwrap();
        let [mut one, mut other] = two_queues(folder.path());
        let turns = one.files.clone().unwrap();
        let in_queue = |queue: &WriterQueue| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.wait(Duration::from_secs(600)).await.unwrap() })
        };
        let mut turn = in_queue(&one).await.unwrap();
        let mut next = in_queue(&other);
        for _ in 0..50 {
            while waiting_at(&turns.turn) == 0 {
                tokio::task::yield_now().await;
            }
            // It wants another one at once.
            let mut again = in_queue(&one);
            tokio::task::yield_now().await;
            drop(turn);
            turn = tokio::select! {
                turn = &mut next => turn.unwrap(),
                _ = &mut again => panic!("it did not queue behind the one that waits"),
            };
            next = again;
            std::mem::swap(&mut one, &mut other);
        }
    }

    #[tokio::test]
    async fn a_caller_that_times_out_leaves_its_place_to_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = two_queues(folder.path());
        let turn = one.wait(Duration::from_secs(60)).await.unwrap();
        for _ in 0..20 {
            other.wait(Duration::from_millis(2)).await.unwrap_err();
        }
        let files = one.files.as_ref().unwrap();
        while waiting_at(&files.turn) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!((waiting_at(&files.head), waiting_at(&files.turn)), (0, 1));
        let next =
            tokio::spawn(async move { other.wait(Duration::from_secs(60)).await.map(|turn| (turn, other)) });
        drop(turn);
        let (turn, other) = next.await.unwrap().unwrap();
        drop(turn);

        // An abandoned place gives the turn on by itself.
        let turn = one.wait(Duration::from_secs(60)).await.unwrap();
        other.wait(Duration::from_millis(2)).await.unwrap_err();
        drop(turn);
        drop(one.wait(Duration::from_secs(60)).await.unwrap());
        drop(other.wait(Duration::from_secs(60)).await.unwrap());
    }
}
