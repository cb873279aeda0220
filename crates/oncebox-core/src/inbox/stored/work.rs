//! Running the handlers of a batch in the lane's transaction.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tracing::Instrument;

use crate::handler::{Delivery, EffectId};
use crate::inbox::Inbox;
use crate::inbox::builder::Registered;
use crate::inbox::stored::LogStore;
use crate::inbox::stored::visit::Course;
use crate::inbox::unit::{TIMEOUT_GRACE, broken, failed, panic_text, panicked};
use crate::outcome::{Outcome, Rejection, cause};
use crate::store::{Fault, StoredMessage};
use crate::{Envelope, Error, ErrorKind, Failure, Headers};

/// What became of the messages of a batch, as far as they were come to.
pub(crate) struct Ran {
    /// In order. [`Outcome::Queued`] waits for its time; `None` met an error that another try may not meet.
    pub(crate) ended: Vec<Option<Outcome>>,
    /// How many bodies ran, and how long.
    pub(crate) bodies: usize,
    pub(crate) took: Duration,
}

impl Ran {
    pub(crate) fn is_clean(&self) -> bool {
        self.ended.iter().all(|ended| matches!(ended, Some(Outcome::Done | Outcome::Queued)))
    }
}

/// Why a transaction came to nothing.
pub(crate) enum Trouble {
    /// A handler failed.
    Failed(Failure),
    /// A handler broke its transaction.
    Broken(Error),
    /// It met other transactions.
    Contended(Failure),
    /// A handler overstayed.
    Overstayed,
    /// The store does not answer.
    Store(Error),
}

impl Trouble {
    /// What it means for the one message that it was about.
    pub(crate) fn outcome<S: LogStore>(self, handler: &Registered<S>) -> Outcome {
        match self {
            Self::Failed(failure) | Self::Contended(failure) => failed(handler.settings.judge(failure)),
            Self::Broken(error) => broken(error),
            Self::Overstayed => failed("the handler ran longer than it may".into()),
            Self::Store(error) => failed(error.into()),
        }
    }
}

/// A message with nothing left to do but to run it.
struct Ready {
    message: Box<dyn Any + Send>,
    delivery: Delivery,
}

impl<S: LogStore> Inbox<S> {
    /// Runs the handler on messages, in order, as long as there is time.
    pub(crate) async fn run_messages(
        &self,
        handler: &Registered<S>,
        tx: &mut S::Tx,
        messages: &[StoredMessage],
        course: &Course,
    ) -> Result<Ran, Trouble> {
        let span = tracing::info_span!("oncebox.work", handler = &*handler.name, messages = messages.len());
        let started = Instant::now();
        let run = async {
            match (course.isolated, handler.handler.takes_sets()) {
                (true, _) => self.run_isolated_messages(handler, tx, messages, course, started).await,
                (false, true) => self.run_set(handler, tx, messages, course).await,
                (false, false) => self.run_one_by_one(handler, tx, messages, course, started).await,
            }
        };
        let mut ran = run.instrument(span).await?;
        ran.took = started.elapsed();
        Ok(ran)
    }

    /// With nothing between the messages.
    async fn run_one_by_one(
        &self,
        handler: &Registered<S>,
        tx: &mut S::Tx,
        messages: &[StoredMessage],
        course: &Course,
        started: Instant,
    ) -> Result<Ran, Trouble> {
        let mut ran = Ran { ended: Vec::with_capacity(messages.len()), bodies: 0, took: Duration::ZERO };
        for message in messages {
            if ran.bodies > 0 && started.elapsed() >= course.time {
                break;
            }
            let ended = match self.make_ready(handler, message) {
                Ok(ready) => {
                    self.run_body_of(handler, tx, vec![ready], course).await?;
                    ran.bodies += 1;
                    Outcome::Done
                }
                Err(outcome) => outcome,
            };
            ran.ended.push(Some(ended));
        }
        Ok(ran)
    }

    /// All at once.
    async fn run_set(
        &self,
        handler: &Registered<S>,
        tx: &mut S::Tx,
        messages: &[StoredMessage],
        course: &Course,
    ) -> Result<Ran, Trouble> {
        let mut set = Vec::with_capacity(messages.len());
        let mut ended = Vec::with_capacity(messages.len());
        for message in messages {
            ended.push(Some(match self.make_ready(handler, message) {
                Ok(ready) => {
                    set.push(ready);
                    Outcome::Done
                }
                Err(outcome) => outcome,
            }));
        }
        let bodies = set.len();
        if bodies > 0 {
            self.run_body_of(handler, tx, set, course).await?;
        }
        Ok(Ran { ended, bodies, took: Duration::ZERO })
    }

    /// With a savepoint for each message; those that fail are taken back, and the others stay.
    async fn run_isolated_messages(
        &self,
        handler: &Registered<S>,
        tx: &mut S::Tx,
        messages: &[StoredMessage],
        course: &Course,
        started: Instant,
    ) -> Result<Ran, Trouble> {
        let store = &self.inner.store;
        let mut ran = Ran { ended: Vec::with_capacity(messages.len()), bodies: 0, took: Duration::ZERO };
        for message in messages {
            if ran.bodies > 0 && started.elapsed() >= course.time {
                break;
            }
            let ready = match self.make_ready(handler, message) {
                Ok(ready) => ready,
                Err(outcome) => {
                    ran.ended.push(Some(outcome));
                    continue;
                }
            };
            store.isolate(tx).await.map_err(Trouble::Store)?;
            let trouble = match self.run_body_of(handler, tx, vec![ready], course).await {
                Ok(()) => match store.keep(tx, false).await {
                    Ok(()) => None,
                    Err(error) if error.kind() == ErrorKind::Transaction => Some(Trouble::Broken(error)),
                    Err(error) => match S::classify(&error) {
                        Fault::Other | Fault::StatementTimeout => Some(Trouble::Failed(error.into())),
                        Fault::Transient | Fault::LockTimeout => Some(Trouble::Contended(error.into())),
                        Fault::Connection => return Err(Trouble::Store(error)),
                    },
                },
                Err(Trouble::Overstayed) => return Err(Trouble::Overstayed),
                Err(trouble) => Some(trouble),
            };
            ran.bodies += 1;
            let Some(trouble) = trouble else {
                ran.ended.push(Some(Outcome::Done));
                continue;
            };
            // If that does not work, the transaction is gone, and with it what this batch has done so far.
            if let Err(error) = store.undo(tx, None, false).await {
                return Err(match (error.kind(), S::classify(&error)) {
                    (ErrorKind::Transaction, _) => Trouble::Broken(error),
                    (_, Fault::Connection) => Trouble::Store(error),
                    _ => trouble,
                });
            }
            match trouble {
                Trouble::Contended(failure) | Trouble::Failed(failure)
                    if is_transient::<S>(&failure) && !self.body_is_to_blame(handler, message) =>
                {
                    tracing::debug!(error = %failure, "another try after a transient error");
                    // In a lane, those behind it wait for it; tasks do not wait for each other.
                    if !course.tasks {
                        return Ok(ran);
                    }
                    ran.ended.push(None);
                }
                trouble => ran.ended.push(Some(trouble.outcome(handler))),
            }
        }
        Ok(ran)
    }

    /// A message as the handler takes it; or what is to become of it without a run.
    fn make_ready(&self, handler: &Registered<S>, message: &StoredMessage) -> Result<Ready, Outcome> {
        if !message.due_in.is_zero() {
            return Err(Outcome::Queued);
        }
        let now = Instant::now();
        let envelope = Envelope {
            kind: message.kind.clone(),
            key: message.key.clone(),
            body: message.body.clone(),
            headers: message.headers.clone(),
            order_by: message.order_by.clone(),
            occurred_at: message.occurred_at,
            due_at: message.due_at,
            attempt: message.failures + 1,
            arrived: now.checked_sub(message.waited).unwrap_or(now),
        };
        let prepare = || handler.handler.prepare(&envelope, &self.inner.selectors);
        let prepared = match catch_unwind(AssertUnwindSafe(prepare)) {
            Ok(prepared) => prepared.map_err(Outcome::Rejected)?,
            Err(panic) => {
                let text = format!("panicked while decoding: {}", panic_text(&*panic));
                return Err(Outcome::Rejected(Rejection::Undecodable(cause(text))));
            }
        };
        let effect_id = match &message.key {
            Some(key) => EffectId::of(&handler.name, &message.kind, key),
            None => EffectId::at(&handler.name, message.place),
        };
        let delivery = Delivery {
            handler: handler.name.clone(),
            envelope: Arc::new(envelope),
            key: message.key.clone(),
            effect_id,
            states: self.inner.states.clone(),
        };
        Ok(Ready { message: prepared.message, delivery })
    }

    async fn run_body_of(
        &self,
        handler: &Registered<S>,
        tx: &mut S::Tx,
        ready: Vec<Ready>,
        course: &Course,
    ) -> Result<(), Trouble> {
        let expected = ready.len();
        let traceparent = match &ready[..] {
            [one] => one.delivery.envelope.headers().get(Headers::TRACEPARENT).map(str::to_owned),
            _ => None,
        };
        let (messages, deliveries): (Vec<_>, Vec<_>) =
            ready.into_iter().map(|ready| (ready.message, ready.delivery)).unzip();
        let body = handler.handler.call(messages, &deliveries, S::connection(tx));
        let body = self.inside(AssertUnwindSafe(body).catch_unwind());
        let limit = course.limits.handler_timeout.saturating_add(TIMEOUT_GRACE);
        let span = tracing::debug_span!("oncebox.unit", handler = &*handler.name, traceparent);
        match tokio::time::timeout(limit, body).instrument(span).await {
            Ok(Ok(Ok(returned))) if returned.len() == expected => Ok(()),
            Ok(Ok(Ok(_))) => Err(Trouble::Failed("the handler did not answer for every message".into())),
            Ok(Ok(Err(failure))) => {
                let failure = handler.settings.judge(failure);
                Err(match (is_transient::<S>(&failure), &failure) {
                    (true, Failure::Retry(_)) => Trouble::Contended(failure),
                    _ => Trouble::Failed(failure),
                })
            }
            Ok(Err(panic)) => Err(Trouble::Failed(panicked(&*panic))),
            Err(_elapsed) => Err(Trouble::Overstayed),
        }
    }
}

/// Whether another try may not meet it.
fn is_transient<S: LogStore>(failure: &Failure) -> bool {
    matches!(failure, Failure::Retry(_))
        && matches!(S::classify(failure.error()), Fault::Connection | Fault::Transient | Fault::LockTimeout)
}
