//! Faults inside of the worker: kills at named points, lost results of commits, and lost prepared statements.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};

use oncebox::Error;
use oncebox_testing::{Faults, Point};
use oncebox_torture::kill_point::KillPoint;
use oncebox_torture::protocol::WorkerReport;
use rustix::process::{Signal, getpid, kill_process};

use crate::report::report;

/// The faults that are still to happen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Points {
    shared: Arc<Inner>,
    /// Whether they are for the mover and the relay, which have points of their own.
    are_of_outbox: bool,
}

#[derive(Debug, Default)]
struct Inner {
    kill_at: Mutex<Option<KillPoint>>,
    results_to_lose: AtomicU32,
    outbox_results_to_lose: AtomicU32,
    deallocations: AtomicU32,
}

impl Points {
    /// The same faults, for the store of an outbox.
    pub(crate) fn of_outbox(&self) -> Self {
        Self { shared: self.shared.clone(), are_of_outbox: true }
    }

    /// Kills this process at the next passage of a point.
    pub(crate) fn kill_at(&self, point: KillPoint) {
        *self.shared.kill_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(point);
    }

    /// Loses the results of that many commits.
    pub(crate) fn lose_results(&self, commits: u32) {
        self.shared.results_to_lose.store(commits, Ordering::SeqCst);
    }

    /// Loses the results of that many commits of the mover and the relay.
    pub(crate) fn lose_outbox_results(&self, commits: u32) {
        self.shared.outbox_results_to_lose.store(commits, Ordering::SeqCst);
    }

    /// Whether the result of the commit that has just happened is lost.
    fn loses_result(&self) -> bool {
        if !self.are_of_outbox {
            return take(&self.shared.results_to_lose);
        }
        let loses = take(&self.shared.outbox_results_to_lose);
        if loses {
            report(&WorkerReport::OutboxResultLost);
        }
        loses
    }

    /// Lets that many handler calls drop the prepared statements of their session.
    pub(crate) fn deallocate(&self, calls: u32) {
        self.shared.deallocations.store(calls, Ordering::SeqCst);
    }

    /// Whether this handler call must drop the prepared statements of its session.
    pub(crate) fn must_deallocate(&self) -> bool {
        take(&self.shared.deallocations)
    }

    /// Passes a point, or kills this process there: nothing is flushed, closed or rolled back.
    pub(crate) fn pass(&self, point: KillPoint) {
        let is_here = *self.shared.kill_at.lock().unwrap_or_else(PoisonError::into_inner) == Some(point);
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
        let kill_point = match (point, self.are_of_outbox) {
            (Point::BeforeClaim, false) => Some(KillPoint::BeforeClaim),
            (Point::BeforeCommit, false) => Some(KillPoint::BeforeCommit),
            (Point::AfterCommit, false) => Some(KillPoint::AfterCommit),
            (Point::BeforeCommit, true) => Some(KillPoint::BeforeOutboxCommit),
            (Point::AfterCommit, true) => Some(KillPoint::AfterOutboxCommit),
            (Point::BeforeClaim, true) | (Point::AfterClaim, _) => None,
        };
        if let Some(kill_point) = kill_point {
            self.pass(kill_point);
        }
        if point == Point::AfterCommit && self.loses_result() {
            // An I/O error counts as a lost connection, so the inbox must find out whether the commit happened.
            let reset = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
            return Err(Error::unavailable("the result of the commit was lost", reset));
        }
        Ok(())
    }
}
