//! Faults inside of the worker: kills at named points, lost results of commits, and lost prepared statements.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};

use oncebox::Error;
use oncebox_testing::{Faults, Point};
use oncebox_torture::kill_point::KillPoint;
use rustix::process::{Signal, getpid, kill_process};

/// The faults that are still to happen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Points(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    kill_at: Mutex<Option<KillPoint>>,
    results_to_lose: AtomicU32,
    deallocations: AtomicU32,
}

impl Points {
    /// Kills this process at the next passage of a point.
    pub(crate) fn kill_at(&self, point: KillPoint) {
        *self.0.kill_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(point);
    }

    /// Loses the results of that many commits.
    pub(crate) fn lose_results(&self, commits: u32) {
        self.0.results_to_lose.store(commits, Ordering::SeqCst);
    }

    /// Lets that many handler calls drop the prepared statements of their session.
    pub(crate) fn deallocate(&self, calls: u32) {
        self.0.deallocations.store(calls, Ordering::SeqCst);
    }

    /// Whether this handler call must drop the prepared statements of its session.
    pub(crate) fn must_deallocate(&self) -> bool {
        take(&self.0.deallocations)
    }

    /// Passes a point, or kills this process there: nothing is flushed, closed or rolled back.
    pub(crate) fn pass(&self, point: KillPoint) {
        let is_here = *self.0.kill_at.lock().unwrap_or_else(PoisonError::into_inner) == Some(point);
        if is_here {
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}

/// Decrements a counter. Returns whether it was greater than 0.
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
                if take(&self.0.results_to_lose) {
                    // An I/O error counts as a lost connection, so the inbox must find out whether the commit
                    // happened.
                    let reset = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
                    return Err(Error::unavailable("the result of the commit was lost", reset));
                }
            }
        }
        Ok(())
    }
}
