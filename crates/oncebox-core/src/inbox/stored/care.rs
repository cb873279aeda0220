//! Care: where processes have died twice with no progress in between, messages run one by one, each with a note before it.
//!
//! A message that kills its process leaves its note behind. Whoever finds it there, and the process gone, knows whose fault it
//! was; after the second time the message is a dead letter, and the lane goes on.

use std::time::Instant;

use crate::Error;
use crate::inbox::registered::Registered;
use crate::inbox::stored::visit::{Course, Spot, Visited};
use crate::inbox::stored::worker::WorkReport;
use crate::inbox::stored::{Lanes, LogStore};
use crate::outcome::{Outcome, Rejection, cause};
use crate::store::Taker;

/// The deaths that are put down to a message before it is a dead letter. The one that was the reason for the first note counts.
pub(super) const CRASHES_MAX: u32 = 3;

impl<S: LogStore> Lanes<S> {
    /// Visits a place with care, for as long as a batch may take.
    pub(super) async fn visit_carefully(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        spot: Spot,
    ) -> Result<Visited, Error> {
        // Whatever dies beside it is not to be blamed for it.
        let _alone = self.alone.write().await;
        let started = Instant::now();
        let course = self.course(handler, spot);
        let mut all = WorkReport::default();
        loop {
            match self.visit_next_carefully(handler, taker, spot, &course).await? {
                Visited::Worked { report, .. } => all += report,
                unworked if all.is_empty() => return Ok(unworked),
                Visited::Busy | Visited::Idle => break,
            }
            if started.elapsed() >= course.time {
                break;
            }
        }
        // Whether care is still needed is another look's question.
        Ok(Visited::Worked { report: all, more: false })
    }

    async fn visit_next_carefully(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        spot: Spot,
        course: &Course,
    ) -> Result<Visited, Error> {
        let store = &self.engine.store;
        let Some(process) = self.presence.process() else { return Ok(Visited::Idle) };
        let Some(mut tx) = self.begin_visit(course).await? else { return Ok(Visited::Busy) };
        let next = self.take_one(&mut tx, taker, spot.what).await;
        store.rollback(tx).await;
        let Some(next) = next? else { return Ok(Visited::Busy) };
        let Some(place) = next.first_place() else {
            if next.progress.is_some() {
                // Messages of other kinds: there is nothing to be careful with.
                return self.visit_with(handler, taker, spot, course).await;
            }
            return Ok(Visited::Idle);
        };
        let Some(crashes) = store.note_attempt(taker.handler, place, process.id).await? else {
            return Ok(Visited::Busy);
        };
        let course = Course { isolated: true, noted: Some(place), ..self.course(handler, spot) };
        if crashes < CRASHES_MAX {
            let visited = self.visit_with(handler, taker, spot, &course).await?;
            if matches!(visited, Visited::Busy | Visited::Idle) {
                // It did not run, and is not to be blamed if this process dies of another one.
                store.give_back_attempt(taker.handler, place, process.id).await?;
            }
            return Ok(visited);
        }
        // Two have died before the first note.
        let outcome = died(crashes + 1);
        self.set_apart_unrun(handler, taker, next, outcome, &course).await
    }
}

/// What becomes of a message of which processes died.
pub(super) fn died(crashes: u32) -> Outcome {
    let text = format!("{crashes} processes died while they handled this message");
    Outcome::Rejected(Rejection::Permanent(cause(text)))
}
