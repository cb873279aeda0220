//! Natural batching: new units queue while transactions are in flight, and the next transaction takes the waiting units.
//!
//! A batch starts without savepoints, and any error rolls all of it back. The next step depends on the error:
//!
//! - A handler failed: the batch runs again with a savepoint for each unit, or, for handlers of sets, in halves. This finds the
//!   failed unit.
//! - It met contention: it runs again when the handler has the turn.
//! - Any other error: each unit runs in a transaction of its own, as without a batch.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::backoff::Retries;
use crate::handler::Delivery;
use crate::inbox::InboxStore;
use crate::inbox::combiner::promise;
use crate::inbox::engine::Engine;
use crate::inbox::permits::Permit;
use crate::inbox::registered::Registered;
use crate::inbox::units::attempts::{AttemptInput, Attempts};
use crate::inbox::units::slots::{Batches, Job, TransactionSlot};
use crate::inbox::units::transaction::{BatchFailure, Sharing};
use crate::inbox::units::{CopyWait, UnitEnd};
use crate::outcome::Outcome;
use crate::store::Unit;
use crate::{Error, observe};

/// A unit whose batches met contention this often runs in a transaction of its own.
const BATCH_ATTEMPTS: u32 = 5;

/// The maximum number of units with savepoints in one transaction. More of them, with those of the handlers, are slow on
/// PostgreSQL.
const ISOLATED_MAX: usize = 25;

/// Runs waiting units in as few transactions as useful.
pub(super) struct Batching<S: InboxStore> {
    pub(super) engine: Arc<Engine<S>>,
    attempts: Arc<Attempts<S>>,
}

impl<S: InboxStore> Batching<S> {
    pub(super) fn new(engine: Arc<Engine<S>>, attempts: Arc<Attempts<S>>) -> Self {
        Self { engine, attempts }
    }

    /// The queue of a handler's units.
    pub(super) fn batches(&self, handler: usize) -> &Batches {
        &self.engine.handlers[handler].batches
    }

    /// Runs a unit: at once if a slot is free, otherwise together with other waiting units.
    pub(super) async fn run(
        self: &Arc<Self>,
        handler: &Registered<S>,
        delivery: &Delivery,
        unit: &Unit,
        message: Box<dyn Any + Send>,
        wait: CopyWait,
    ) -> Result<UnitEnd, Error> {
        if handler.runs_alone() {
            let attempt = AttemptInput::first(message);
            return self.attempts.run(handler, delivery, Some(unit), attempt, &wait).await;
        }
        let (promise, answer) = promise();
        let job = Job {
            unit: unit.clone(),
            delivery: delivery.clone(),
            message: Some(message),
            wait,
            attempts: 0,
            promise,
        };
        let Some((mut slot, job)) = TransactionSlot::or_queue(self, handler.index, job).await else {
            return answer.wait().await;
        };
        let attempt = AttemptInput { message: job.message, ..AttemptInput::default() };
        slot.hold(self.look_and_try(handler, delivery, unit, attempt, &wait)).await
    }

    /// Runs waiting units until the queue is empty.
    pub(super) async fn run_waiting(self: &Arc<Self>, handler: usize) {
        let mut slot = TransactionSlot::new(self, handler);
        let handler = &self.engine.handlers[handler];
        while slot.goes_on() {
            // The permit comes first, so that units that arrive during this wait join the batch.
            let permit = self.engine.permit(handler).await;
            let Some(jobs) = slot.take().await else { return };
            let span = tracing::debug_span!("oncebox.batch", handler = &*handler.name, units = jobs.len());
            slot.hold(self.run_batch(handler, jobs, permit).instrument(span)).await;
            // The callers of this batch now send their next messages, which can join the next batch.
            tokio::task::yield_now().await;
        }
    }

    async fn run_batch(self: &Arc<Self>, handler: &Registered<S>, mut jobs: Vec<Job>, permit: Permit<'_>) {
        if jobs.len() > 1 && !mutant!("unsorted_claims") {
            // All batches claim in the same order, so that two overlapping batches cannot deadlock.
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
            let problem = match part.len() {
                0 => continue,
                1 => BatchFailure::Other,
                _ => match self.try_batch(handler, &mut part, sharing, &permit).await {
                    Ok(ended) => {
                        self.answer(handler, part, ended);
                        continue;
                    }
                    Err(problem) => {
                        tracing::debug!(
                            ?problem,
                            ?sharing,
                            units = part.len(),
                            "a batch failed and was rolled back"
                        );
                        problem
                    }
                },
            };
            if problem == BatchFailure::Contended {
                self.engine.met_contention(handler);
                tries = part.iter().map(|job| job.attempts).max().unwrap_or_default() + 1;
                if tries < BATCH_ATTEMPTS {
                    part.iter_mut().for_each(|job| job.attempts += 1);
                    handler.batches.put_back(part);
                } else {
                    alone.extend(part.into_iter().map(|job| (job, AttemptInput::default())));
                }
            } else if problem == BatchFailure::Handler && handler.handler.takes_sets() {
                let half = part.len().div_ceil(2);
                parts.extend(in_parts(part, half).map(|half| (half, Sharing::Together)));
            } else if problem == BatchFailure::Handler && sharing == Sharing::Together {
                handler.batches.state().isolating = true;
                parts.extend(in_parts(part, ISOLATED_MAX).map(|part| (part, Sharing::Isolated)));
            } else {
                if part.len() > 1 {
                    handler.batches.state().size.failed();
                }
                let commit_unknown = problem == BatchFailure::CommitUnknown;
                if commit_unknown {
                    part.iter()
                        .for_each(|_| self.engine.observer.count(observe::COMMITS_UNKNOWN, &handler.name));
                }
                let attempt = || AttemptInput { commit_unknown, ..AttemptInput::default() };
                alone.extend(part.into_iter().map(|job| (job, attempt())));
            }
        }
        let had_turn = permit.has_turn();
        // Units that run alone take permits of their own; keeping this one could leave none for them.
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
            // With the turn, only a transaction of another process can have been in the way. The pause gives it time to end.
            tokio::time::sleep(Retries::pause_after(tries.min(BATCH_ATTEMPTS) - 1)).await;
        }
    }

    /// Sends each caller of a batch the end of its unit.
    fn answer(self: &Arc<Self>, handler: &Registered<S>, jobs: Vec<Job>, ended: Vec<Option<UnitEnd>>) {
        for (job, ended) in jobs.into_iter().zip(ended) {
            match ended {
                Some(ended) => job.promise.keep(Ok(ended)),
                // Another process runs this unit. It waits in a task of its own, so that the batch does not wait with it.
                None => drop(self.spawn_alone(
                    handler,
                    job,
                    AttemptInput { is_copy: true, ..AttemptInput::default() },
                )),
            }
        }
    }

    fn spawn_alone(
        self: &Arc<Self>,
        handler: &Registered<S>,
        job: Job,
        attempt: AttemptInput,
    ) -> JoinHandle<()> {
        let (batching, handler) = (self.clone(), handler.index);
        tokio::spawn(async move { batching.run_alone(handler, job, attempt).await })
    }

    /// Reports duplicates with one read and no write, and returns the other jobs.
    async fn answer_known(&self, handler: &Registered<S>, jobs: Vec<Job>) -> Vec<Job> {
        let units: Vec<Unit> = jobs.iter().map(|job| job.unit.clone()).collect();
        // The read only saves work: if it fails, the claim finds the duplicates.
        let Ok(markers) = self.engine.store.markers(&units).await else { return jobs };
        let mut left = Vec::with_capacity(jobs.len());
        for (job, marker) in jobs.into_iter().zip(markers) {
            match marker {
                Some(marker) => {
                    let ended = UnitEnd::known(&job.unit, marker, self.engine.settings.key_reuse);
                    job.promise.keep(Ok(ended));
                }
                None => left.push(job),
            }
        }
        handler.batches.state().duplicates = left.len() < units.len();
        left
    }

    /// Runs one unit of the queue in a transaction of its own, until its caller is dropped.
    async fn run_alone(&self, handler: usize, job: Job, attempt: AttemptInput) {
        let handler = &self.engine.handlers[handler];
        let Job { unit, delivery, message, wait, mut promise, .. } = job;
        let attempt = AttemptInput { message, ..attempt };
        let ended = tokio::select! {
            ended = self.look_and_try(handler, &delivery, &unit, attempt, &wait) => ended,
            () = promise.abandoned() => return,
        };
        promise.keep(ended);
    }

    /// Runs a unit in a transaction of its own. If copies arrived recently, it reads the marker first: many copies would each
    /// wait to write, and block new messages.
    async fn look_and_try(
        &self,
        handler: &Registered<S>,
        delivery: &Delivery,
        unit: &Unit,
        attempt: AttemptInput,
        wait: &CopyWait,
    ) -> Result<UnitEnd, Error> {
        // After a commit with a lost response, a marker may be this unit's own. Only the transaction tells `Done` from `Duplicate`.
        if handler.batches.state().duplicates && !attempt.commit_unknown {
            let _permit = self.engine.permits.one().await;
            // The read only saves work: if it fails, the claim finds the duplicate.
            if let Ok(Some(marker)) = self.engine.store.marker(unit).await {
                return Ok(UnitEnd::known(unit, marker, self.engine.settings.key_reuse));
            }
        }
        let ended = self.attempts.run(handler, delivery, Some(unit), attempt, wait).await?;
        let mut state = handler.batches.state();
        state.duplicates = matches!(ended.outcome, Outcome::Duplicate);
        if matches!(ended.outcome, Outcome::Done) {
            state.size.clean(1);
        }
        drop(state);
        Ok(ended)
    }
}

/// Splits jobs into parts of this size.
fn in_parts(mut jobs: Vec<Job>, size: usize) -> impl Iterator<Item = Vec<Job>> {
    std::iter::from_fn(move || {
        let rest = jobs.split_off(size.min(jobs.len()));
        let part = std::mem::replace(&mut jobs, rest);
        (!part.is_empty()).then_some(part)
    })
}
