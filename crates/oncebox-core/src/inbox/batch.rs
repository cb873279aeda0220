//! Natural batching: while transactions are in flight new units queue, and the next transaction takes what waits.
//!
//! A batch is an attempt only: it runs with no savepoints, and whatever goes
//! wrong in it rolls all of it back. If a handler failed, the batch runs again in a way that finds out whose fault it was: with
//! a savepoint for each unit, or, for handlers of sets, in halves. If it met contention, it runs again when it is the handler's
//! turn. If anything else went wrong, each unit runs in a transaction of its own, as if there had been no batch.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::backoff::{backoff, spread};
use crate::handler::{Delivery, Returned};
use crate::inbox::builder::Registered;
use crate::inbox::contention::lock_wait;
use crate::inbox::permits::Permit;
use crate::inbox::slots::{Job, Slot};
use crate::inbox::unit::{Attempt, BodyRan, CLAIM_WAIT, Ended, TIMEOUT_GRACE, broken, failed, panicked};
use crate::inbox::waiting::Waiting;
use crate::inbox::{Inbox, InboxStore};
use crate::observe;
use crate::outcome::Outcome;
use crate::store::{Claimed, Fault, Guarantee, Limits, Unit};
use crate::{Error, ErrorKind, Failure};

/// A unit whose batches met contention this often runs in a transaction of its own.
const BATCH_TRIES: u32 = 5;

/// More savepoints in one transaction, with those of the handlers, are slow on PostgreSQL.
const ISOLATED_MAX: usize = 25;

/// How the units of a batch share their transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// With nothing between them.
    Together,
    /// With a savepoint each.
    Isolated,
}

/// A batch whose units are claimed.
struct Claim<Tx> {
    tx: Tx,
    units: Vec<Unit>,
    /// Which of them are to run.
    fresh: Vec<usize>,
    /// What is known of each; nothing of those that another process has in hand.
    ended: Vec<Option<Ended>>,
    limits: Limits,
}

/// Why a batch came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// One of the handlers failed, or the one of them all.
    Handler,
    /// It met other transactions.
    Contended,
    /// A handler overstayed.
    Overstayed,
    /// The answer to the commit was lost: all of it may be there.
    CommitUnknown,
    Other,
}

type Ran = BodyRan<Vec<Returned>>;

impl<S: InboxStore> Inbox<S> {
    /// Runs a unit: at once if there is a free slot, else with others that wait for one.
    pub(crate) async fn run_or_queue(
        &self,
        handler: &Registered<S>,
        delivery: &Delivery,
        unit: &Unit,
        message: Box<dyn Any + Send>,
        waiting: Waiting,
    ) -> Result<Ended, Error> {
        // Where effects are outside of the transaction, a neighbour's failure would run them twice.
        if self.runs_alone(handler) {
            let attempt = Attempt::first(message);
            return self.try_until_known(handler, delivery, Some(unit), attempt, &waiting).await;
        }
        let (answer, answered) = oneshot::channel();
        let job = Job {
            unit: unit.clone(),
            delivery: delivery.clone(),
            message: Some(message),
            waiting,
            tries: 0,
            answer,
        };
        if let Some(job) = handler.batches.slot_or_queue(job) {
            let mut slot = Slot::new(self, handler.index, 1);
            if handler.batches.is_crowded() {
                // Those who are about to call come along.
                tokio::task::yield_now().await;
            }
            if let Some(job) = handler.batches.alone_or_queue(job) {
                let attempt = Attempt { message: job.message, ..Attempt::default() };
                return slot.hold(self.look_and_try(handler, delivery, unit, attempt, &waiting)).await;
            }
        }
        match answered.await {
            Ok(ended) => ended,
            Err(gone) => Err(Error::unavailable("the runtime is shutting down", gone)),
        }
    }

    /// Whether units of a handler never share a transaction.
    pub(crate) fn runs_alone(&self, handler: &Registered<S>) -> bool {
        handler.settings.isolated || S::GUARANTEE != Guarantee::Exactly
    }

    /// Works on what waits until nothing does.
    pub(crate) async fn run_batches(&self, handler: usize) {
        let mut slot = Slot::new(self, handler, 0);
        let handler = &self.inner.handlers[handler];
        while !slot.overstayed && handler.batches.goes_on(std::mem::take(&mut slot.units)) {
            // First the permit: what comes while it is waited for goes along.
            let permit = self.permit(handler).await;
            let jobs = handler.batches.take();
            slot.units = jobs.len();
            if jobs.is_empty() {
                return;
            }
            if handler.batches.has_more() {
                slot.go_on();
            }
            let span = tracing::debug_span!("oncebox.batch", handler = &*handler.name, units = jobs.len());
            slot.hold(self.run_batch(handler, jobs, permit).instrument(span)).await;
            // Those who were told come back with their next message, and go along.
            tokio::task::yield_now().await;
        }
    }

    async fn run_batch(&self, handler: &Registered<S>, mut jobs: Vec<Job>, permit: Permit<'_>) {
        if jobs.len() > 1 && !mutant!("unsorted_claims") {
            // Sorted as every batch is: two that overlap never wait for each other in a circle.
            jobs.sort_by(|a, b| (&a.unit.kind, &a.unit.key).cmp(&(&b.unit.kind, &b.unit.key)));
            if handler.batches.state().duplicates {
                jobs = self.answer_known(handler, jobs).await;
            }
        }
        let mut alone = Vec::new();
        let mut tries = 0;
        let mut parts = VecDeque::new();
        if !handler.handler.takes_sets() && handler.batches.state().isolating {
            parts.extend(in_parts(jobs, ISOLATED_MAX).map(|part| (part, Sharing::Isolated)));
        } else {
            parts.push_back((jobs, Sharing::Together));
        }
        while let Some((mut part, sharing)) = parts.pop_front() {
            let trouble = match part.len() {
                0 => continue,
                1 => Trouble::Other,
                _ => match self.try_batch(handler, &mut part, sharing, &permit).await {
                    Ok(ended) => {
                        self.answer(handler, part, ended);
                        continue;
                    }
                    Err(trouble) => {
                        tracing::debug!(?trouble, ?sharing, units = part.len(), "a batch came to nothing");
                        trouble
                    }
                },
            };
            if trouble == Trouble::Contended {
                self.met_contention(handler);
                tries = part.iter().map(|job| job.tries).max().unwrap_or_default() + 1;
                if tries < BATCH_TRIES {
                    part.iter_mut().for_each(|job| job.tries += 1);
                    handler.batches.put_back(part);
                } else {
                    alone.extend(part.into_iter().map(|job| (job, Attempt::default())));
                }
            } else if trouble == Trouble::Handler && handler.handler.takes_sets() {
                let half = part.len().div_ceil(2);
                parts.extend(in_parts(part, half).map(|half| (half, Sharing::Together)));
            } else if trouble == Trouble::Handler && sharing == Sharing::Together {
                handler.batches.state().isolating = true;
                parts.extend(in_parts(part, ISOLATED_MAX).map(|part| (part, Sharing::Isolated)));
            } else {
                if part.len() > 1 {
                    handler.batches.state().size.trouble();
                }
                let commit_unknown = trouble == Trouble::CommitUnknown;
                if commit_unknown {
                    part.iter()
                        .for_each(|_| self.inner.observer.count(observe::COMMITS_UNKNOWN, &handler.name));
                }
                let attempt = || Attempt { commit_unknown, ..Attempt::default() };
                alone.extend(part.into_iter().map(|job| (job, attempt())));
            }
        }
        let had_turn = permit.has_turn();
        // Those who run alone need permits of their own.
        drop(permit);
        if alone.len() == 1
            && let Some((job, attempt)) = alone.pop()
        {
            self.run_alone(handler.index, job, attempt).await;
        } else {
            let alone = alone.into_iter().map(|(job, attempt)| self.spawn_alone(handler, job, attempt));
            join_all(alone.collect::<Vec<_>>()).await;
        }
        if had_turn && tries > 0 {
            // It was another process's transaction, which goes on meanwhile.
            tokio::time::sleep(backoff(tries.min(BATCH_TRIES) - 1, spread())).await;
        }
    }

    /// Tells everybody of a batch what became of it.
    fn answer(&self, handler: &Registered<S>, jobs: Vec<Job>, ended: Vec<Option<Ended>>) {
        for (job, ended) in jobs.into_iter().zip(ended) {
            match ended {
                Some(ended) => drop(job.answer.send(Ok(ended))),
                // It waits for the other process alone, and nobody waits for it.
                None => drop(self.spawn_alone(handler, job, Attempt { is_copy: true, ..Attempt::default() })),
            }
        }
    }

    fn spawn_alone(&self, handler: &Registered<S>, job: Job, attempt: Attempt) -> JoinHandle<()> {
        let (inbox, handler) = (self.clone(), handler.index);
        tokio::spawn(async move { inbox.run_alone(handler, job, attempt).await })
    }

    /// Answers duplicates with one read and no write; the rest is left to do.
    async fn answer_known(&self, handler: &Registered<S>, jobs: Vec<Job>) -> Vec<Job> {
        let units: Vec<Unit> = jobs.iter().map(|job| job.unit.clone()).collect();
        // It only saves work: if it fails, the claim finds out.
        let Ok(markers) = self.inner.store.markers(&units).await else { return jobs };
        let mut left = Vec::with_capacity(jobs.len());
        for (job, marker) in jobs.into_iter().zip(markers) {
            match marker {
                Some(marker) => {
                    let ended = self.known(&job.unit, marker);
                    let _ = job.answer.send(Ok(ended));
                }
                None => left.push(job),
            }
        }
        handler.batches.state().duplicates = left.len() < units.len();
        left
    }

    /// Runs one unit of the queue in a transaction of its own, as long as somebody wants to know.
    async fn run_alone(&self, handler: usize, job: Job, attempt: Attempt) {
        let handler = &self.inner.handlers[handler];
        let Job { unit, delivery, message, waiting, mut answer, .. } = job;
        let attempt = Attempt { message, ..attempt };
        let ended = tokio::select! {
            ended = self.look_and_try(handler, &delivery, &unit, attempt, &waiting) => ended,
            () = answer.closed() => return,
        };
        let _ = answer.send(ended);
    }

    /// Runs a unit in a transaction of its own; where copies come of late, with a look before it. A flood of them would each wait
    /// for a place to write, and keep what is new from it.
    async fn look_and_try(
        &self,
        handler: &Registered<S>,
        delivery: &Delivery,
        unit: &Unit,
        attempt: Attempt,
        waiting: &Waiting,
    ) -> Result<Ended, Error> {
        // Whether a commit of our own has happened is for the transaction to find out.
        if handler.batches.state().duplicates && !attempt.commit_unknown {
            let _permit = self.inner.permits.one().await;
            // It only saves work: if it fails, the claim finds out.
            if let Ok(Some(marker)) = self.inner.store.marker(unit).await {
                return Ok(self.known(unit, marker));
            }
        }
        let ended = self.try_until_known(handler, delivery, Some(unit), attempt, waiting).await?;
        let mut state = handler.batches.state();
        state.duplicates = matches!(ended.outcome, Outcome::Duplicate);
        if matches!(ended.outcome, Outcome::Done) {
            state.size.clean(1);
        }
        drop(state);
        Ok(ended)
    }

    /// Runs units in one transaction; what became of each, in their order, but for those that another process has in hand.
    async fn try_batch(
        &self,
        handler: &Registered<S>,
        jobs: &mut [Job],
        sharing: Sharing,
        permit: &Permit<'_>,
    ) -> Result<Vec<Option<Ended>>, Trouble> {
        let store = &self.inner.store;
        let units = jobs.iter().map(|job| job.unit.clone()).collect();
        let tries = jobs.iter().map(|job| job.tries).max().unwrap_or_default();
        let transaction = handler.batches.state().size.time_of(jobs.len());
        let lock_wait = lock_wait(transaction, permit.has_turn(), tries, spread());
        let mut claim = self.claim_batch(handler, units, lock_wait).await?;
        handler.batches.state().duplicates |= claim.fresh.len() < jobs.len();
        if claim.fresh.is_empty() {
            store.rollback(claim.tx).await;
            return Ok(claim.ended);
        }
        let started = Instant::now();
        let ran = match sharing {
            Sharing::Together => self.run_together(handler, jobs, &mut claim).await,
            Sharing::Isolated => self.run_isolated(handler, jobs, &mut claim).await,
        };
        let took = started.elapsed();
        let Claim { mut tx, units, fresh, ended, .. } = claim;
        match ran {
            Ok(()) => {}
            Err(Trouble::Overstayed) => {
                store.abandon(tx).await;
                return Err(Trouble::Overstayed);
            }
            Err(trouble) => {
                store.rollback(tx).await;
                return Err(trouble);
            }
        }

        let results: Vec<(&Unit, &[u8])> = units
            .iter()
            .zip(&ended)
            .enumerate()
            .filter(|(n, _)| fresh.binary_search(n).is_ok())
            .filter_map(|(_, (unit, ended))| Some((unit, ended.as_ref()?.result.as_deref()?)))
            .collect();
        if !results.is_empty()
            && (store.guard(&mut tx).await.is_err() || store.record_results(&mut tx, &results).await.is_err())
        {
            store.rollback(tx).await;
            return Err(Trouble::Other);
        }
        self.commit(tx).await.map_err(|error| match (error.kind(), S::classify(&error)) {
            // One of the handlers did what breaks a transaction.
            (ErrorKind::Transaction, _) => Trouble::Handler,
            (_, Fault::Connection) => Trouble::CommitUnknown,
            (_, Fault::Transient | Fault::LockTimeout) => Trouble::Contended,
            (_, Fault::Session) => Trouble::Other,
            (_, Fault::StatementTimeout | Fault::Other) => Trouble::Handler,
        })?;
        handler.batches.took(fresh.len(), took);
        handler.batches.state().size.clean(fresh.len());
        handler.batches.state().contention.committed();
        self.observe_batch(handler, fresh.len(), took);
        Ok(ended)
    }

    async fn claim_batch(
        &self,
        handler: &Registered<S>,
        units: Vec<Unit>,
        lock_wait: Duration,
    ) -> Result<Claim<S::Tx>, Trouble> {
        let store = &self.inner.store;
        let limits = Limits {
            lock_timeout: CLAIM_WAIT,
            body_lock_timeout: Some(lock_wait),
            handler_timeout: handler.settings.timeout.unwrap_or(self.inner.settings.handler_timeout),
        };
        let mut tx = self.begin(limits).await.map_err(|_error| Trouble::Other)?;
        let claimed = match store.claim(&mut tx, &units).await {
            Ok(claimed) if claimed.len() == units.len() && store.arm(&mut tx).await.is_ok() => claimed,
            Ok(_) | Err(_) => {
                store.rollback(tx).await;
                return Err(Trouble::Other);
            }
        };
        let fresh = (0..units.len()).filter(|&n| claimed[n].is_fresh()).collect();
        let ended = claimed
            .into_iter()
            .zip(&units)
            .map(|(claimed, unit)| match claimed {
                Claimed::Known(marker) => Some(self.known(unit, marker)),
                Claimed::Fresh => Some(Outcome::Done.into()),
                Claimed::Busy => None,
            })
            .collect();
        Ok(Claim { tx, units, fresh, ended, limits })
    }

    /// Runs all of a batch with nothing between the units.
    async fn run_together(
        &self,
        handler: &Registered<S>,
        jobs: &mut [Job],
        claim: &mut Claim<S::Tx>,
    ) -> Result<(), Trouble> {
        let fresh = &claim.fresh;
        let mut messages = Vec::with_capacity(fresh.len());
        for &n in fresh {
            messages.push(self.decoded(handler, &mut jobs[n])?);
        }
        let deliveries: Vec<Delivery> = fresh.iter().map(|&n| jobs[n].delivery.clone()).collect();
        match self.run_body(handler, messages, &deliveries, jobs, fresh, &mut claim.tx, claim.limits).await? {
            Ok(Ok(Ok(returned))) if returned.len() == fresh.len() => {
                for (&n, returned) in fresh.iter().zip(returned) {
                    if let Some(ended) = &mut claim.ended[n] {
                        ended.result = returned.result;
                    }
                }
                Ok(())
            }
            Ok(Ok(Err(failure))) => Err(trouble_of::<S>(&failure)),
            Ok(_) => Err(Trouble::Handler),
            Err(_elapsed) => Err(Trouble::Overstayed),
        }
    }

    /// Runs the units of a batch one after the other, and takes back those that fail.
    async fn run_isolated(
        &self,
        handler: &Registered<S>,
        jobs: &mut [Job],
        claim: &mut Claim<S::Tx>,
    ) -> Result<(), Trouble> {
        let store = &self.inner.store;
        let broken_off = |_error| Trouble::Other;
        store.isolate(&mut claim.tx).await.map_err(broken_off)?;
        let mut clean = true;
        for (done, &n) in claim.fresh.iter().enumerate() {
            let next = done + 1 < claim.fresh.len();
            let message = self.decoded(handler, &mut jobs[n])?;
            let delivery = jobs[n].delivery.clone();
            let (tx, limits) = (&mut claim.tx, claim.limits);
            let ran = self
                .run_body(handler, vec![message], std::slice::from_ref(&delivery), jobs, &[n], tx, limits)
                .await?;
            let ended = match ran {
                Ok(Ok(Ok(mut returned))) => match store.keep(&mut claim.tx, next).await {
                    Ok(()) => {
                        let result = returned.pop().and_then(|returned| returned.result);
                        claim.ended[n] = Some(Ended { outcome: Outcome::Done, result, shared: false });
                        continue;
                    }
                    Err(error) if error.kind() == ErrorKind::Transaction => broken(error),
                    Err(error) if S::classify(&error) == Fault::Other => failed(error.into()),
                    Err(error) => return Err(trouble_of::<S>(&error.into())),
                },
                Ok(Ok(Err(failure))) => match trouble_of::<S>(&failure) {
                    Trouble::Handler => failed(handler.settings.judge(failure)),
                    trouble => return Err(trouble),
                },
                Ok(Err(panic)) => failed(panicked(&*panic)),
                Err(_elapsed) => return Err(Trouble::Overstayed),
            };
            clean = false;
            let unit = Some(&claim.units[n]).filter(|_| !mutant!("failed_unit_keeps_its_marker"));
            store.undo(&mut claim.tx, unit, next).await.map_err(broken_off)?;
            claim.ended[n] = Some(ended.into());
        }
        handler.batches.state().isolating = !clean;
        Ok(())
    }

    /// Runs a body, as long as all for whom it runs want to know.
    #[allow(clippy::too_many_arguments, reason = "what a body needs")]
    async fn run_body(
        &self,
        handler: &Registered<S>,
        messages: Vec<Box<dyn Any + Send>>,
        deliveries: &[Delivery],
        jobs: &mut [Job],
        units: &[usize],
        tx: &mut S::Tx,
        limits: Limits,
    ) -> Result<Ran, Trouble> {
        let body = handler.handler.call(messages, deliveries, Some(S::connection(tx)));
        let body = self.inside(AssertUnwindSafe(body).catch_unwind());
        let body = tokio::time::timeout(limits.handler_timeout.saturating_add(TIMEOUT_GRACE), body);
        let ran = tokio::select! {
            ran = body => ran,
            () = any_gone(jobs, units) => return Err(Trouble::Other),
        };
        self.note_body_ended(tx, &ran);
        Ok(ran)
    }

    /// The decoded message of a unit; a body that runs again gets one of its own again.
    fn decoded(&self, handler: &Registered<S>, job: &mut Job) -> Result<Box<dyn Any + Send>, Trouble> {
        if let Some(message) = job.message.take() {
            return Ok(message);
        }
        let prepared = handler.handler.prepare(&job.delivery.envelope, &self.inner.selectors);
        prepared.map(|prepared| prepared.message).map_err(|_rejection| Trouble::Other)
    }

    fn observe_batch(&self, handler: &Registered<S>, units: usize, took: Duration) {
        let observer = self.inner.observer;
        observer.batch(&handler.name, units);
        let each = took / u32::try_from(units.max(1)).unwrap_or(u32::MAX);
        for _ in 0..units {
            observer.time(observe::HANDLE_SECONDS, &handler.name, each);
        }
    }
}

/// What a handler's failure means to its batch.
fn trouble_of<S: InboxStore>(failure: &Failure) -> Trouble {
    match S::classify(failure.error()) {
        Fault::Transient | Fault::LockTimeout => Trouble::Contended,
        Fault::Connection | Fault::Session => Trouble::Other,
        Fault::StatementTimeout | Fault::Other => Trouble::Handler,
    }
}

/// Splits jobs into parts of so many.
fn in_parts(mut jobs: Vec<Job>, size: usize) -> impl Iterator<Item = Vec<Job>> {
    std::iter::from_fn(move || {
        let rest = jobs.split_off(size.min(jobs.len()));
        let part = std::mem::replace(&mut jobs, rest);
        (!part.is_empty()).then_some(part)
    })
}

/// Returns when one of the callers has gone away: its work must not be committed on behalf of nobody, and its neighbours
/// can do without it.
async fn any_gone(jobs: &mut [Job], fresh: &[usize]) {
    std::future::poll_fn(|cx| match fresh.iter().any(|&n| jobs[n].answer.poll_closed(cx).is_ready()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}
