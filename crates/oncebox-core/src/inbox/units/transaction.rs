//! Runs the units of a batch in one transaction.

use std::any::Any;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::backoff::spread;
use crate::handler::Delivery;
use crate::handler::Returned;
use crate::inbox::InboxStore;
use crate::inbox::body::BodyFailure;
use crate::inbox::contention::lock_wait;
use crate::inbox::faults::Meaning;
use crate::inbox::permits::Permit;
use crate::inbox::registered::Registered;
use crate::inbox::units::UnitEnd;
use crate::inbox::units::batch::Batching;
use crate::inbox::units::slots::Job;
use crate::inbox::units::wait::CLAIM_WAIT;
use crate::observe;
use crate::outcome::Outcome;
use crate::store::{Claimed, Limits, Unit};

/// How the units of a batch share their transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Without savepoints.
    Together,
    /// With a savepoint for each unit.
    Isolated,
}

/// A transaction with the claimed units of a batch.
struct ClaimedBatch<Tx> {
    tx: Tx,
    units: Vec<Unit>,
    /// The indexes of the units that run.
    fresh: Vec<usize>,
    /// The end of each unit; `None` for units that another process runs.
    ended: Vec<Option<UnitEnd>>,
}

/// Why a batch was rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchFailure {
    /// The handler failed on a unit, or on the whole set.
    Handler,
    /// The transaction conflicted with others.
    Contended,
    /// The handler exceeded its time limit.
    TimedOut,
    /// The response to the commit was lost: the whole batch may be stored.
    CommitUnknown,
    Other,
}

/// Judges what an error of one body means for the whole batch.
impl From<BodyFailure> for BatchFailure {
    fn from(error: BodyFailure) -> Self {
        match error {
            BodyFailure::Failed(_) | BodyFailure::Broken(_) => Self::Handler,
            BodyFailure::Contended(_) => Self::Contended,
            BodyFailure::TimedOut(_) => Self::TimedOut,
            BodyFailure::Lost(_) | BodyFailure::Session(_) | BodyFailure::Outage(_) => Self::Other,
        }
    }
}

impl<S: InboxStore> Batching<S> {
    /// Runs units in one transaction. Returns the end of each, in their order; `None` for units that another process runs.
    pub(super) async fn try_batch(
        &self,
        handler: &Registered<S>,
        jobs: &mut [Job],
        sharing: Sharing,
        permit: &Permit<'_>,
    ) -> Result<Vec<Option<UnitEnd>>, BatchFailure> {
        let store = &self.engine.store;
        let units = jobs.iter().map(|job| job.unit.clone()).collect();
        let tries = jobs.iter().map(|job| job.attempts).max().unwrap_or_default();
        let transaction = handler.batches.state().size.time_of(jobs.len());
        let lock_wait = lock_wait(transaction, permit.has_turn(), tries, spread());
        let mut claim = self.claim_batch(handler, units, lock_wait).await?;
        handler.batches.state().duplicates |= claim.fresh.len() < jobs.len();
        // Duplicates and copies only: there is nothing to commit.
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
        let ClaimedBatch { mut tx, units, fresh, ended } = claim;
        match ran {
            Ok(()) => {}
            Err(BatchFailure::TimedOut) => {
                store.abandon(tx).await;
                return Err(BatchFailure::TimedOut);
            }
            Err(problem) => {
                store.rollback(tx).await;
                return Err(problem);
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
            return Err(BatchFailure::Other);
        }
        self.engine.commit(tx).await.map_err(|error| match Meaning::of::<S>(&error) {
            Meaning::Lost => BatchFailure::CommitUnknown,
            _ => BodyFailure::behind::<S>(error).into(),
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
    ) -> Result<ClaimedBatch<S::Tx>, BatchFailure> {
        let store = &self.engine.store;
        let limits = Limits {
            // Short, because a key that another process holds would block all units of the batch.
            lock_timeout: CLAIM_WAIT,
            body_lock_timeout: Some(lock_wait),
            handler_timeout: self.engine.handler_timeout(handler),
        };
        let mut tx = self.engine.store.begin(limits).await.map_err(|_error| BatchFailure::Other)?;
        let claimed = match store.claim(&mut tx, &units).await {
            Ok(claimed) if claimed.len() == units.len() && store.arm(&mut tx).await.is_ok() => claimed,
            Ok(_) | Err(_) => {
                store.rollback(tx).await;
                return Err(BatchFailure::Other);
            }
        };
        let fresh = (0..units.len()).filter(|&n| claimed[n].is_fresh()).collect();
        let ended = claimed
            .into_iter()
            .zip(&units)
            .map(|(claimed, unit)| match claimed {
                Claimed::Known(marker) => Some(UnitEnd::known(unit, marker, self.engine.settings.key_reuse)),
                Claimed::Fresh => Some(Outcome::Done.into()),
                Claimed::Busy => None,
            })
            .collect();
        Ok(ClaimedBatch { tx, units, fresh, ended })
    }

    /// Runs a batch without savepoints.
    async fn run_together(
        &self,
        handler: &Registered<S>,
        jobs: &mut [Job],
        claim: &mut ClaimedBatch<S::Tx>,
    ) -> Result<(), BatchFailure> {
        let fresh = &claim.fresh;
        let mut messages = Vec::with_capacity(fresh.len());
        for &n in fresh {
            messages.push(self.decoded(handler, &mut jobs[n])?);
        }
        let deliveries: Vec<Delivery> = fresh.iter().map(|&n| jobs[n].delivery.clone()).collect();
        let returned = self.run_body(handler, messages, &deliveries, jobs, fresh, &mut claim.tx).await??;
        for (&n, returned) in fresh.iter().zip(returned) {
            if let Some(ended) = &mut claim.ended[n] {
                ended.result = returned.result;
            }
        }
        Ok(())
    }

    /// Runs the units of a batch one after the other, and rolls failed ones back to their savepoint.
    async fn run_isolated(
        &self,
        handler: &Registered<S>,
        jobs: &mut [Job],
        claim: &mut ClaimedBatch<S::Tx>,
    ) -> Result<(), BatchFailure> {
        let store = &self.engine.store;
        let broken_off = |_error| BatchFailure::Other;
        store.isolate(&mut claim.tx).await.map_err(broken_off)?;
        let mut clean = true;
        for (done, &n) in claim.fresh.iter().enumerate() {
            let next = done + 1 < claim.fresh.len();
            let message = self.decoded(handler, &mut jobs[n])?;
            let delivery = jobs[n].delivery.clone();
            let deliveries = std::slice::from_ref(&delivery);
            let ran = self.run_body(handler, vec![message], deliveries, jobs, &[n], &mut claim.tx).await?;
            let kept = match ran {
                Ok(returned) => {
                    let kept = store.keep(&mut claim.tx, next).await;
                    kept.map(|()| returned).map_err(BodyFailure::behind::<S>)
                }
                Err(error) => Err(error),
            };
            let ended = match kept {
                Ok(mut returned) => {
                    let result = returned.pop().and_then(|returned| returned.result);
                    claim.ended[n] = Some(UnitEnd { outcome: Outcome::Done, result, shared: false });
                    continue;
                }
                Err(error @ (BodyFailure::Failed(_) | BodyFailure::Broken(_))) => error.outcome(),
                Err(error) => return Err(error.into()),
            };
            // `undo` also deletes the unit's marker, which was claimed before the savepoint.
            clean = false;
            let unit = Some(&claim.units[n]).filter(|_| !mutant!("failed_unit_keeps_its_marker"));
            store.undo(&mut claim.tx, unit, next).await.map_err(broken_off)?;
            claim.ended[n] = Some(ended.into());
        }
        // A clean batch shows that the handler succeeds again, so the next batch needs no savepoints.
        handler.batches.state().isolating = !clean;
        Ok(())
    }

    /// Runs a body until it ends or the caller of one of its units is dropped.
    async fn run_body(
        &self,
        handler: &Registered<S>,
        messages: Vec<Box<dyn Any + Send>>,
        deliveries: &[Delivery],
        jobs: &mut [Job],
        units: &[usize],
        tx: &mut S::Tx,
    ) -> Result<Result<Vec<Returned>, BodyFailure>, BatchFailure> {
        tokio::select! {
            ended = self.engine.run_in(tx, handler, messages, deliveries) => Ok(ended),
            // The whole batch rolls back, because the dropped unit's writes cannot be separated from the others.
            () = any_caller_dropped(jobs, units) => Err(BatchFailure::Other),
        }
    }

    /// Takes the decoded message of a unit, or decodes it again for a body that runs again.
    fn decoded(&self, handler: &Registered<S>, job: &mut Job) -> Result<Box<dyn Any + Send>, BatchFailure> {
        if let Some(message) = job.message.take() {
            return Ok(message);
        }
        let prepared = self.engine.prepare(handler, &job.delivery.envelope);
        prepared.map(|prepared| prepared.message).map_err(|_rejection| BatchFailure::Other)
    }

    fn observe_batch(&self, handler: &Registered<S>, units: usize, took: Duration) {
        let observer = self.engine.observer;
        observer.batch(&handler.name, units);
        // The units ran in one call or one transaction, so each gets an equal share of its time.
        let each = took / u32::try_from(units.max(1)).unwrap_or(u32::MAX);
        for _ in 0..units {
            observer.time(observe::HANDLE_SECONDS, &handler.name, each);
        }
    }
}

/// Returns when one of the callers is dropped. Its unit must not be committed without a caller, and the other units can run
/// without it.
async fn any_caller_dropped(jobs: &mut [Job], fresh: &[usize]) {
    std::future::poll_fn(|cx| match fresh.iter().any(|&n| jobs[n].promise.poll_abandoned(cx).is_ready()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}
