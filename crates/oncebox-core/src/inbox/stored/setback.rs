//! Setbacks: a visit's transaction came to nothing.
//!
//! A batch is tried again as smaller ones, or with savepoints, until one message is to blame; its failure is then written down in a
//! transaction of its own.

use std::time::Duration;

use tokio::time::sleep;

use crate::backoff::{backoff, spread};
use crate::inbox::Inbox;
use crate::inbox::builder::Registered;
use crate::inbox::stored::settle::Account;
use crate::inbox::stored::visit::{Course, TASKS_MAX, Taken, Visited, What};
use crate::inbox::stored::work::{Ended, Ran, Trouble, unstorable};
use crate::inbox::stored::worker::WorkReport;
use crate::inbox::stored::{LogStore, Stored};
use crate::inbox::unit::BODY_TRANSIENTS_MAX;
use crate::outcome::Outcome;
use crate::store::{Fault, Place, StoredMessage, Taker};
use crate::{Error, Failure};

/// How often a lane is tried for that a broken transaction of ours may still hold; some seconds.
const LOCKED_TRIES: u32 = 12;

impl<S: LogStore> Inbox<S> {
    /// What to do about a transaction that came to nothing.
    pub(super) async fn learn(
        &self,
        stored: &Stored,
        handler: &Registered<S>,
        taker: Taker<'_>,
        taken: Taken,
        trouble: Trouble,
        course: &Course,
    ) -> Result<Visited, Error> {
        let again = Ok(Visited::Worked { report: WorkReport::default(), more: true });
        let trouble = match trouble {
            // The lane was read on this very connection: whatever ran since then may have lost it.
            Trouble::Store(error) if S::classify(&error) == Fault::Connection => Trouble::Gone(error.into()),
            Trouble::Store(error) => return Err(error),
            Trouble::Session(failure) => {
                let mut lessons = handler.lessons();
                let lane = lessons.lane(taker.lane);
                lane.sessions += 1;
                if lane.sessions <= self.sessions_max() {
                    tracing::debug!(error = %failure, "another try on another connection");
                    return again;
                }
                Trouble::Failed(failure)
            }
            trouble => trouble,
        };
        if taken.messages.len() > 1 && !course.tasks {
            let mut lessons = handler.lessons();
            // Once is an outage, or another transaction in the way, and no message's fault.
            let is_first = matches!(&trouble, Trouble::Gone(_) | Trouble::Contended(_))
                && taken.first_place().is_some_and(|first| lessons.met_transient(first) == 1);
            let lane = lessons.lane(taker.lane);
            match &trouble {
                // Whether it is our connection that is gone shows when a savepoint is to be taken back.
                Trouble::Contended(failure) if !course.wary && is_gone::<S>(failure) => lane.wary = true,
                Trouble::Failed(_) | Trouble::Broken(_) if !course.wary && !handler.handler.takes_sets() => {
                    lane.wary = true;
                }
                _ if is_first => {}
                _ => lane.halve_sets(taken.messages.len()),
            }
            return again;
        }
        if let Trouble::Contended(failure) | Trouble::Gone(failure) = &trouble
            && let Some(message) = taken.messages.first()
        {
            let is_ours = matches!(trouble, Trouble::Gone(_));
            if !is_ours && !course.wary && !course.tasks && is_gone::<S>(failure) {
                handler.lessons().lane(taker.lane).wary = true;
                return again;
            }
            if !self.body_is_to_blame(handler, message) {
                sleep(backoff(1, spread())).await;
                return again;
            }
        }
        // One message and its transaction is gone, or tasks of which one breaks the others' transaction.
        let outcome = trouble.outcome(handler);
        self.set_apart_unrun(stored, handler, taker, taken, outcome, course).await
    }

    /// Whether a body has met transient errors so often that they are its own fault.
    pub(crate) fn body_is_to_blame(&self, handler: &Registered<S>, message: &StoredMessage) -> bool {
        handler.lessons().met_transient(message.place) >= BODY_TRANSIENTS_MAX
    }

    /// Writes down the failure of a message whose transaction is gone, in a new one, without running it again. Of several
    /// tasks, each is a failure of its own only if it is alone: they are parted first.
    ///
    /// No message may stop its lane: if the failure cannot be stored because of its data, the message becomes a dead letter that
    /// says so, and carries nothing else.
    pub(super) async fn set_apart_unrun(
        &self,
        stored: &Stored,
        handler: &Registered<S>,
        taker: Taker<'_>,
        broken: Taken,
        outcome: Outcome,
        course: &Course,
    ) -> Result<Visited, Error> {
        if broken.messages.len() > 1 {
            return self.visit_tasks_one_by_one(stored, handler, taker, course).await;
        }
        let place = broken.first_place();
        match self.set_one_apart(stored, handler, taker, place, outcome, course, false).await {
            Err(error) if S::is_about_data(&error) => {
                let outcome = unstorable(&error);
                self.set_one_apart(stored, handler, taker, place, outcome, course, true).await
            }
            set_apart => set_apart,
        }
    }

    #[allow(clippy::too_many_arguments, reason = "what a failure is about")]
    async fn set_one_apart(
        &self,
        stored: &Stored,
        handler: &Registered<S>,
        taker: Taker<'_>,
        place: Option<Place>,
        outcome: Outcome,
        course: &Course,
        is_bare: bool,
    ) -> Result<Visited, Error> {
        let store = &self.inner.store;
        let what = if course.tasks { What::Tasks } else { What::Messages };
        let mut tries = 0;
        let (mut tx, mut taken) = loop {
            let mut tx = self.begin(course.limits).await?;
            match self.take_one(&mut tx, taker, what).await? {
                Some(mut taken) if taken.first_place() == place => {
                    self.claim_taken(handler, &mut tx, &mut taken).await?;
                    if taken.messages.is_empty() && taken.busy.is_empty() {
                        // Another copy has done it: it is passed over.
                        self.write_account(&mut tx, taker, &Account::default(), course).await?;
                        self.finish_visit(tx, taken.progress).await?;
                        return Ok(Visited::Worked { report: WorkReport::default(), more: true });
                    }
                    if taken.messages.is_empty() {
                        // Another copy does it now.
                        store.rollback(tx).await;
                        return Ok(Visited::Busy);
                    }
                    break (tx, taken);
                }
                // What comes before it was done by other copies: it is passed over, as it was before.
                Some(mut taken) if taken.first_place().is_some_and(|at| course.tasks || Some(at) < place) => {
                    self.claim_taken(handler, &mut tx, &mut taken).await?;
                    if taken.messages.is_empty() && taken.busy.is_empty() {
                        self.finish_visit(tx, taken.progress).await?;
                        continue;
                    }
                    tries = LOCKED_TRIES;
                }
                // Somebody else was faster.
                Some(_) => tries = LOCKED_TRIES,
                // Our own transaction, which is being ended, may still hold the lane.
                None => tries += 1,
            }
            store.rollback(tx).await;
            if tries >= LOCKED_TRIES {
                return Ok(Visited::Busy);
            }
            sleep(backoff(tries, spread())).await;
        };
        if is_bare {
            taken.messages.iter_mut().for_each(|message| message.attempts = None);
        }
        let ran = Ran { ended: vec![Ended::Failed(outcome)], bodies: 1, took: Duration::ZERO };
        let account = self.settle_up(stored, handler, &taken, &ran);
        self.write_account(&mut tx, taker, &account, course).await?;
        self.finish_visit(tx, taken.progress).await?;
        if let Some(place) = place {
            handler.lessons().transients.remove(&place);
        }
        self.observe_visit(handler, &taken, &ran, &account.report);
        self.tell_of_dead(stored, handler, &taken, &account.settled);
        Ok(Visited::Worked { report: account.report, more: true })
    }

    /// One transaction for each task that is due.
    async fn visit_tasks_one_by_one(
        &self,
        stored: &Stored,
        handler: &Registered<S>,
        taker: Taker<'_>,
        course: &Course,
    ) -> Result<Visited, Error> {
        let mut all = WorkReport::default();
        let (mut tasks, mut tries) = (0, 0);
        while tasks < TASKS_MAX && tries < LOCKED_TRIES {
            let mut tx = self.begin(course.limits).await?;
            let taken = self.take_one(&mut tx, taker, What::Tasks).await?;
            let Some(mut taken) = taken.filter(|taken| !taken.is_empty()) else {
                self.inner.store.rollback(tx).await;
                // Our own transaction, which is being ended, may still hold the lane.
                tries += 1;
                sleep(backoff(tries, spread())).await;
                continue;
            };
            tasks += 1;
            tries = LOCKED_TRIES - 1;
            self.claim_taken(handler, &mut tx, &mut taken).await?;
            match Box::pin(self.work_on(stored, handler, taker, tx, taken, course)).await? {
                Visited::Worked { report, .. } => all += report,
                Visited::Busy | Visited::Idle => break,
            }
        }
        Ok(Visited::Worked { report: all, more: true })
    }
}

/// Whether a connection is gone, ours or another one of the handler's.
fn is_gone<S: LogStore>(failure: &Failure) -> bool {
    S::classify(failure.error()) == Fault::Connection
}
