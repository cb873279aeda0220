//! Ending: records the end of a body under the fence of its lease. An at-most-once message has no lease: only a failure is
//! recorded after its run.

use std::time::Duration;

use super::DetachedRuns;
use super::run::DetachedOutput;
use crate::backoff::Retries;
use crate::error::chain;
use crate::inbox::registered::Registered;
use crate::inbox::stored::LogStore;
use crate::inbox::stored::account::{NextState, unfinished, unit_of_message};
use crate::inbox::stored::relays::unconfirmed;
use crate::inbox::stored::visit::{VisitTarget, WorkKind};
use crate::inbox::stored::work::unstorable_text;
use crate::inbox::stored::worker::WorkReport;
use crate::outcome::Outcome;
use crate::store::{Account, Completion, End, Fence, StoredMessage, Unfinished, Unit};
use crate::{Error, observe};

impl<S: LogStore> DetachedRuns<S> {
    /// Records the end of a body in the store and in metrics, and calls the hook for dead letters.
    pub(super) async fn end(
        &self,
        handler: &Registered<S>,
        message: StoredMessage,
        fence: Option<Fence>,
        ended: Result<DetachedOutput, Outcome>,
    ) -> WorkReport {
        let mut report = WorkReport::default();
        let observer = self.lanes.engine.observer;
        let name = &*handler.name;
        let failures = message.failures + 1;
        let mut dead = None;
        let end = match ended {
            Ok(DetachedOutput { result, published }) => {
                report.done = 1;
                End::Done { marker: spilled_marker(handler, &message), result, published }
            }
            Err(outcome) => {
                // Its verdict is unknown, which is not the message's fault.
                if let Some(due_in) = unconfirmed(&outcome) {
                    let end = End::Retry { failures: message.failures, due_in, error: None };
                    return self.put_back(handler, &message, fence, end).await;
                }
                observer.count(observe::FAILED, name);
                let next_state = match (fence, self.lanes.rules(handler).next_state(failures, &outcome)) {
                    // No fence means at-most-once: a retry is not allowed.
                    (None, NextState::Retry { error, .. }) => NextState::Dead { error },
                    (_, next_state) => next_state,
                };
                match next_state {
                    NextState::Retry { due_in, error } => {
                        report.failed = 1;
                        End::Retry { failures, due_in, error: Some(error) }
                    }
                    NextState::Dead { error } => {
                        report.dead = 1;
                        dead = Some(error.clone());
                        End::Dead { failures, error }
                    }
                }
            }
        };
        let handler_id = self.lanes.log.ids[handler.index];
        let is_written = match fence {
            Some(fence) => {
                let completion = Completion { handler: handler_id, place: message.place, fence, end };
                self.completer.complete(completion).await
            }
            None => match &dead {
                Some(error) => self.write_dead_letter_with_retry(handler, &message, failures, error).await,
                None => Ok(true),
            },
        };
        // The outcome cannot be stored. The message must not stay leased for ever, so it becomes a dead letter with that error.
        let is_written = match is_written {
            Err(refused) if S::is_about_data(&refused) => {
                let error = unstorable_text(&refused);
                report = WorkReport { dead: 1, ..WorkReport::default() };
                dead = Some(error.clone());
                match fence {
                    Some(fence) => {
                        let end = End::Dead { failures, error };
                        self.completer
                            .complete(Completion { handler: handler_id, place: message.place, fence, end })
                            .await
                    }
                    None => self.write_dead_letter_with_retry(handler, &message, failures, &error).await,
                }
            }
            written => written,
        };
        match is_written {
            Ok(true) => {}
            Ok(false) => {
                observer.count(observe::LEASES_LOST, name);
                tracing::warn!(
                    handler = name,
                    lane = message.place.lane,
                    pos = message.place.pos,
                    "LeaseLost: the lease of this process expired while it ran a message, and another process runs it"
                );
                // The run under the newer lease reports its own end.
                return WorkReport { lease_lost: 1, ..WorkReport::default() };
            }
            Err(error) => {
                tracing::error!(
                    handler = name,
                    error = chain(&error),
                    "could not record the outcome of a message: if it is leased, it runs again when this process has ended"
                );
                return WorkReport::default();
            }
        }
        if report.done > 0 {
            observer.count(observe::PROCESSED, name);
            observer.time(observe::WAIT_SECONDS, name, message.waited);
        }
        if let Some(error) = dead {
            observer.count(observe::DEAD, name);
            self.lanes.report_dead_letter(handler, &message, failures, Some(error));
        }
        report
    }

    /// Returns a message to the tasks, without a failed attempt.
    async fn put_back(
        &self,
        handler: &Registered<S>,
        message: &StoredMessage,
        fence: Option<Fence>,
        end: End,
    ) -> WorkReport {
        let Some(fence) = fence else { return WorkReport::default() };
        let handler_id = self.lanes.log.ids[handler.index];
        let completion = Completion { handler: handler_id, place: message.place, fence, end };
        match self.completer.complete(completion).await {
            Ok(true) => WorkReport::default(),
            Ok(false) => WorkReport { lease_lost: 1, ..WorkReport::default() },
            Err(error) => {
                tracing::error!(
                    handler = &*handler.name,
                    error = chain(&error),
                    "could not put a message back"
                );
                WorkReport::default()
            }
        }
    }

    /// Writes a dead letter. It retries for the store timeout or the lease, whichever is longer.
    async fn write_dead_letter_with_retry(
        &self,
        handler: &Registered<S>,
        message: &StoredMessage,
        failures: u32,
        error: &str,
    ) -> Result<bool, Error> {
        let mut retries =
            Retries::within(self.lanes.engine.settings.store_timeout.max(self.lanes.log.settings.lease));
        loop {
            match self.write_dead_letter(handler, message, failures, error).await {
                Ok(written) => return Ok(written),
                Err(error) => retries.after::<S>(error).await?,
            }
        }
    }

    /// Writes the dead letter of an at-most-once message, in one attempt.
    async fn write_dead_letter(
        &self,
        handler: &Registered<S>,
        message: &StoredMessage,
        failures: u32,
        error: &str,
    ) -> Result<bool, Error> {
        let what = WorkKind::Tasks;
        let target = VisitTarget { handler: handler.index, lane: message.place.lane, what, careful: false };
        let plan = self.lanes.plan(handler, target);
        let taker = self.lanes.taker(handler, message.place.lane);
        let store = &self.lanes.engine.store;
        let mut tx = self.lanes.engine.store.begin(plan.limits).await?;
        let dead =
            Unfinished { failures, error: Some(error.to_owned()), ..unfinished(message, Duration::ZERO) };
        // The marker was set to done before the run. Set back, it lets an operator run the message again.
        let spilled = spilled_marker(handler, message).into_iter().collect();
        let account = Account { dead: vec![dead], spilled, ..Account::default() };
        if let Err(error) = self.lanes.settle(&mut tx, taker, &account).await {
            store.rollback(tx).await;
            return Err(error);
        }
        store.commit(tx).await.map(|()| true)
    }
}

/// The unit of a spilled message's marker; `None` if the message was not spilled.
fn spilled_marker<S: LogStore>(handler: &Registered<S>, message: &StoredMessage) -> Option<Unit> {
    if message.spilled { unit_of_message(&handler.origin, message) } else { None }
}
