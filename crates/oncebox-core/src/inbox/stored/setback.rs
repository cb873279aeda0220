//! Setbacks: decides what follows when the transaction of a visit was rolled back.
//!
//! A batch runs again as smaller ones, or with savepoints, until the failed message is known. Its failure is then recorded in a
//! transaction of its own.

use std::time::Duration;

use crate::backoff::Retries;
use crate::inbox::faults::Judgement;
use crate::inbox::registered::Registered;
use crate::inbox::stored::visit::{TASKS_MAX, TakenBatch, VisitPlan, VisitResult, WorkKind};
use crate::inbox::stored::work::{BatchRun, MessageEnd, VisitFailure, unstorable};
use crate::inbox::stored::worker::WorkReport;
use crate::inbox::stored::{LaneVisitor, LogStore};
use crate::inbox::units::BODY_TRANSIENTS_MAX;
use crate::outcome::Outcome;
use crate::store::{Account, Place, StoredMessage, Taker};
use crate::{Error, Failure};

/// The maximum time for which this process retries a lane that its own broken transaction may still lock.
const LOCKED_TIME: Duration = Duration::from_secs(5);

impl<S: LogStore> LaneVisitor<S> {
    /// Decides what follows after a rolled-back transaction, and does it.
    pub(super) async fn recover_from(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        taken: TakenBatch,
        problem: VisitFailure,
        plan: &VisitPlan,
    ) -> Result<VisitResult, Error> {
        let again = Ok(VisitResult::Worked { report: WorkReport::default(), more: true });
        let problem = match problem {
            // This connection worked when the lane was read, so a body that ran since then may have lost it.
            VisitFailure::Store(error) if Judgement::of::<S>(&error).is_lost() => {
                VisitFailure::Gone(error.into())
            }
            VisitFailure::Store(error) => return Err(error),
            VisitFailure::Session(failure) => {
                let mut lessons = handler.lessons();
                let lane = lessons.lane(taker.lane);
                if lane.sessions.replace(self.engine.store.capacity(), &failure) {
                    return again;
                }
                VisitFailure::Failed(failure)
            }
            problem => problem,
        };
        if taken.messages.len() > 1 && !plan.tasks {
            let mut lessons = handler.lessons();
            // The first time may be an outage or a conflict with another transaction, which no message caused.
            let is_first = matches!(&problem, VisitFailure::Gone(_) | VisitFailure::Contended(_))
                && taken.first_place().is_some_and(|first| lessons.met_transient(first) == 1);
            let lane = lessons.lane(taker.lane);
            match &problem {
                // The lost connection may be the transaction's own or another one of the handler. With savepoints the next attempt
                // shows which: on a lost connection the rollback to a savepoint fails too.
                VisitFailure::Contended(failure)
                    if !plan.recently_failed && is_connection_lost::<S>(failure) =>
                {
                    lane.recently_failed = true;
                }
                VisitFailure::Failed(_) | VisitFailure::Broken(_)
                    if !plan.recently_failed && !handler.handler.takes_sets() =>
                {
                    lane.recently_failed = true;
                }
                _ if is_first => {}
                _ => lane.halve_sets(taken.messages.len()),
            }
            return again;
        }
        if let VisitFailure::Contended(failure) | VisitFailure::Gone(failure) = &problem
            && let Some(message) = taken.messages.first()
        {
            let is_ours = matches!(problem, VisitFailure::Gone(_));
            if !is_ours && !plan.recently_failed && !plan.tasks && is_connection_lost::<S>(failure) {
                handler.lessons().lane(taker.lane).recently_failed = true;
                return again;
            }
            if !self.body_is_to_blame(handler, message) {
                // The pause lets a conflicting transaction end.
                Retries::unlimited().pause().await;
                return again;
            }
        }
        // Either the transaction of a single message failed, or one of several tasks broke the transaction of all.
        let outcome = problem.outcome(handler);
        self.record_failure(handler, taker, taken, outcome, plan).await
    }

    /// Whether the number of transient errors makes the body count as failed.
    pub(crate) fn body_is_to_blame(&self, handler: &Registered<S>, message: &StoredMessage) -> bool {
        handler.lessons().met_transient(message.place) >= BODY_TRANSIENTS_MAX
    }

    /// Records the failure of a message in a new transaction, without running it again. Several tasks run one by one first, to
    /// find the failed one.
    ///
    /// No message may stop its lane. If the data of the failure cannot be stored, the message becomes a dead letter with that
    /// error only.
    pub(super) async fn record_failure(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        broken: TakenBatch,
        outcome: Outcome,
        plan: &VisitPlan,
    ) -> Result<VisitResult, Error> {
        if broken.messages.len() > 1 {
            return self.visit_tasks_one_by_one(handler, taker, plan).await;
        }
        let place = broken.first_place();
        match self.try_record_failure(handler, taker, place, outcome, plan, false).await {
            Err(error) if S::is_about_data(&error) => {
                let outcome = unstorable(&error);
                self.try_record_failure(handler, taker, place, outcome, plan, true).await
            }
            visited => visited,
        }
    }

    #[allow(clippy::too_many_arguments, reason = "what a failure is about")]
    async fn try_record_failure(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        place: Option<Place>,
        outcome: Outcome,
        plan: &VisitPlan,
        is_bare: bool,
    ) -> Result<VisitResult, Error> {
        let store = &self.engine.store;
        let what = if plan.tasks { WorkKind::Tasks } else { WorkKind::Messages };
        let mut retries = Retries::within(LOCKED_TIME);
        let (mut tx, mut taken) = loop {
            let mut tx = self.engine.store.begin(plan.limits).await?;
            match self.take_one(&mut tx, taker, what).await? {
                Some(mut taken) if taken.first_place() == place => {
                    self.claim_taken(handler, &mut tx, &mut taken).await?;
                    if taken.messages.is_empty() && taken.busy.is_empty() {
                        // Another copy has handled the message: skip it.
                        let account = Account { noted: plan.noted, ..Account::default() };
                        self.settle(&mut tx, taker, &account).await?;
                        self.engine.store.finish(tx, taken.progress).await?;
                        return Ok(VisitResult::Worked { report: WorkReport::default(), more: true });
                    }
                    if taken.messages.is_empty() {
                        // Another copy runs the message now.
                        store.rollback(tx).await;
                        return Ok(VisitResult::Busy);
                    }
                    break (tx, taken);
                }
                // Messages before this one were handled by other copies: skip them again.
                Some(mut taken) if taken.first_place().is_some_and(|at| plan.tasks || Some(at) < place) => {
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
            return Ok(VisitResult::Busy);
        };
        if is_bare {
            taken.messages.iter_mut().for_each(|message| message.attempts = None);
        }
        let ran = BatchRun { ended: vec![MessageEnd::Failed(outcome)], bodies: 1, took: Duration::ZERO };
        let (account, report) = self.account(handler, &taken, &ran, plan);
        self.settle(&mut tx, taker, &account).await?;
        self.engine.store.finish(tx, taken.progress).await?;
        if let Some(place) = place {
            handler.lessons().transients.remove(&place);
        }
        self.observe_visit(handler, &taken, &ran, &report);
        self.report_dead_letters(handler, &taken, &account);
        Ok(VisitResult::Worked { report, more: true })
    }

    /// Runs each due task in a transaction of its own.
    async fn visit_tasks_one_by_one(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        plan: &VisitPlan,
    ) -> Result<VisitResult, Error> {
        let mut all = WorkReport::default();
        let mut tasks = 0;
        let mut retries = Retries::within(LOCKED_TIME);
        while tasks < TASKS_MAX {
            let mut tx = self.engine.store.begin(plan.limits).await?;
            let taken = self.take_one(&mut tx, taker, WorkKind::Tasks).await?;
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
            // Boxed, because `work_on` may call this function again.
            match Box::pin(self.work_on(handler, taker, tx, taken, plan)).await? {
                VisitResult::Worked { report, .. } => all += report,
                VisitResult::Busy | VisitResult::Idle => break,
            }
        }
        Ok(VisitResult::Worked { report: all, more: true })
    }
}

/// Whether a connection was lost: the transaction's own or another one of the handler.
fn is_connection_lost<S: LogStore>(failure: &Failure) -> bool {
    Judgement::of::<S>(failure.error()).is_lost()
}
