//! Settling: writes the account of a batch, updates the metrics, and reports dead letters.

use crate::backoff::Retries;
use crate::inbox::registered::Registered;
use crate::inbox::stored::account::{AccountRules, chance};
use crate::inbox::stored::visit::{TakenBatch, VisitPlan};
use crate::inbox::stored::work::{BatchRun, MessageEnd};
use crate::inbox::stored::worker::WorkReport;
use crate::inbox::stored::{LaneVisitor, LogStore};
use crate::store::{Account, DeadLetter, FailedAttempt, StoredMessage, Taker};
use crate::{Error, observe};

impl<S: LogStore> LaneVisitor<S> {
    /// The rules for a handler's accounts.
    pub(super) fn rules<'a>(&self, handler: &'a Registered<S>) -> AccountRules<'a> {
        AccountRules {
            origin: &handler.origin,
            retry: handler.settings.retry.unwrap_or(self.log.settings.retry),
            referee: self.referee(),
            soon: Retries::pause_after(2),
            chance,
        }
    }

    /// Creates the account of a batch, and the report of its work.
    pub(super) fn account(
        &self,
        handler: &Registered<S>,
        taken: &TakenBatch,
        ran: &BatchRun,
        plan: &VisitPlan,
    ) -> (Account, WorkReport) {
        let (account, report) = self.rules(handler).account(taken, ran);
        (Account { noted: plan.noted, ..account }, report)
    }

    /// Writes an account, in the transaction of its batch.
    pub(super) async fn settle(
        &self,
        tx: &mut S::Tx,
        taker: Taker<'_>,
        account: &Account,
    ) -> Result<(), Error> {
        // A clean batch of a lane needs no rows of its own: its progress says that it is done.
        if account.is_empty() {
            return Ok(());
        }
        if mutant!("failed_message_dropped") {
            let kept = Account { tasks: Vec::new(), dead: Vec::new(), ..account.clone() };
            return self.engine.store.settle(tx, taker, &kept).await;
        }
        self.engine.store.settle(tx, taker, account).await
    }

    pub(super) fn observe_visit(
        &self,
        handler: &Registered<S>,
        taken: &TakenBatch,
        ran: &BatchRun,
        report: &WorkReport,
    ) {
        let observer = self.engine.observer;
        if !observer.enabled {
            return;
        }
        let name = &*handler.name;
        observer.batch(name, ran.bodies);
        let each = ran.took / u32::try_from(ran.bodies.max(1)).unwrap_or(u32::MAX);
        for (message, ended) in taken.messages.iter().zip(&ran.ended) {
            match ended {
                MessageEnd::Done(_) => {
                    observer.count(observe::PROCESSED, name);
                    observer.time(observe::WAIT_SECONDS, name, message.waited + ran.took);
                    observer.time(observe::HANDLE_SECONDS, name, each);
                }
                MessageEnd::Failed(_) => observer.count(observe::FAILED, name),
                MessageEnd::Scheduled | MessageEnd::Parked | MessageEnd::Again => {}
            }
        }
        for _ in 0..report.dead {
            observer.count(observe::DEAD, name);
        }
    }

    /// Reports messages that became dead letters.
    pub(super) fn report_dead_letters(&self, handler: &Registered<S>, taken: &TakenBatch, account: &Account) {
        for dead in &account.dead {
            if let Some(message) = taken.messages.iter().find(|message| message.place.pos == dead.pos) {
                self.report_dead_letter(handler, message, dead.failures, dead.error.clone());
            }
        }
    }

    pub(super) fn report_dead_letter(
        &self,
        handler: &Registered<S>,
        message: &StoredMessage,
        failures: u32,
        error: Option<String>,
    ) {
        let error = error.unwrap_or_default();
        tracing::error!(
            handler = &*handler.name,
            error,
            lane = message.place.lane,
            pos = message.place.pos,
            attempts = failures,
            "a message became a dead letter"
        );
        let Some(on_dead) = &self.log.settings.on_dead else { return };
        let now = std::time::SystemTime::now();
        let mut attempts = message.attempts.as_deref().map(FailedAttempt::read).unwrap_or_default();
        let last = FailedAttempt { attempt: failures, at: now, error: error.clone(), omitted: 0 };
        last.add_to(&mut attempts);
        let letter = DeadLetter {
            handler: handler.name.to_string(),
            place: message.place,
            kind: message.kind.clone(),
            key: message.key.clone(),
            body: message.body.clone(),
            received_at: now.checked_sub(message.waited).unwrap_or(now),
            died_at: now,
            error,
            attempts,
        };
        // The hook is user code: a panic in it must not stop the worker, because the dead letter is committed already.
        let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| on_dead(&letter)));
        if called.is_err() {
            tracing::error!("the on_dead hook panicked");
        }
    }
}
