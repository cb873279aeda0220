//! Care: after two crashes without progress in between, the messages of a lane run one by one, each after a note about it.
//!
//! A message that crashes its process leaves its note behind. Another process finds the note, sees that its author is gone, and
//! knows which message was running. After the third time the message becomes a dead letter, and the lane continues.

use std::time::Instant;

use crate::Error;
use crate::inbox::registered::Registered;
use crate::inbox::stored::visit::{VisitPlan, VisitResult, VisitTarget};
use crate::inbox::stored::worker::WorkReport;
use crate::inbox::stored::{LaneVisitor, LogStore};
use crate::outcome::{Outcome, Rejection, cause};
use crate::store::Taker;

/// The number of crashes after which a message becomes a dead letter: two that only made it a suspect, and three while it ran alone.
// Three, because on SQLite a message that runs alone waits for the writer, and `kill -9` from outside can hit that wait twice.
pub(super) const CRASHES_MAX: u32 = 5;

impl<S: LogStore> LaneVisitor<S> {
    /// Visits a lane with care, for the duration of one batch.
    pub(super) async fn visit_carefully(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        target: VisitTarget,
    ) -> Result<VisitResult, Error> {
        // Nothing else may run in this process, or a crash could be blamed on the wrong message.
        let _alone = self.alone.write().await;
        let started = Instant::now();
        let plan = self.plan(handler, target);
        let mut all = WorkReport::default();
        loop {
            match self.visit_next_carefully(handler, taker, target, &plan).await? {
                VisitResult::Worked { report, .. } => all += report,
                unworked if all.is_empty() => return Ok(unworked),
                VisitResult::Busy | VisitResult::Idle => break,
            }
            if started.elapsed() >= plan.time {
                break;
            }
        }
        // The next look at the lane decides whether care is still needed.
        Ok(VisitResult::Worked { report: all, more: false })
    }

    async fn visit_next_carefully(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        target: VisitTarget,
        plan: &VisitPlan,
    ) -> Result<VisitResult, Error> {
        let store = &self.engine.store;
        let Some(process) = self.presence.process() else { return Ok(VisitResult::Idle) };
        let Some(mut tx) = self.begin_visit(plan).await? else { return Ok(VisitResult::Busy) };
        let next = self.take_one(&mut tx, taker, target.what).await;
        store.rollback(tx).await;
        let Some(next) = next? else { return Ok(VisitResult::Busy) };
        let Some(place) = next.first_place() else {
            if next.progress.is_some() {
                // Only messages of other kinds: no handler runs, so no note is needed.
                return self.visit_with(handler, taker, target, plan).await;
            }
            return Ok(VisitResult::Idle);
        };
        let Some(crashes) = store.note_attempt(taker.handler, place, process.id).await? else {
            return Ok(VisitResult::Busy);
        };
        let plan = VisitPlan { isolated: true, noted: Some(place), ..self.plan(handler, target) };
        // Two processes crashed before the first note, and `crashes` counts only one of them.
        let crashes = crashes + 1;
        if crashes < CRASHES_MAX {
            let visited = self.visit_with(handler, taker, target, &plan).await?;
            if matches!(visited, VisitResult::Busy | VisitResult::Idle) {
                // The message did not run. Without this, a later crash by another message would count against it.
                store.give_back_attempt(taker.handler, place, process.id).await?;
            }
            return Ok(visited);
        }
        let outcome = crashed_outcome(crashes);
        self.record_failure(handler, taker, next, outcome, &plan).await
    }
}

/// The outcome of a message that crashed its processes.
pub(super) fn crashed_outcome(crashes: u32) -> Outcome {
    let text = format!("{crashes} processes crashed while they handled this message");
    Outcome::Rejected(Rejection::Permanent(cause(text)))
}
