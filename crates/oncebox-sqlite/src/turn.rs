//! Turns: SQLite has one writer, and everybody who wants to write waits in line for it.
//!
//! SQLite itself lets waiting processes look again and again, and a busy one that comes right back wins every time. So
//! processes take turns with two lock files beside the database before they begin. Whoever waits for the turn holds the
//! place at the head of the line; the one who has just had its turn finds that place taken, and queues behind.
//!
//! A process stands in line once. Whoever loses patience leaves the place to the next one of its process: places that nobody
//! wants any more would keep everybody waiting, their own process most of all.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncebox_core::Error;
use oncebox_core::store::refusal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

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
    place: Mutex<Place>,
}

/// This process's place in the line.
#[derive(Debug, Default)]
struct Place {
    /// Whether a thread stands there.
    taken: bool,
    /// Who gets the turn.
    wanted: Option<oneshot::Sender<io::Result<File>>>,
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
            Arc::new(LockFiles { head, turn, place: Mutex::default() })
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
    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn, after all who came before. One of a process waits at a time.
    async fn wait(self: &Arc<Self>) -> Result<io::Result<File>, oneshot::error::RecvError> {
        let (give, given) = oneshot::channel();
        let is_taken = {
            let mut place = self.place();
            place.wanted = Some(give);
            std::mem::replace(&mut place.taken, true)
        };
        if !is_taken {
            let files = self.clone();
            tokio::task::spawn_blocking(move || {
                let file = files.take();
                let wanted = {
                    let mut place = files.place();
                    place.taken = false;
                    place.wanted.take()
                };
                // If nobody wants it any more, the file is dropped, and the turn goes on.
                wanted.map(|give| give.send(file))
            });
        }
        given.await
    }

    /// The turn, if nobody has it and nobody waits.
    fn try_take(&self) -> io::Result<Option<File>> {
        if self.place().taken {
            return Ok(None);
        }
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

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Those who stand in line at a file, in all processes.
    fn waiting_at(file: &Path) -> usize {
        let number = format!(":{} ", file.metadata().unwrap().ino());
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().filter(|line| line.contains("->") && line.contains(&number)).count()
    }

    /// As two processes have them.
    fn two_lines(folder: &Path) -> [Line; 2] {
        let database = folder.join("inbox.db");
        [(); 2].map(|()| Line::new(Some(&database)))
    }

    #[tokio::test]
    async fn whoever_has_just_had_its_turn_queues_behind() {
        let folder = tempfile::tempdir().unwrap();
        let [mut one, mut other] = two_lines(folder.path());
        let turns = one.files.clone().unwrap();
        let in_line = |line: &Line| {
            let line = line.clone();
            tokio::spawn(async move { line.wait(Duration::from_secs(600)).await.unwrap() })
        };
        let mut turn = in_line(&one).await.unwrap();
        let mut next = in_line(&other);
        for _ in 0..50 {
            while waiting_at(&turns.turn) == 0 {
                tokio::task::yield_now().await;
            }
            // It wants another one at once.
            let mut again = in_line(&one);
            tokio::task::yield_now().await;
            drop(turn);
            turn = tokio::select! {
                turn = &mut next => turn.unwrap(),
                _ = &mut again => panic!("it did not queue behind the one who waits"),
            };
            next = again;
            std::mem::swap(&mut one, &mut other);
        }
    }

    #[tokio::test]
    async fn whoever_loses_patience_leaves_its_place_to_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = two_lines(folder.path());
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

        // A place that nobody wants any more goes on by itself.
        let turn = one.wait(Duration::from_secs(60)).await.unwrap();
        other.wait(Duration::from_millis(2)).await.unwrap_err();
        drop(turn);
        drop(one.wait(Duration::from_secs(60)).await.unwrap());
        drop(other.wait(Duration::from_secs(60)).await.unwrap());
    }
}
