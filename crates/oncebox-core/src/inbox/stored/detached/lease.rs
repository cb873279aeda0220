//! Leasing: a short transaction assigns messages to this process, which then starts them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::company::{Isolation, SuspectGuard, is_suspect};
use super::{DetachedRuns, DetachedSlots};
use crate::Error;
use crate::error::chain;
use crate::inbox::faults::Judgement;
use crate::inbox::registered::Registered;
use crate::inbox::stored::LogStore;
use crate::inbox::stored::account::unfinished;
use crate::inbox::stored::care::{CRASHES_MAX, crashed_outcome};
use crate::inbox::stored::presence::ThisProcess;
use crate::inbox::stored::visit::{TakenBatch, VisitResult, VisitTarget, WorkKind};
use crate::inbox::stored::work::{BatchRun, HeldKeys, MessageEnd};
use crate::inbox::stored::worker::WorkReport;
use crate::store::{
    Account, Completion, End, Fence, Place, StoredMessage, TakeLimits, Taker, TaskLimits, Unfinished,
};

/// The maximum number of positions to search for messages to lease, and the maximum size of their bodies.
const POSITIONS: u32 = 1 << 16;
const BYTES: u64 = 8 * 1024 * 1024;

/// A transaction with leases, ready to commit.
struct LeaseCommit {
    index: usize,
    lane: u16,
    taken: TakenBatch,
    ran: BatchRun,
    account: Account,
    report: WorkReport,
    leases: Vec<Unfinished>,
    fence: Option<Fence>,
}

/// The messages that one transaction leased.
pub(super) struct LeasedMessages {
    pub(super) messages: Vec<StoredMessage>,
    /// `None` for at-most-once messages, which count as handled before they run.
    pub(super) fence: Option<Fence>,
}

impl<S: LogStore> DetachedRuns<S> {
    /// Leases as many messages as there are free slots, and starts them.
    pub(in crate::inbox::stored) async fn visit(
        self: &Arc<Self>,
        handler: &Registered<S>,
        slots: &DetachedSlots,
        taker: Taker<'_>,
        target: VisitTarget,
    ) -> Result<VisitResult, Error> {
        if target.careful {
            // Tasks of detached handlers count their crashes themselves, so the lane needs no care.
            self.lanes.engine.store.end_care(taker.handler, taker.lane).await?;
        }
        // A suspect runs alone in this process, or waits to run alone.
        let Ok(others) = self.lanes.alone.clone().try_read_owned() else { return Ok(VisitResult::Idle) };
        let isolation = Isolation::WithOthers(Arc::new(others));
        self.lease_while_present(handler, slots, taker, target, isolation).await
    }

    /// Leases and starts one suspect, as soon as no other detached message runs here.
    fn lease_suspect(self: &Arc<Self>, handler: &Registered<S>, taker: Taker<'_>, target: VisitTarget) {
        if self.has_suspect.swap(true, Ordering::AcqRel) {
            return;
        }
        let suspect = SuspectGuard(self.clone());
        let (index, lane) = (handler.index, taker.lane);
        let (alone, body) = (self.lanes.alone.clone(), self.bodies.begin());
        tokio::spawn(async move {
            let isolation = Isolation::Alone(Arc::new(alone.write_owned().await));
            let runs = &suspect.0;
            let handler = &runs.lanes.engine.handlers[index];
            if let Some(slots) = &handler.detached {
                let taker = runs.lanes.taker(handler, lane);
                let leased = runs.lease_while_present(handler, slots, taker, target, isolation).await;
                if let Err(error) = leased {
                    tracing::debug!(
                        error = chain(&error),
                        "could not lease a message: the store did not respond"
                    );
                }
            }
            drop(body);
        });
    }

    async fn lease_while_present(
        self: &Arc<Self>,
        handler: &Registered<S>,
        slots: &DetachedSlots,
        taker: Taker<'_>,
        target: VisitTarget,
        isolation: Isolation,
    ) -> Result<VisitResult, Error> {
        // The process may have signed off meanwhile. It must not lease messages then.
        let Some(present) = self.lanes.presence.stay() else { return Ok(VisitResult::Idle) };
        let visited = self.lease_and_start(handler, slots, taker, target, isolation).await;
        present.leave().await;
        visited
    }

    async fn lease_and_start(
        self: &Arc<Self>,
        handler: &Registered<S>,
        slots: &DetachedSlots,
        taker: Taker<'_>,
        target: VisitTarget,
        isolation: Isolation,
    ) -> Result<VisitResult, Error> {
        let Some(process) = self.lanes.presence.process() else { return Ok(VisitResult::Idle) };
        let mut permits = Vec::new();
        // Slots come first: a message is leased only if it can run at once.
        while let Ok(permit) = slots.free.clone().try_acquire_owned() {
            permits.push(permit);
        }
        if permits.is_empty() || process.cancellation.is_cancelled() {
            return Ok(VisitResult::Idle);
        }
        let room = u32::try_from(permits.len()).unwrap_or(u32::MAX);
        let plan = self.lanes.plan(handler, target);
        let Some(mut tx) = self.lanes.begin_visit(&plan).await? else { return Ok(VisitResult::Busy) };
        let mut taken = match self.take_to_lease(&mut tx, slots, taker, target.what, room).await {
            Ok(Some(taken)) if !taken.is_empty() => taken,
            other => {
                self.lanes.engine.store.rollback(tx).await;
                return Ok(if other?.is_some() { VisitResult::Idle } else { VisitResult::Busy });
            }
        };
        // The work happens elsewhere, so a crash of this process says nothing about the message.
        if slots.settings.out_of_process {
            taken.messages.iter_mut().for_each(|message| message.crashes = 0);
        }
        let (ran, leases) = self.choose_leases(handler, &taken, &isolation);
        let waits_alone = |message: &StoredMessage| is_suspect(message) && message.crashes < CRASHES_MAX;
        if matches!(isolation, Isolation::WithOthers(_)) && taken.messages.iter().any(waits_alone) {
            self.lease_suspect(handler, taker, target);
        }
        if ran.ended.iter().all(|ended| matches!(ended, MessageEnd::Again)) && taken.progress.is_none() {
            self.lanes.engine.store.rollback(tx).await;
            return Ok(VisitResult::Idle);
        }
        let (mut account, mut report) = self.lanes.account(handler, &taken, &ran, &plan);
        // Messages that were put back did not run, so they need no delay.
        for (message, _) in
            taken.messages.iter().zip(&ran.ended).filter(|(_, ended)| matches!(ended, MessageEnd::Again))
        {
            let back = account.tasks.iter_mut().find(|back| back.pos == message.place.pos);
            if let Some(back) = back {
                back.due_in = Duration::ZERO;
            }
        }
        // The leased messages have not run yet. Only at-most-once messages count as done before they run.
        report.done = 0;
        if !slots.settings.at_most_once {
            account.done.clear();
        }
        let written = async {
            self.lanes.settle(&mut tx, taker, &account).await?;
            match slots.settings.at_most_once || leases.is_empty() {
                true => Ok(Some(None)),
                false => {
                    Ok(self.lanes.engine.store.lease(&mut tx, taker, process.id, &leases).await?.map(Some))
                }
            }
        };
        let fence = match written.await {
            Ok(Some(fence)) => fence,
            // The lease of this process expired. Its next heartbeat finds out and registers it again.
            Ok(None) => {
                self.lanes.engine.store.rollback(tx).await;
                return Ok(VisitResult::Idle);
            }
            Err(error) => {
                self.lanes.engine.store.rollback(tx).await;
                return Err(error);
            }
        };
        // A task of its own, so that a cancelled caller does not stop it: a leased message must run.
        let commit = LeaseCommit {
            index: handler.index,
            lane: taker.lane,
            taken,
            ran,
            account,
            report,
            leases,
            fence,
        };
        let (runs, present) = (self.clone(), self.lanes.presence.stay());
        let committed = tokio::spawn(async move {
            let committed = runs.commit_and_start(tx, commit, &process, permits, &isolation).await;
            if let Some(present) = present {
                present.leave().await;
            }
            committed
        });
        committed.await.unwrap_or_else(|stopped| Err(Error::unavailable("leasing broke off", stopped)))
    }

    /// Commits the leases, and starts their messages.
    async fn commit_and_start(
        self: &Arc<Self>,
        tx: S::Tx,
        commit: LeaseCommit,
        process: &ThisProcess,
        permits: Vec<OwnedSemaphorePermit>,
        isolation: &Isolation,
    ) -> Result<VisitResult, Error> {
        let LeaseCommit { index, lane, taken, ran, account, report, leases, fence } = commit;
        let handler = &self.lanes.engine.handlers[index];
        if let Err(error) = self.lanes.engine.store.finish(tx, taken.progress).await {
            // Only a lost response leaves the leases in doubt; after other errors they do not exist.
            if let Some(fence) = fence.filter(|_| Judgement::of::<S>(&error).is_lost()) {
                self.release_leases(self.lanes.taker(handler, lane), &leases, fence);
            }
            return Err(error);
        }
        self.lanes.report_dead_letters(handler, &taken, &account);
        let more = taken.has_more();
        let is_leased = |ended: &MessageEnd| matches!(ended, MessageEnd::Done(_));
        let messages: Vec<StoredMessage> = taken
            .messages
            .into_iter()
            .zip(&ran.ended)
            .filter_map(|(message, ended)| is_leased(ended).then_some(message))
            .collect();
        self.start(handler, process, LeasedMessages { messages, fence }, permits, isolation);
        Ok(VisitResult::Worked { report, more })
    }

    async fn take_to_lease(
        &self,
        tx: &mut S::Tx,
        slots: &DetachedSlots,
        taker: Taker<'_>,
        what: WorkKind,
        room: u32,
    ) -> Result<Option<TakenBatch>, Error> {
        let store = &self.lanes.engine.store;
        if what == WorkKind::Tasks {
            // Leased tasks run concurrently, so only the first task of each ordering key may be leased.
            let limits = TaskLimits { tasks: room, heads_only: true };
            let messages = store.take_tasks(tx, taker, limits).await?;
            return Ok(messages.map(|messages| TakenBatch::tasks(messages, room)));
        }
        let limits = TakeLimits {
            messages: room,
            positions: POSITIONS,
            bytes: BYTES,
            open_tasks: (!slots.settings.at_most_once).then_some(slots.settings.open_tasks),
        };
        let batch = store.take(tx, taker, limits).await?;
        Ok(batch.map(|batch| TakenBatch::messages(taker, batch)))
    }

    /// Decides which messages run now and which wait. Only one message of each ordering key runs at a time.
    fn choose_leases(
        &self,
        handler: &Registered<S>,
        taken: &TakenBatch,
        isolation: &Isolation,
    ) -> (BatchRun, Vec<Unfinished>) {
        let mut held_keys = HeldKeys::of(handler);
        let mut ran = BatchRun::default();
        let mut leases = Vec::new();
        for message in &taken.messages {
            ran.ended.push(if !message.due_in.is_zero() {
                MessageEnd::Scheduled
            } else if held_keys.holds(message) {
                MessageEnd::Parked
            } else if message.crashes >= CRASHES_MAX {
                held_keys.hold(message);
                MessageEnd::Failed(crashed_outcome(message.crashes))
            } else if !isolation.allows(message) || (is_suspect(message) && !leases.is_empty()) {
                held_keys.hold(message);
                MessageEnd::Again
            } else {
                held_keys.hold(message);
                leases.push(unfinished(message, Duration::ZERO));
                MessageEnd::Done(None)
            });
        }
        (ran, leases)
    }

    /// Releases leases after a commit with a lost response. It is unknown whether they exist.
    fn release_leases(&self, taker: Taker<'_>, leases: &[Unfinished], fence: Fence) {
        for lease in leases {
            let place = Place { lane: taker.lane, pos: lease.pos };
            let end = End::Retry { failures: lease.failures, due_in: Duration::ZERO, error: None };
            let completion = Completion { handler: taker.handler, place, fence, end };
            let completer = self.completer.clone();
            tokio::spawn(async move {
                if let Ok(true) = completer.complete(completion).await {
                    tracing::info!("a lease whose response was lost is free again");
                }
            });
        }
    }
}
