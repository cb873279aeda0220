//! Dying at named points, losing the answers of commits, and losing prepared statements.

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
    deallocations: AtomicU32,
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

    /// Lets the next so many handler calls drop the prepared statements of their session.
    pub(crate) fn deallocate(&self, calls: u32) {
        self.0.deallocations.store(calls, Ordering::SeqCst);
    }

    /// Whether this handler call is to drop the prepared statements of its session.
    pub(crate) fn is_to_deallocate(&self) -> bool {
        take(&self.0.deallocations)
    }

    /// Passes a point, or dies there as by `kill -9`: nothing is flushed, closed or rolled back.
    pub(crate) fn pass(&self, point: KillPoint) {
        let here = *self.0.die_at.lock().unwrap_or_else(PoisonError::into_inner) == Some(point);
        if here {
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}

/// Takes one of what is left; whether there was one.
fn take(left: &AtomicU32) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Faults for Points {
    async fn at(&self, point: Point) -> Result<(), Error> {
        match point {
            Point::BeforeClaim => self.pass(KillPoint::BeforeClaim),
            Point::AfterClaim => {}
            Point::BeforeCommit => self.pass(KillPoint::BeforeCommit),
            Point::AfterCommit => {
                self.pass(KillPoint::AfterCommit);
                if take(&self.0.answers_to_lose) {
                    let reset = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
                    return Err(Error::unavailable("the answer to the commit was lost", reset));
                }
            }
        }
        Ok(())
    }
}
