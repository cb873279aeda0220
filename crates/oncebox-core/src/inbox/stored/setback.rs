//! Setbacks: decides what follows when the transaction of a visit was rolled back.
//!
//! A batch runs again as smaller ones, or with savepoints, until the failed message is known. Its failure is then recorded in a
//! transaction of its own.

use std::time::Duration;

use crate::backoff::Retries;
use crate::inbox::faults::Judgement;
use crate::inbox::registered::Registered;
use crate::inbox::stored::visit::{Course, TASKS_MAX, Taken, Visited, What};
use crate::inbox::stored::work::{MessageEnd, Ran, VisitTrouble, unstorable};
use crate::inbox::stored::worker::WorkReport;
use crate::inbox::stored::{Lanes, LogStore};
use crate::inbox::units::BODY_TRANSIENTS_MAX;
use crate::outcome::Outcome;
use crate::store::{Account, Place, StoredMessage, Taker};
use crate::{Error, Failure};

/// The maximum time for which this process retries a lane that its own broken transaction may still lock.
const LOCKED_TIME: Duration = Duration::from_secs(5);

impl<S: LogStore> Lanes<S> {
    /// Decides what follows after a rolled-back transaction, and does it.
    pub(super) async fn learn(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        taken: Taken,
        trouble: VisitTrouble,
        course: &Course,
    ) -> Result<Visited, Error> {
        let again = Ok(Visited::Worked { report: WorkReport::default(), more: true });
        let trouble = match trouble {
            // This connection worked when the lane was read, so a body that ran since then may have lost it.
            VisitTrouble::Store(error) if Judgement::of::<S>(&error).is_lost() => {
                VisitTrouble::Gone(error.into())
            }
            VisitTrouble::Store(error) => return Err(error),
            VisitTrouble::Session(failure) => {
                let mut lessons = handler.lessons();
                let lane = lessons.lane(taker.lane);
                if lane.sessions.replace(self.engine.store.capacity(), &failure) {
                    return again;
                }
                VisitTrouble::Failed(failure)
            }
            trouble => trouble,
        };
        if taken.messages.len() > 1 && !course.tasks {
            let mut lessons = handler.lessons();
            // The first time may be an outage or a conflict with another transaction, which no message caused.
            let is_first = matches!(&trouble, VisitTrouble::Gone(_) | VisitTrouble::Contended(_))
                && taken.first_place().is_some_and(|first| lessons.met_transient(first) == 1);
            let lane = lessons.lane(taker.lane);
            match &trouble {
                // The lost connection may be the transaction's own or another one of the handler. With savepoints the next attempt
                // shows which: on a lost connection the rollback to a savepoint fails too.
                VisitTrouble::Contended(failure) if !course.wary && is_gone::<S>(failure) => lane.wary = true,
                VisitTrouble::Failed(_) | VisitTrouble::Broken(_)
                    if !course.wary && !handler.handler.takes_sets() =>
                {
                    lane.wary = true;
                }
                _ if is_first => {}
                _ => lane.halve_sets(taken.messages.len()),
            }
            return again;
        }
        if let VisitTrouble::Contended(failure) | VisitTrouble::Gone(failure) = &trouble
            && let Some(message) = taken.messages.first()
        {
            let is_ours = matches!(trouble, VisitTrouble::Gone(_));
            if !is_ours && !course.wary && !course.tasks && is_gone::<S>(failure) {
                handler.lessons().lane(taker.lane).wary = true;
                return again;
            }
            if !self.body_is_to_blame(handler, message) {
                Retries::unlimited().pause().await;
                return again;
            }
        }
        // Either the transaction of a single message failed, or one of several tasks broke the transaction of all.
        let outcome = trouble.outcome(handler);
        self.set_apart_unrun(handler, taker, taken, outcome, course).await
    }

    /// Whether a body met so many transient errors that it counts as failed.
    pub(crate) fn body_is_to_blame(&self, handler: &Registered<S>, message: &StoredMessage) -> bool {
        handler.lessons().met_transient(message.place) >= BODY_TRANSIENTS_MAX
    }

    /// Records the failure of a message in a new transaction, without running it again. Several tasks run one by one first, to
    /// find the failed one.
    ///
    /// No message may stop its lane. If the data of the failure cannot be stored, the message becomes a dead letter with that
    /// error only.
    pub(super) async fn set_apart_unrun(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        broken: Taken,
        outcome: Outcome,
        course: &Course,
    ) -> Result<Visited, Error> {
        if broken.messages.len() > 1 {
            return self.visit_tasks_one_by_one(handler, taker, course).await;
        }
        let place = broken.first_place();
        match self.set_one_apart(handler, taker, place, outcome, course, false).await {
            Err(error) if S::is_about_data(&error) => {
                let outcome = unstorable(&error);
                self.set_one_apart(handler, taker, place, outcome, course, true).await
            }
            set_apart => set_apart,
        }
    }

    #[allow(clippy::too_many_arguments, reason = "what a failure is about")]
    async fn set_one_apart(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        place: Option<Place>,
        outcome: Outcome,
        course: &Course,
        is_bare: bool,
    ) -> Result<Visited, Error> {
        let store = &self.engine.store;
        let what = if course.tasks { What::Tasks } else { What::Messages };
        let mut retries = Retries::within(LOCKED_TIME);
        let (mut tx, mut taken) = loop {
            let mut tx = self.engine.store.begin(course.limits).await?;
            match self.take_one(&mut tx, taker, what).await? {
                Some(mut taken) if taken.first_place() == place => {
                    self.claim_taken(handler, &mut tx, &mut taken).await?;
                    if taken.messages.is_empty() && taken.busy.is_empty() {
                        // Another copy has handled the message: skip it.
                        let account = Account { noted: course.noted, ..Account::default() };
                        self.settle(&mut tx, taker, &account).await?;
                        self.engine.store.finish(tx, taken.progress).await?;
                        return Ok(Visited::Worked { report: WorkReport::default(), more: true });
                    }
                    if taken.messages.is_empty() {
                        // Another copy runs the message now.
                        store.rollback(tx).await;
                        return Ok(Visited::Busy);
                    }
                    break (tx, taken);
                }
                // Messages before this one were handled by other copies: skip them again.
                Some(mut taken) if taken.first_place().is_some_and(|at| course.tasks || Some(at) < place) => {
                    self.claim_taken(handler, &mut tx, &mut taken).await?;
                    if taken.messages.is_empty() && taken.busy.is_empty() {
                        self.engine.store.finish(tx, taken.progress).await?;
                        continue;
                    }
                }
                // This process's own broken transaction may still lock the lane.
                None if !retries.is_over() => {
                    store.rollback(tx).await;
                    retries.pause().await;
                    continue;
                }
                // Another process was faster, or holds the lane.
                Some(_) | None => {}
            }
            store.rollback(tx).await;
            return Ok(Visited::Busy);
        };
        if is_bare {
            taken.messages.iter_mut().for_each(|message| message.attempts = None);
        }
        let ran = Ran { ended: vec![MessageEnd::Failed(outcome)], bodies: 1, took: Duration::ZERO };
        let (account, report) = self.account(handler, &taken, &ran, course);
        self.settle(&mut tx, taker, &account).await?;
        self.engine.store.finish(tx, taken.progress).await?;
        if let Some(place) = place {
            handler.lessons().transients.remove(&place);
        }
        self.observe_visit(handler, &taken, &ran, &report);
        self.tell_of_dead(handler, &taken, &account);
        Ok(Visited::Worked { report, more: true })
    }

    /// Runs each due task in a transaction of its own.
    async fn visit_tasks_one_by_one(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        course: &Course,
    ) -> Result<Visited, Error> {
        let mut all = WorkReport::default();
        let mut tasks = 0;
        let mut retries = Retries::within(LOCKED_TIME);
        while tasks < TASKS_MAX {
            let mut tx = self.engine.store.begin(course.limits).await?;
            let taken = self.take_one(&mut tx, taker, What::Tasks).await?;
            let Some(mut taken) = taken.filter(|taken| !taken.is_empty()) else {
                self.engine.store.rollback(tx).await;
                // Before the first task, this process's own broken transaction may still lock the lane.
                if tasks > 0 || retries.is_over() {
                    break;
                }
                retries.pause().await;
                continue;
            };
            tasks += 1;
            self.claim_taken(handler, &mut tx, &mut taken).await?;
            match Box::pin(self.work_on(handler, taker, tx, taken, course)).await? {
                Visited::Worked { report, .. } => all += report,
                Visited::Busy | Visited::Idle => break,
            }
        }
        Ok(Visited::Worked { report: all, more: true })
    }
}

/// Whether a connection was lost: the transaction's own or another one of the handler.
fn is_gone<S: LogStore>(failure: &Failure) -> bool {
    Judgement::of::<S>(failure.error()).is_lost()
}
