//! One unit: one handler's work on one message, in one transaction.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::time::error::Elapsed;
use tracing::Instrument;

use crate::backoff::{backoff, spread};
use crate::error::chain;
use crate::handler::{Cancellation, Delivery, EffectId, Returned};
use crate::inbox::builder::Registered;
use crate::inbox::contention::lock_wait;
use crate::inbox::gate::{Entry, Waited};
use crate::inbox::permits::Permit;
use crate::inbox::resolve::resolve;
use crate::inbox::waiting::Waiting;
use crate::inbox::{Inbox, InboxStore};
use crate::limits::{check_envelope, check_order_by};
use crate::observe;
use crate::outcome::{Outcome, Rejection, cause};
use crate::policy::{KeyReuse, MissingKey};
use crate::store::{Claimed, Fault, Limits, Marker, Unit};
use crate::{Envelope, Error, ErrorKind, Failure, Headers, name};

/// A key that another process holds must not keep others waiting: past this a unit is known to be a copy, or its batch is taken
/// apart.
pub(crate) const CLAIM_WAIT: Duration = Duration::from_millis(20);
/// A transient error that a body raises this often is the body's own fault.
pub(crate) const BODY_TRANSIENTS_MAX: u32 = 5;
/// The server ends a statement first, so that the handler sees why; the process steps in this much later.
pub(crate) const TIMEOUT_GRACE: Duration = Duration::from_millis(250);

/// How a body ended: in time or not, with a panic or not, with a failure or not.
pub(crate) type BodyRan<T> = Result<Result<Result<T, Failure>, Box<dyn Any + Send>>, Elapsed>;

/// How a unit ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    /// The handler's result, fresh or stored.
    pub(crate) result: Option<Vec<u8>>,
    /// Whether this is another copy's end; what failed was counted and logged there.
    pub(crate) shared: bool,
}

impl From<Outcome> for Ended {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, result: None, shared: false }
    }
}

/// A unit on its way into its first transaction.
#[derive(Default)]
pub(crate) struct Attempt {
    /// Decoded already, unless it was used up.
    pub(crate) message: Option<Box<dyn Any + Send>>,
    /// Whether an earlier commit may have happened.
    pub(crate) commit_unknown: bool,
    /// Whether another process is known to have it in hand.
    pub(crate) is_copy: bool,
}

impl Attempt {
    pub(crate) fn first(message: Box<dyn Any + Send>) -> Self {
        Self { message: Some(message), ..Self::default() }
    }
}

/// What one transaction came to.
enum Tried {
    Ended(Ended),
    /// Another copy holds the marker.
    Locked,
    /// Others are before us at the store's one writer.
    NoTurn,
    /// The store does not answer now; nothing is decided.
    Infrastructure(Error),
    /// The store will not answer otherwise next time: a missing permission, a missing table.
    Hopeless(Error),
    /// The store did not answer a commit: the effect may be there.
    CommitUnknown(Error),
    /// The body met an error that another try may not meet.
    BodyTransient(Failure),
}

impl<S: InboxStore> Inbox<S> {
    /// Runs one handler on one message, as often as it takes to know what became of it.
    pub(crate) async fn run_unit(
        &self,
        handler: &Registered<S>,
        envelope: Arc<Envelope>,
    ) -> Result<Ended, Error> {
        let span = tracing::info_span!(
            "oncebox.unit",
            handler = &*handler.name,
            kind = envelope.kind(),
            traceparent = envelope.headers().get(Headers::TRACEPARENT),
            outcome = tracing::field::Empty,
        );
        let ended = self.decide_unit(handler, envelope.clone()).instrument(span.clone()).await?;
        span.record("outcome", ended.outcome.name());
        span.in_scope(|| self.observe(handler, &envelope, &ended));
        Ok(ended)
    }

    async fn decide_unit(&self, handler: &Registered<S>, envelope: Arc<Envelope>) -> Result<Ended, Error> {
        if let Err(rejection) = check_envelope(&envelope, self.inner.settings.max_body_bytes) {
            return Ok(Outcome::Rejected(rejection).into());
        }
        let prepare = || handler.handler.prepare(&envelope, &self.inner.selectors);
        let prepared = match catch_unwind(AssertUnwindSafe(prepare)) {
            Ok(Ok(prepared)) => prepared,
            Ok(Err(rejection)) => return Ok(Outcome::Rejected(rejection).into()),
            Err(panic) => {
                let text = format!("panicked while decoding: {}", panic_text(&*panic));
                return Ok(Outcome::Rejected(Rejection::Undecodable(cause(text))).into());
            }
        };
        if let Err(rejection) = check_order_by(envelope.order_by().or(prepared.order_by.as_ref())) {
            return Ok(Outcome::Rejected(rejection).into());
        }
        let key = resolve(&prepared, &envelope);
        if let Some(Err(error)) = key.as_ref().map(name::check_key) {
            return Ok(Outcome::Rejected(Rejection::BadKey(cause(error))).into());
        }
        let dedup = !handler.settings.dedup_off && !self.inner.settings.dedup_off;
        let unit = match &key {
            Some(key) if dedup => Some(Unit {
                handler: if mutant!("key_without_handler") {
                    "@any".into()
                } else {
                    handler.origin.to_string()
                },
                kind: envelope.kind().to_owned(),
                key: key.stored(),
                fingerprint: Some(envelope.fingerprint()),
                waited: envelope.arrived.elapsed(),
            }),
            None if dedup => {
                self.inner.observer.count(observe::MISSING_KEY, &handler.name);
                match self.inner.settings.missing_key {
                    MissingKey::Reject => return Ok(Outcome::Rejected(Rejection::MissingKey).into()),
                    MissingKey::RunWithoutDedup => None,
                }
            }
            _ => None,
        };
        let effect_id = match &key {
            Some(key) => EffectId::of(&handler.origin, envelope.kind(), key),
            None => EffectId::unique(),
        };
        let delivery = Delivery {
            handler: handler.name.clone(),
            envelope,
            key,
            effect_id,
            is_replay: false,
            cancellation: Cancellation::never(),
            states: self.inner.states.clone(),
        };
        self.pass_the_gate(handler, &delivery, unit, prepared.message).await
    }

    /// Copies of what runs in this process wait for it, and hold no connection while they do.
    async fn pass_the_gate(
        &self,
        handler: &Registered<S>,
        delivery: &Delivery,
        unit: Option<Unit>,
        message: Box<dyn Any + Send>,
    ) -> Result<Ended, Error> {
        let settings = &self.inner.settings;
        let waiting = Waiting::new(settings.in_flight, settings.lock_timeout);
        let Some(unit) = unit else {
            if handler.detached.is_some() {
                return self.queue_detached(handler, delivery, None).await;
            }
            let first = Attempt::first(message);
            let ended = self.try_until_known(handler, delivery, None, first, &waiting).await?;
            return Ok(self.spill_failed(handler, delivery, None, ended).await);
        };
        loop {
            match self.inner.gate.enter(&unit) {
                Entry::First(pass) => {
                    let ended = if handler.detached.is_some() {
                        self.queue_detached(handler, delivery, Some(&unit)).await?
                    } else {
                        let ended = self.run_or_queue(handler, delivery, &unit, message, waiting).await?;
                        self.spill_failed(handler, delivery, Some(&unit), ended).await
                    };
                    pass.tell(&ended);
                    return Ok(ended);
                }
                Entry::Copy(copy) => match copy.wait(waiting.left()).await {
                    Waited::Told(first) => {
                        if let Some(ended) = first.means_for(&unit, settings.key_reuse) {
                            return Ok(ended);
                        }
                    }
                    Waited::Gone => {}
                    Waited::TimeIsUp => return Ok(Outcome::Busy.into()),
                },
            }
        }
    }

    /// Runs a unit in a transaction of its own, as often as it takes to know what became of it.
    pub(crate) async fn try_until_known(
        &self,
        handler: &Registered<S>,
        delivery: &Delivery,
        unit: Option<&Unit>,
        Attempt { message: mut decoded, mut commit_unknown, mut is_copy }: Attempt,
        waiting: &Waiting,
    ) -> Result<Ended, Error> {
        let settings = &self.inner.settings;
        let mut troubled_since = None;
        let mut troubles = 0;
        let mut body_transients = 0;
        let mut sessions = 0;
        loop {
            // A body that runs again gets a message of its own again.
            let message = match decoded.take() {
                Some(message) => message,
                None => match handler.handler.prepare(&delivery.envelope, &self.inner.selectors) {
                    Ok(prepared) => prepared.message,
                    Err(rejection) => return Ok(Outcome::Rejected(rejection).into()),
                },
            };
            let Some(permit) = self.permit_within(waiting, Some(handler), is_copy).await else {
                return Ok(Outcome::Busy.into());
            };
            let limits = Limits {
                lock_timeout: self.claim_wait(is_copy, waiting),
                body_lock_timeout: self.lock_wait_alone(handler, &permit),
                handler_timeout: handler.settings.timeout.unwrap_or(settings.handler_timeout),
            };
            let tried = self.try_unit(handler, delivery, unit, message, limits).await;
            drop(permit);
            if let Tried::CommitUnknown(_) = &tried {
                self.inner.observer.count(observe::COMMITS_UNKNOWN, &handler.name);
            }
            match tried {
                Tried::Ended(Ended { outcome: Outcome::Duplicate, result, .. }) if commit_unknown => {
                    // The marker that we were not sure of is there.
                    tracing::info!("a commit whose answer was lost had happened");
                    self.inner.observer.count(observe::COMMITS_RECOVERED, &handler.name);
                    return Ok(Ended { outcome: Outcome::Done, result, shared: false });
                }
                Tried::Ended(ended) => {
                    if let Outcome::Done = ended.outcome {
                        handler.batches.state().contention.committed();
                    }
                    return Ok(ended);
                }
                Tried::Locked if waiting.is_over() => return Ok(Outcome::Busy.into()),
                Tried::NoTurn if waiting.is_over_for_the_writer() => return Ok(Outcome::Busy.into()),
                Tried::Locked => {
                    is_copy = true;
                    continue;
                }
                Tried::NoTurn => continue,
                Tried::Hopeless(error) => return Err(error),
                // Each try closes its connection; the next one may have been opened as long ago.
                Tried::BodyTransient(failure)
                    if S::classify(failure.error()) == Fault::Session && sessions < self.sessions_max() =>
                {
                    sessions += 1;
                    tracing::debug!(error = %failure, "another try on another connection");
                    continue;
                }
                Tried::BodyTransient(failure) => {
                    body_transients += 1;
                    if S::classify(failure.error()) != Fault::Connection {
                        self.met_contention(handler);
                    }
                    if body_transients >= BODY_TRANSIENTS_MAX {
                        return Ok(failed(failure).into());
                    }
                    tracing::debug!(error = %failure, "another try after a transient error");
                }
                Tried::Infrastructure(error) | Tried::CommitUnknown(error)
                    if troubled_since.get_or_insert_with(Instant::now).elapsed() >= settings.patience =>
                {
                    return Err(error);
                }
                Tried::Infrastructure(error) => {
                    tracing::debug!(error = chain(&error), "another try: the store did not answer");
                }
                Tried::CommitUnknown(error) => {
                    tracing::debug!(error = chain(&error), "the answer to a commit was lost: finding out");
                    commit_unknown = true;
                }
            }
            troubles += 1;
            tokio::time::sleep(backoff(troubles, spread())).await;
        }
    }

    /// How long a claim may wait for a copy in another process. Only those are waited for that are known to be there, and
    /// not with the only permit: others must not wait with them.
    pub(crate) fn claim_wait(&self, is_copy: bool, waiting: &Waiting) -> Duration {
        let lock_timeout = waiting.lock_timeout();
        match is_copy && self.inner.permits.limit() > 1 {
            true => lock_timeout,
            false => lock_timeout.min(CLAIM_WAIT),
        }
    }

    /// How long the statements of a unit in a transaction of its own may wait for a lock. Without a limit where no other
    /// transaction could wait for it, when it is its turn, or where its body is not to run again for nothing.
    fn lock_wait_alone(&self, handler: &Registered<S>, permit: &Permit<'_>) -> Option<Duration> {
        let may_run_again = !self.runs_alone(handler) && self.inner.settings.max_batch > 1;
        let limited = may_run_again && !permit.has_turn() && self.inner.permits.in_flight() > 1;
        limited.then(|| lock_wait(handler.batches.state().size.time_of(1), false, 0, spread()))
    }

    async fn try_unit(
        &self,
        handler: &Registered<S>,
        delivery: &Delivery,
        unit: Option<&Unit>,
        message: Box<dyn Any + Send>,
        limits: Limits,
    ) -> Tried {
        let store = &self.inner.store;
        let unseen = match unit {
            Some(unit) if mutant!("check_then_insert") => matches!(store.marker(unit).await, Ok(None)),
            _ => false,
        };
        let mut tx = match self.begin(limits).await {
            Ok(tx) => tx,
            Err(error) => {
                return match own_statement::<S>(error) {
                    Tried::Locked => Tried::NoTurn,
                    other => other,
                };
            }
        };
        if let Some(unit) = unit.filter(|_| !mutant!("marker_after_body")) {
            match store.claim(&mut tx, std::slice::from_ref(unit)).await.map(|mut claimed| claimed.pop()) {
                Ok(Some(Claimed::Fresh)) => {}
                Ok(Some(Claimed::Known(_))) if unseen => {}
                Ok(Some(Claimed::Known(marker))) => {
                    store.rollback(tx).await;
                    return Tried::Ended(self.known(unit, marker));
                }
                Ok(Some(Claimed::Busy)) => {
                    store.rollback(tx).await;
                    return Tried::Locked;
                }
                Ok(None) => {
                    let message = format!("the store {} gave no answer to a claim", S::NAME);
                    return Tried::Infrastructure(Error::new(ErrorKind::Unavailable, message));
                }
                Err(error) => {
                    store.rollback(tx).await;
                    return own_statement::<S>(error);
                }
            }
        }
        if mutant!("marker_outside_transaction") {
            let (Ok(()), Ok(another)) = (self.commit(tx).await, self.begin(limits).await) else {
                return Tried::Locked;
            };
            tx = another;
        }
        if let Err(error) = store.arm(&mut tx).await {
            store.rollback(tx).await;
            return own_statement::<S>(error);
        }

        let started = Instant::now();
        let body =
            handler.handler.call(vec![message], std::slice::from_ref(delivery), Some(S::connection(&mut tx)));
        let body = self.inside(AssertUnwindSafe(body).catch_unwind());
        let ran = tokio::time::timeout(limits.handler_timeout.saturating_add(TIMEOUT_GRACE), body).await;
        let took = started.elapsed();
        self.inner.observer.time(observe::HANDLE_SECONDS, &handler.name, took);
        self.note_body_ended(&mut tx, &ran);

        let returned = match ran {
            Ok(Ok(Ok(returned))) => returned,
            Ok(Ok(Err(failure))) => {
                store.rollback(tx).await;
                let failure = handler.settings.judge(failure);
                return match (S::classify(failure.error()), &failure) {
                    // Unless the handler has made up its mind.
                    (
                        Fault::Connection | Fault::Session | Fault::Transient | Fault::LockTimeout,
                        Failure::Retry(_),
                    ) => Tried::BodyTransient(failure),
                    _ => {
                        handler.batches.took(1, took);
                        Tried::Ended(failed(failure).into())
                    }
                };
            }
            Ok(Err(panic)) => {
                store.rollback(tx).await;
                return Tried::Ended(failed(panicked(&*panic)).into());
            }
            Err(_elapsed) => {
                store.abandon(tx).await;
                let message = format!("the handler ran longer than {:?}", limits.handler_timeout);
                return Tried::Ended(failed(message.into()).into());
            }
        };
        handler.batches.took(1, took);
        if mutant!("marker_after_body")
            && let Some(unit) = unit
            && let Ok([Claimed::Known(marker)]) =
                store.claim(&mut tx, std::slice::from_ref(unit)).await.as_deref()
        {
            return Tried::Ended(self.known(unit, marker.clone()));
        }
        self.finish(unit, tx, returned).await
    }

    /// Lets the store know how a body ended: the connection may be at fault.
    pub(crate) fn note_body_ended<T>(&self, tx: &mut S::Tx, ran: &BodyRan<T>) {
        match ran {
            Ok(Ok(Ok(_))) => self.inner.store.body_ended(tx, Ok(())),
            Ok(Ok(Err(failure))) => self.inner.store.body_ended(tx, Err(failure.error())),
            // Nothing is known about the connection.
            Ok(Err(_)) | Err(_) => {}
        }
    }

    /// How many connections in a row may be out of date, before that is the body's own fault: all that the pool has, and a few.
    pub(crate) fn sessions_max(&self) -> usize {
        self.inner.store.capacity().saturating_add(BODY_TRANSIENTS_MAX as usize)
    }

    /// Everything after the body: proof, result, commit.
    async fn finish(&self, unit: Option<&Unit>, mut tx: S::Tx, mut returned: Vec<Returned>) -> Tried {
        let store = &self.inner.store;
        let result = returned.pop().and_then(|returned| returned.result);
        if let (Some(unit), Some(result)) = (unit, &result) {
            if let Err(error) = store.guard(&mut tx).await {
                store.rollback(tx).await;
                return match error.kind() {
                    ErrorKind::Transaction => Tried::Ended(broken(error).into()),
                    _ => own_statement::<S>(error),
                };
            }
            if let Err(error) = store.record_results(&mut tx, &[(unit, result)]).await {
                store.rollback(tx).await;
                return own_statement::<S>(error);
            }
        }
        match self.commit(tx).await {
            Ok(()) => Tried::Ended(Ended { outcome: Outcome::Done, result, shared: false }),
            Err(error) if error.kind() == ErrorKind::Transaction => Tried::Ended(broken(error).into()),
            Err(error) => match S::classify(&error) {
                Fault::Connection if !mutant!("unknown_commit_is_a_failure") => Tried::CommitUnknown(error),
                Fault::Session | Fault::Transient | Fault::LockTimeout => Tried::BodyTransient(error.into()),
                // A deferred constraint, for example: the handler's own data.
                Fault::Connection | Fault::StatementTimeout | Fault::Other => {
                    Tried::Ended(failed(error.into()).into())
                }
            },
        }
    }

    pub(crate) fn known(&self, unit: &Unit, marker: Marker) -> Ended {
        let reused = matches!((unit.fingerprint, marker.fingerprint), (Some(new), Some(old)) if new != old);
        let outcome = match (reused, self.inner.settings.key_reuse) {
            (false, _) => Outcome::Duplicate,
            (true, KeyReuse::Skip) => Outcome::KeyReuse,
            (true, KeyReuse::Reject) => Outcome::Rejected(Rejection::KeyReuse),
        };
        Ended { outcome, result: marker.result, shared: false }
    }

    fn observe(&self, handler: &Registered<S>, envelope: &Envelope, ended: &Ended) {
        let observer = self.inner.observer;
        let name = &*handler.name;
        match &ended.outcome {
            Outcome::Done => {
                observer.count(observe::PROCESSED, name);
                observer.time(observe::WAIT_SECONDS, name, envelope.arrived.elapsed());
            }
            Outcome::Duplicate => {
                observer.count(observe::DUPLICATES, name);
                tracing::debug!("skipped a duplicate");
            }
            Outcome::KeyReuse | Outcome::Rejected(Rejection::KeyReuse) => {
                observer.count(observe::KEY_REUSE, name);
                tracing::warn!("a key came again with another body");
            }
            Outcome::Busy => {
                observer.count(observe::BUSY, name);
                tracing::debug!("another copy is still running");
            }
            Outcome::Retry { .. } | Outcome::Rejected(_) if ended.shared => {
                tracing::debug!("a copy shares what became of the first");
            }
            failed @ (Outcome::Retry { .. }
            | Outcome::Rejected(Rejection::Permanent(_) | Rejection::EndedTransaction(_))) => {
                self.observe_failure(handler, failed);
            }
            // What anybody outside can send.
            Outcome::Rejected(rejection) => {
                observer.count(observe::REJECTED, name);
                tracing::warn!(error = %rejection, "rejected");
            }
            Outcome::Queued => tracing::debug!("set apart in the log"),
        }
    }

    /// Counts and logs that a handler failed.
    pub(crate) fn observe_failure(&self, handler: &Registered<S>, outcome: &Outcome) {
        let observer = self.inner.observer;
        match outcome {
            Outcome::Retry { cause, .. } => {
                observer.count(observe::FAILED, &handler.name);
                tracing::warn!(error = chain(&**cause), "the handler failed and was rolled back");
            }
            Outcome::Rejected(rejection) => {
                observer.count(observe::REJECTED, &handler.name);
                tracing::error!(error = %rejection, "rejected");
            }
            _ => {}
        }
    }
}

/// What an error of one of the inbox's own statements means.
fn own_statement<S: InboxStore>(error: Error) -> Tried {
    match S::classify(&error) {
        Fault::LockTimeout => Tried::Locked,
        Fault::Connection | Fault::Session | Fault::Transient | Fault::StatementTimeout => {
            Tried::Infrastructure(error)
        }
        Fault::Other => Tried::Hopeless(error),
    }
}

/// What a handler's failure means for the delivery.
pub(crate) fn failed(failure: Failure) -> Outcome {
    match failure {
        Failure::Retry(error) => Outcome::Retry { after: None, cause: cause(error) },
        Failure::After(delay, error) => Outcome::Retry { after: Some(delay), cause: cause(error) },
        Failure::Permanent(error) => Outcome::Rejected(Rejection::Permanent(cause(error))),
    }
}

/// What a failed guard means: a swallowed error may not come again, a handler that ends its transaction will do
/// so every time.
pub(crate) fn broken(error: Error) -> Outcome {
    match std::error::Error::source(&error) {
        Some(_) => Outcome::Retry { after: None, cause: cause(error) },
        None => Outcome::Rejected(Rejection::EndedTransaction(cause(error))),
    }
}

/// A panic as a failure.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Failure {
    Failure::from(format!("the handler panicked: {}", panic_text(panic)))
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
