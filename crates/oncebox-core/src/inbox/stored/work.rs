//! Runs the handlers of a batch in the lane's transaction.

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::Instrument;

use crate::error::chain;
use crate::handler::{Cancellation, Delivery, EffectId, Returned};
use crate::inbox::body::{BodyFailure, timed_out};
use crate::inbox::faults::{Meaning, outage};
use crate::inbox::registered::Registered;
use crate::inbox::stored::visit::VisitPlan;
use crate::inbox::stored::{LaneVisitor, LogStore};
use crate::outcome::{Outcome, Rejection, cause};
use crate::store::StoredMessage;
use crate::{Envelope, Error, Failure, Headers, Key};

/// The end of a message in a visit.
#[derive(Debug)]
pub(crate) enum MessageEnd {
    /// The handler's effect will be committed, with its result.
    Done(Option<Vec<u8>>),
    /// It is not due yet: its sender set a later time.
    Scheduled,
    /// It waits behind another message of its ordering key.
    Parked,
    /// It met an error that another attempt may not meet.
    Again,
    /// The handler failed, or the message was rejected.
    Failed(Outcome),
}

/// The ends of the messages of a batch. It may be shorter than the batch, if the time was over.
#[derive(Default)]
pub(crate) struct BatchRun {
    /// One for each message, in their order.
    pub(crate) ended: Vec<MessageEnd>,
    /// The number of bodies that ran, and their total time.
    pub(crate) bodies: usize,
    pub(crate) took: Duration,
}

impl BatchRun {
    pub(crate) fn is_clean(&self) -> bool {
        self.ended
            .iter()
            .all(|ended| matches!(ended, MessageEnd::Done(_) | MessageEnd::Scheduled | MessageEnd::Parked))
    }
}

/// The ordering keys that are held back, for an ordered handler: one of their messages became a task or a dead letter, in this
/// batch or before.
pub(crate) struct HeldKeys {
    is_kept: bool,
    waiting: HashSet<Key>,
}

impl HeldKeys {
    pub(crate) fn of<S: LogStore>(handler: &Registered<S>) -> Self {
        Self { is_kept: handler.settings.ordered.is_some(), waiting: HashSet::new() }
    }

    /// Whether a message waits behind another one.
    pub(crate) fn holds(&self, message: &StoredMessage) -> bool {
        let waits = |key: &Key| message.held || self.waiting.contains(key);
        self.is_kept && message.order_by.as_ref().is_some_and(waits) && !mutant!("failed_head_is_passed")
    }

    /// Holds back the later messages of the same ordering key.
    pub(crate) fn hold(&mut self, message: &StoredMessage) {
        if let (true, Some(key)) = (self.is_kept, &message.order_by) {
            self.waiting.insert(key.clone());
        }
    }
}

/// Why the transaction of a visit was rolled back.
pub(crate) enum VisitFailure {
    /// The handler failed.
    Failed(Failure),
    /// The handler broke the transaction that it received.
    Broken(Error),
    /// The transaction conflicted with others.
    Contended(Failure),
    /// The handler exceeded its time limit.
    TimedOut(Duration),
    /// The session of the connection is out of date. Another connection works.
    Session(Failure),
    /// The connection was lost after a body had started.
    Gone(Failure),
    /// The outcome of a message cannot be stored.
    Unstorable(Error),
    /// The store does not respond.
    Store(Error),
}

impl VisitFailure {
    /// Whether the whole transaction is lost, so that no savepoint helps.
    pub(super) fn is_whole_transaction_lost(&self) -> bool {
        matches!(self, Self::TimedOut(_) | Self::Session(_) | Self::Store(_))
    }

    /// The outcome of the message that caused it.
    pub(crate) fn outcome<S: LogStore>(self, handler: &Registered<S>) -> Outcome {
        match self {
            Self::Failed(failure)
            | Self::Contended(failure)
            | Self::Session(failure)
            | Self::Gone(failure) => Outcome::failed(handler.settings.judge(failure)),
            Self::Unstorable(error) => unstorable(&error),
            Self::Broken(error) => Outcome::broken(error),
            Self::TimedOut(limit) => Outcome::failed(timed_out(limit)),
            Self::Store(error) => Outcome::failed(error.into()),
        }
    }
}

impl From<BodyFailure> for VisitFailure {
    fn from(error: BodyFailure) -> Self {
        match error {
            BodyFailure::Failed(failure) => Self::Failed(failure),
            BodyFailure::Broken(error) => Self::Broken(error),
            BodyFailure::TimedOut(limit) => Self::TimedOut(limit),
            BodyFailure::Session(failure) => Self::Session(failure),
            // An outage spends no attempt: the visit ends with an error, and its messages run again.
            BodyFailure::Outage(failure) => Self::Store(outage(failure)),
            // The lost connection may be another one of the handler. If it is the lane's, the rollback to a savepoint fails too.
            BodyFailure::Contended(failure) | BodyFailure::Lost(failure) => Self::Contended(failure),
        }
    }
}

/// A decoded message with its delivery, ready to run.
pub(crate) struct ReadyMessage {
    pub(crate) message: Box<dyn Any + Send>,
    pub(crate) delivery: Delivery,
}

impl<S: LogStore> LaneVisitor<S> {
    /// Runs the handler on messages in order, until the time of the visit is over.
    pub(crate) async fn run_messages(
        &self,
        handler: &Registered<S>,
        tx: &mut S::Tx,
        messages: &[StoredMessage],
        plan: &VisitPlan,
    ) -> Result<BatchRun, VisitFailure> {
        let span = tracing::info_span!("oncebox.work", handler = &*handler.name, messages = messages.len());
        let started = Instant::now();
        let mut held_keys = HeldKeys::of(handler);
        let run = async {
            match (plan.isolated, handler.handler.takes_sets()) {
                (true, _) => {
                    self.run_isolated_messages(handler, tx, messages, plan, started, &mut held_keys).await
                }
                (false, true) => self.run_set(handler, tx, messages).await,
                (false, false) => self.run_in_chunks(handler, tx, messages, plan, started, held_keys).await,
            }
        };
        let mut ran = run.instrument(span).await?;
        ran.took = started.elapsed();
        Ok(ran)
    }

    /// Runs a handler of sets on all messages in one call.
    async fn run_set(
        &self,
        handler: &Registered<S>,
        tx: &mut S::Tx,
        messages: &[StoredMessage],
    ) -> Result<BatchRun, VisitFailure> {
        let mut set = Vec::with_capacity(messages.len());
        let mut ended = Vec::with_capacity(messages.len());
        let mut held_keys = HeldKeys::of(handler);
        for message in messages {
            ended.push(match self.make_ready(handler, message, &mut held_keys) {
                Ok(ready) => {
                    set.push(ready);
                    MessageEnd::Done(None)
                }
                Err(ended) => ended,
            });
        }
        let bodies = set.len();
        if bodies > 0 {
            self.run_body_of(handler, tx, set).await?;
        }
        Ok(BatchRun { ended, bodies, took: Duration::ZERO })
    }

    /// Runs each message with a savepoint. Failed ones are rolled back, and the others stay.
    pub(super) async fn run_isolated_messages(
        &self,
        handler: &Registered<S>,
        tx: &mut S::Tx,
        messages: &[StoredMessage],
        plan: &VisitPlan,
        started: Instant,
        held_keys: &mut HeldKeys,
    ) -> Result<BatchRun, VisitFailure> {
        let store = &self.engine.store;
        let mut ran = BatchRun::default();
        for message in messages {
            // One body always runs, or a slow lane would make no progress.
            if ran.bodies > 0 && started.elapsed() >= plan.time {
                break;
            }
            let ready = match self.make_ready(handler, message, held_keys) {
                Ok(ready) => ready,
                Err(ended) => {
                    ran.ended.push(ended);
                    continue;
                }
            };
            store.isolate(tx).await.map_err(VisitFailure::Store)?;
            let kept = match self.run_body_of(handler, tx, vec![ready]).await {
                Ok(returned) => match store.keep(tx, false).await {
                    Ok(()) => Ok(sole_result(returned)),
                    Err(error) => Err(own_statement_failure::<S>(error)?),
                },
                Err(problem) if problem.is_whole_transaction_lost() => return Err(problem),
                Err(problem) => Err(problem),
            };
            ran.bodies += 1;
            let problem = match kept {
                Ok(result) => {
                    ran.ended.push(MessageEnd::Done(result));
                    continue;
                }
                Err(problem) => problem,
            };
            // If the rollback to the savepoint fails, the transaction is lost with all its work so far.
            if let Err(error) = store.undo(tx, None, false).await {
                return Err(failed_undo::<S>(error, problem));
            }
            match self.end_after_rollback(handler, message, problem, plan, held_keys) {
                Some(ended) => ran.ended.push(ended),
                None => return Ok(ran),
            }
        }
        Ok(ran)
    }

    /// Decides the end of a message that was rolled back to its savepoint; `None` if the rest of the batch must wait for it.
    pub(super) fn end_after_rollback(
        &self,
        handler: &Registered<S>,
        message: &StoredMessage,
        problem: VisitFailure,
        plan: &VisitPlan,
        held_keys: &mut HeldKeys,
    ) -> Option<MessageEnd> {
        held_keys.hold(message);
        match problem {
            VisitFailure::Contended(failure) | VisitFailure::Failed(failure)
                if is_transient::<S>(&failure) && !self.body_is_to_blame(handler, message) =>
            {
                tracing::debug!(error = %failure, "another attempt after a transient error");
                // In a lane the next messages wait for this one; tasks do not wait for each other.
                plan.tasks.then_some(MessageEnd::Again)
            }
            problem => Some(MessageEnd::Failed(problem.outcome(handler))),
        }
    }

    /// Prepares a message for its handler, or returns its end if it does not run.
    pub(super) fn make_ready(
        &self,
        handler: &Registered<S>,
        message: &StoredMessage,
        held_keys: &mut HeldKeys,
    ) -> Result<ReadyMessage, MessageEnd> {
        if !message.due_in.is_zero() {
            return Err(MessageEnd::Scheduled);
        }
        if held_keys.holds(message) {
            return Err(MessageEnd::Parked);
        }
        self.decode(handler, message, Cancellation::never()).map_err(|rejection| {
            held_keys.hold(message);
            MessageEnd::Failed(Outcome::Rejected(rejection))
        })
    }

    /// Decodes a message and creates its delivery.
    pub(crate) fn decode(
        &self,
        handler: &Registered<S>,
        message: &StoredMessage,
        cancellation: Cancellation,
    ) -> Result<ReadyMessage, Rejection> {
        let now = Instant::now();
        let envelope = Envelope {
            kind: message.kind.clone(),
            key: message.key.clone(),
            body: message.body.clone(),
            headers: message.headers.clone(),
            order_by: message.order_by.clone(),
            occurred_at: message.occurred_at,
            due_at: message.due_at,
            // Counted in the database, so that a restart does not reset it.
            attempt: message.failures + 1,
            // Shortly after boot an `Instant` may not reach back that far.
            arrived: now.checked_sub(message.waited).unwrap_or(now),
            message_id: message.message_id,
            // The key is that of the message in the log.
            fallback_key: None,
        };
        let prepared = self.engine.prepare(handler, &envelope)?;
        let effect_id = match &message.key {
            Some(key) => EffectId::of(&handler.origin, &message.kind, key),
            None => EffectId::at(&handler.origin, message.place),
        };
        let delivery = Delivery {
            handler: handler.name.clone(),
            envelope: Arc::new(envelope),
            key: message.key.clone(),
            // The same at each attempt, so that the handler can pass it on as an idempotency key.
            effect_id,
            is_replay: message.replay,
            cancellation,
            states: self.engine.states.clone(),
        };
        Ok(ReadyMessage { message: prepared.message, delivery })
    }

    pub(super) async fn run_body_of(
        &self,
        handler: &Registered<S>,
        tx: &mut S::Tx,
        ready: Vec<ReadyMessage>,
    ) -> Result<Vec<Returned>, VisitFailure> {
        // The time limit starts again for each body.
        self.engine.store.arm(tx).await.map_err(VisitFailure::Store)?;
        let traceparent = match &ready[..] {
            [one] => one.delivery.envelope.headers().get(Headers::TRACEPARENT).map(str::to_owned),
            _ => None,
        };
        let (messages, deliveries): (Vec<_>, Vec<_>) =
            ready.into_iter().map(|ready| (ready.message, ready.delivery)).unzip();
        let span = tracing::debug_span!("oncebox.unit", handler = &*handler.name, traceparent);
        let ran = self.engine.run_in(tx, handler, messages, &deliveries).instrument(span).await;
        if let Err(BodyFailure::Contended(_)) = ran {
            self.engine.met_contention(handler);
        }
        Ok(ran?)
    }
}

/// Judges an error of one of the inbox's own statements after handlers; `Err` if the transaction is lost.
pub(crate) fn own_statement_failure<S: LogStore>(error: Error) -> Result<VisitFailure, VisitFailure> {
    match Meaning::of::<S>(&error) {
        Meaning::Broken => Ok(VisitFailure::Broken(error)),
        Meaning::Failed => Ok(VisitFailure::Failed(error.into())),
        Meaning::Contended => Ok(VisitFailure::Contended(error.into())),
        Meaning::Session => Err(VisitFailure::Session(error.into())),
        Meaning::Lost | Meaning::Outage => Err(VisitFailure::Store(error)),
    }
}

/// The outcome of a message whose own outcome cannot be stored.
pub(crate) fn unstorable(error: &Error) -> Outcome {
    Outcome::Rejected(Rejection::Permanent(cause(unstorable_text(error))))
}

/// The store's error text, escaped to ASCII so that every database can store it.
pub(crate) fn unstorable_text(error: &Error) -> String {
    format!("the outcome could not be stored: {}", chain(error).escape_default())
}

/// Judges a failed rollback to a savepoint, given the error that caused the rollback.
pub(super) fn failed_undo<S: LogStore>(error: Error, problem: VisitFailure) -> VisitFailure {
    match Meaning::of::<S>(&error) {
        Meaning::Broken => VisitFailure::Broken(error),
        Meaning::Session => VisitFailure::Session(error.into()),
        Meaning::Outage => VisitFailure::Store(error),
        Meaning::Lost => match problem {
            VisitFailure::Failed(failure) | VisitFailure::Contended(failure) => VisitFailure::Gone(failure),
            _ => VisitFailure::Store(error),
        },
        Meaning::Contended | Meaning::Failed => problem,
    }
}

/// The result of a handler that ran on one message.
pub(super) fn sole_result(returned: Vec<Returned>) -> Option<Vec<u8>> {
    returned.into_iter().next().and_then(|returned| returned.result)
}

/// Whether another attempt may not meet this error.
fn is_transient<S: LogStore>(failure: &Failure) -> bool {
    matches!(Meaning::of_failure::<S>(failure), Meaning::Contended | Meaning::Lost)
}
