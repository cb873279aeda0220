//! Dying at named points, and losing the answers of commits.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};

use oncebox::Error;
use oncebox_testing::{Faults, Point};
use oncebox_torture::point::KillPoint;
use rustix::process::{Signal, getpid, kill_process};

/// What is to happen at which point.
#[derive(Clone, Debug, Default)]
pub(crate) struct Points(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    die_at: Mutex<Option<KillPoint>>,
    answers_to_lose: AtomicU32,
}

impl Points {
    /// Dies at the next passage of a point.
    pub(crate) fn die_at(&self, point: KillPoint) {
        *self.0.die_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(point);
    }

    /// Loses the answers of so many commits.
    pub(crate) fn lose_answers(&self, commits: u32) {
        self.0.answers_to_lose.store(commits, Ordering::SeqCst);
    }

    /// Passes a point, or dies there as by `kill -9`: nothing is flushed, closed or rolled back.
    pub(crate) fn pass(&self, point: KillPoint) {
        let here = *self.0.die_at.lock().unwrap_or_else(PoisonError::into_inner) == Some(point);
        if here {
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}

impl Faults for Points {
    async fn at(&self, point: Point) -> Result<(), Error> {
        match point {
            Point::BeforeClaim => self.pass(KillPoint::BeforeClaim),
            Point::AfterClaim => {}
            Point::BeforeCommit => self.pass(KillPoint::BeforeCommit),
            Point::AfterCommit => {
                self.pass(KillPoint::AfterCommit);
                let take = |left: u32| left.checked_sub(1);
                if self.0.answers_to_lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
                    let reset = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
                    return Err(Error::unavailable("the answer to the commit was lost", reset));
                }
            }
        }
        Ok(())
    }
}
