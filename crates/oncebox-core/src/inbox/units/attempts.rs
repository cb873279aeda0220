//! Attempts: runs a unit in a transaction of its own, until its outcome is known.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backoff::{Retries, spread};
use crate::handler::{Delivery, Returned};
use crate::inbox::InboxStore;
use crate::inbox::body::BodyFailure;
use crate::inbox::contention::lock_wait;
use crate::inbox::engine::Engine;
use crate::inbox::faults::{Meaning, Obstacle, outage};
use crate::inbox::permits::Permit;
use crate::inbox::registered::Registered;
use crate::inbox::sessions::StaleSessions;
use crate::inbox::units::{CopyWait, UnitEnd};
use crate::observe;
use crate::outcome::Outcome;
use crate::store::{Claimed, Limits, Unit};
use crate::{Error, ErrorKind, Failure};

/// The number of transient errors in a row after which the body itself counts as failed.
pub(crate) const BODY_TRANSIENTS_MAX: u32 = 5;

/// What is known about a unit before its next transaction.
#[derive(Default)]
pub(super) struct AttemptInput {
    /// The decoded message; `None` if an earlier transaction used it.
    pub(super) message: Option<Box<dyn Any + Send>>,
    /// Whether an earlier transaction may have been committed.
    pub(super) commit_unknown: bool,
    /// Whether another process is known to run the same unit.
    pub(super) is_copy: bool,
}

impl AttemptInput {
    pub(super) fn first(message: Box<dyn Any + Send>) -> Self {
        Self { message: Some(message), ..Self::default() }
    }
}

/// The result of one transaction.
enum Tried {
    Ended(UnitEnd),
    /// Another copy holds the marker's lock.
    Locked,
    /// Other transactions use the store's one writer.
    NoTurn,
    /// The store does not respond now. The outcome is open.
    Infrastructure(Error),
    /// The store would fail in the same way next time.
    Hopeless(Error),
    /// The response to the commit was lost: the effect may be stored.
    CommitUnknown(Error),
    /// The body met an error that another attempt may not meet.
    BodyTransient(Meaning, Failure),
}

impl From<BodyFailure> for Tried {
    fn from(error: BodyFailure) -> Self {
        match error {
            BodyFailure::Contended(failure) => Self::BodyTransient(Meaning::Contended, failure),
            BodyFailure::Session(failure) => Self::BodyTransient(Meaning::Session, failure),
            BodyFailure::Lost(failure) => Self::BodyTransient(Meaning::Lost, failure),
            BodyFailure::Outage(failure) => Self::Infrastructure(outage(failure)),
            BodyFailure::Failed(_) | BodyFailure::Broken(_) | BodyFailure::TimedOut(_) => {
                Self::Ended(error.outcome().into())
            }
        }
    }
}

impl From<Obstacle> for Tried {
    fn from(obstacle: Obstacle) -> Self {
        match obstacle {
            Obstacle::Locked => Self::Locked,
            Obstacle::Infrastructure(error) => Self::Infrastructure(error),
            Obstacle::Hopeless(error) => Self::Hopeless(error),
        }
    }
}

/// Runs units in transactions of their own.
pub(super) struct Attempts<S: InboxStore> {
    engine: Arc<Engine<S>>,
}

impl<S: InboxStore> Attempts<S> {
    pub(super) fn new(engine: Arc<Engine<S>>) -> Self {
        Self { engine }
    }

    /// Runs a unit in a transaction of its own, until its outcome is known.
    pub(super) async fn run(
        &self,
        handler: &Registered<S>,
        delivery: &Delivery,
        unit: Option<&Unit>,
        AttemptInput { message: mut decoded, mut commit_unknown, mut is_copy }: AttemptInput,
        wait: &CopyWait,
    ) -> Result<UnitEnd, Error> {
        let engine = &self.engine;
        let mut retries = Retries::within(engine.settings.store_timeout);
        let mut body_transients = 0;
        let mut sessions = StaleSessions::default();
        loop {
            // The body consumes its message, so each further attempt decodes another one.
            let message = match decoded.take() {
                Some(message) => message,
                None => match engine.prepare(handler, &delivery.envelope) {
                    Ok(prepared) => prepared.message,
                    Err(rejection) => return Ok(Outcome::Rejected(rejection).into()),
                },
            };
            let Some(permit) = engine.permit_within(wait, Some(handler), is_copy).await else {
                return Ok(Outcome::Busy.into());
            };
            let limits = Limits {
                lock_timeout: wait.claim_timeout(is_copy, engine.permits.limit()),
                body_lock_timeout: self.lock_wait(handler, &permit),
                handler_timeout: engine.handler_timeout(handler),
            };
            let tried = self.try_once(handler, delivery, unit, message, limits).await;
            // Before any pause below: a waiting unit must not hold a permit.
            drop(permit);
            match tried {
                Tried::Ended(UnitEnd { outcome: Outcome::Duplicate, result, .. }) if commit_unknown => {
                    // The marker exists: the commit with the lost response had succeeded.
                    tracing::info!("a commit whose response was lost had succeeded");
                    engine.observer.count(observe::COMMITS_RECOVERED, &handler.name);
                    return Ok(UnitEnd { outcome: Outcome::Done, result, shared: false });
                }
                Tried::Ended(ended) => {
                    if let Outcome::Done = ended.outcome {
                        handler.batches.state().contention.committed();
                    }
                    return Ok(ended);
                }
                Tried::Locked if wait.is_over() => return Ok(Outcome::Busy.into()),
                Tried::NoTurn if wait.is_over_for_the_writer() => return Ok(Outcome::Busy.into()),
                Tried::Locked => is_copy = true,
                Tried::NoTurn => {}
                Tried::Hopeless(error) => return Err(error),
                // Each attempt closes its connection; the next connection may be as old.
                Tried::BodyTransient(Meaning::Session, failure)
                    if sessions.replace(engine.store.capacity(), &failure) => {}
                Tried::BodyTransient(meaning, failure) => {
                    body_transients += 1;
                    if meaning == Meaning::Contended {
                        engine.met_contention(handler);
                    }
                    if body_transients >= BODY_TRANSIENTS_MAX {
                        return Ok(Outcome::failed(failure).into());
                    }
                    tracing::debug!(error = %failure, "another attempt after a transient error");
                    retries.pause().await;
                }
                Tried::Infrastructure(error) => retries.after::<S>(error).await?,
                Tried::CommitUnknown(error) => {
                    engine.observer.count(observe::COMMITS_UNKNOWN, &handler.name);
                    commit_unknown = true;
                    retries.after::<S>(error).await?;
                }
            }
        }
    }

    /// The lock timeout of the statements of a unit in a transaction of its own. There is no limit if no other transaction can
    /// wait for it, if it has the turn, or if its body must not run again without need.
    fn lock_wait(&self, handler: &Registered<S>, permit: &Permit<'_>) -> Option<Duration> {
        let engine = &self.engine;
        let may_run_again = !handler.runs_alone() && engine.settings.max_batch > 1;
        let limited = may_run_again && !permit.has_turn() && engine.permits.in_flight() > 1;
        limited.then(|| lock_wait(handler.batches.state().size.time_of(1), false, 0, spread()))
    }

    async fn try_once(
        &self,
        handler: &Registered<S>,
        delivery: &Delivery,
        unit: Option<&Unit>,
        message: Box<dyn Any + Send>,
        limits: Limits,
    ) -> Tried {
        let engine = &self.engine;
        let store = &engine.store;
        let unseen = match unit {
            Some(unit) if mutant!("check_then_insert") => matches!(store.marker(unit).await, Ok(None)),
            _ => false,
        };
        let mut tx = match engine.store.begin(limits).await.map_err(Obstacle::of::<S>) {
            Ok(tx) => tx,
            Err(Obstacle::Locked) => return Tried::NoTurn,
            Err(obstacle) => return obstacle.into(),
        };
        if let Some(unit) = unit.filter(|_| !mutant!("marker_after_body")) {
            match store.claim(&mut tx, std::slice::from_ref(unit)).await.map(|mut claimed| claimed.pop()) {
                Ok(Some(Claimed::Fresh)) => {}
                Ok(Some(Claimed::Known(_))) if unseen => {}
                Ok(Some(Claimed::Known(marker))) => {
                    store.rollback(tx).await;
                    return Tried::Ended(UnitEnd::known(unit, marker, engine.settings.key_reuse));
                }
                Ok(Some(Claimed::Busy)) => {
                    store.rollback(tx).await;
                    return Tried::Locked;
                }
                Ok(None) => return Tried::Infrastructure(no_answer::<S>()),
                Err(error) => {
                    store.rollback(tx).await;
                    return Obstacle::of::<S>(error).into();
                }
            }
        }
        if mutant!("marker_outside_transaction") {
            let (Ok(()), Ok(another)) = (engine.commit(tx).await, engine.store.begin(limits).await) else {
                return Tried::Locked;
            };
            tx = another;
        }
        if let Err(error) = store.arm(&mut tx).await {
            store.rollback(tx).await;
            return Obstacle::of::<S>(error).into();
        }

        let started = Instant::now();
        let ended = engine.run_in(&mut tx, handler, vec![message], std::slice::from_ref(delivery)).await;
        let took = started.elapsed();
        engine.observer.time(observe::HANDLE_SECONDS, &handler.name, took);
        let returned = match ended {
            Ok(returned) => returned,
            Err(error) => {
                match error {
                    // A statement may still run on this connection, so it is closed and not reused.
                    BodyFailure::TimedOut(_) => store.abandon(tx).await,
                    _ => store.rollback(tx).await,
                }
                if let BodyFailure::Failed(_) = error {
                    handler.batches.took(1, took);
                }
                return error.into();
            }
        };
        handler.batches.took(1, took);
        if mutant!("marker_after_body")
            && let Some(unit) = unit
            && let Ok([Claimed::Known(marker)]) =
                store.claim(&mut tx, std::slice::from_ref(unit)).await.as_deref()
        {
            return Tried::Ended(UnitEnd::known(unit, marker.clone(), engine.settings.key_reuse));
        }
        self.finish(unit, tx, returned).await
    }

    /// Does everything after the body: check the transaction, record the result, commit.
    async fn finish(&self, unit: Option<&Unit>, mut tx: S::Tx, mut returned: Vec<Returned>) -> Tried {
        let store = &self.engine.store;
        let result = returned.pop().and_then(|returned| returned.result);
        if let (Some(unit), Some(result)) = (unit, &result) {
            if let Err(error) = store.guard(&mut tx).await {
                store.rollback(tx).await;
                return match Meaning::of::<S>(&error) {
                    Meaning::Broken => Tried::Ended(Outcome::broken(error).into()),
                    _ => Obstacle::of::<S>(error).into(),
                };
            }
            if let Err(error) = store.record_results(&mut tx, &[(unit, result)]).await {
                store.rollback(tx).await;
                return Obstacle::of::<S>(error).into();
            }
        }
        let Err(error) = self.engine.commit(tx).await else {
            return Tried::Ended(UnitEnd { outcome: Outcome::Done, result, shared: false });
        };
        match Meaning::of::<S>(&error) {
            Meaning::Lost if mutant!("unknown_commit_is_a_failure") => {
                Tried::Ended(Outcome::failed(error.into()).into())
            }
            Meaning::Lost => Tried::CommitUnknown(error),
            Meaning::Outage => Tried::Infrastructure(error),
            _ => BodyFailure::behind::<S>(error).into(),
        }
    }
}

impl<S: InboxStore> Engine<S> {
    /// Commits the transaction of inline units.
    pub(super) async fn commit(&self, tx: S::Tx) -> Result<(), Error> {
        if mutant!("ack_before_commit") {
            let store = self.store.clone();
            drop(tokio::spawn(async move { store.commit(tx).await }));
            return Ok(());
        }
        self.store.commit(tx).await?;
        self.committed();
        Ok(())
    }
}

/// The error of a store that breaks its contract.
pub(super) fn no_answer<S: InboxStore>() -> Error {
    Error::new(ErrorKind::Unavailable, format!("the store {} returned no result for a claim", S::NAME))
}
