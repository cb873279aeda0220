//! The seal: as long as it is closed, nothing commits on the connection.
//!
//! A handler could run `COMMIT` itself, or `ROLLBACK` and then write on in autocommit mode. SQLite asks a hook
//! before every commit; while a handler runs, that hook says no. A second hook notices every rollback, so that a
//! transaction can be told from another one after it. The same object carries the handler's deadline for a third, which
//! interrupts statements that run too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oncebox_core::mutant;
use sqlx::SqliteConnection;

/// Instructions of SQLite's virtual machine between two looks at the clock.
const INSTRUCTIONS_BETWEEN_LOOKS: i32 = 10_000;

/// A deadline that has passed already, as soon as a statement takes a millisecond.
const EXPIRED: u64 = 1;

/// Shared by a transaction and the hooks on its connection. An open seal without deadline lets everything
/// through, so hooks that outlive their transaction do no harm.
#[derive(Clone, Debug)]
pub(crate) struct Seal(Arc<SealState>);

#[derive(Debug)]
struct SealState {
    closed: AtomicBool,
    since: Instant,
    /// Milliseconds after `since`; 0 for none.
    deadline_ms: AtomicU64,
    refused: AtomicBool,
    rolled_back: AtomicBool,
}

impl Seal {
    /// Hooks an open seal into a connection.
    pub(crate) async fn install(conn: &mut SqliteConnection) -> Result<Self, sqlx::Error> {
        let state = SealState {
            closed: AtomicBool::new(false),
            since: Instant::now(),
            deadline_ms: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            rolled_back: AtomicBool::new(false),
        };
        let seal = Self(Arc::new(state));
        let mut handle = conn.lock_handle().await?;
        let commit = seal.clone();
        handle.set_commit_hook(move || {
            let closed = commit.0.closed.load(Ordering::SeqCst) && !mutant!("guard_removed_sqlite");
            // Recorded: a handler that ran COMMIT would do so again, while a rollback for another reason deserves a
            // retry.
            commit.0.refused.fetch_or(closed, Ordering::SeqCst);
            !closed
        });
        let rollback = seal.clone();
        handle.set_rollback_hook(move || rollback.0.rolled_back.store(true, Ordering::SeqCst));
        let progress = seal.clone();
        handle.set_progress_handler(INSTRUCTIONS_BETWEEN_LOOKS, move || !progress.is_late());
        Ok(seal)
    }

    /// From now on nothing commits, and statements end at the deadline.
    pub(crate) fn close(&self, handler_timeout: Duration) {
        let deadline = self.0.since.elapsed().saturating_add(handler_timeout).as_millis();
        // At least 1, because 0 means no deadline.
        self.0.deadline_ms.store(u64::try_from(deadline).unwrap_or(u64::MAX).max(1), Ordering::SeqCst);
        self.0.closed.store(true, Ordering::SeqCst);
    }

    /// Forgets what became of the transaction before.
    pub(crate) fn renew(&self) {
        self.open();
        self.0.refused.store(false, Ordering::SeqCst);
        self.0.rolled_back.store(false, Ordering::SeqCst);
    }

    /// Ends the statement that is running; still nothing commits.
    pub(crate) fn expire(&self) {
        self.0.deadline_ms.store(EXPIRED, Ordering::SeqCst);
    }

    /// Whether a commit was refused.
    pub(crate) fn has_refused(&self) -> bool {
        self.0.refused.load(Ordering::SeqCst)
    }

    /// Whether a whole transaction was rolled back since the seal was installed or renewed.
    pub(crate) fn has_rolled_back(&self) -> bool {
        self.0.rolled_back.load(Ordering::SeqCst)
    }

    /// Lets everything through again.
    pub(crate) fn open(&self) {
        self.0.closed.store(false, Ordering::SeqCst);
        self.0.deadline_ms.store(0, Ordering::SeqCst);
    }

    fn is_late(&self) -> bool {
        // Relaxed is enough: a deadline that is noticed 10,000 instructions later does no harm.
        let deadline = self.0.deadline_ms.load(Ordering::Relaxed);
        deadline != 0 && self.0.since.elapsed().as_millis() >= u128::from(deadline)
    }
}
