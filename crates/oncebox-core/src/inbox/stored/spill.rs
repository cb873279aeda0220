//! Spill: what was to run inline is set apart in the log, and its source is done with it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

use crate::backoff::{backoff, spread};
use crate::handler::Delivery;
use crate::inbox::builder::Registered;
use crate::inbox::once::rejected;
use crate::inbox::resolve::resolve_stored;
use crate::inbox::stored::accept::lane_of;
use crate::inbox::stored::settle::{chance, error_text};
use crate::inbox::stored::work::unstorable_text;
use crate::inbox::stored::{LogStore, Stored};
use crate::inbox::unit::Ended;
use crate::inbox::{Inbox, InboxStore};
use crate::outcome::{Outcome, Rejection, cause};
use crate::store::{Fault, LaneChoice, NewMessage, Spill, Spilled, Unit};
use crate::{Envelope, Error, ErrorKind, Mode, observe};

/// How an inbox spills, which stores without a log cannot.
pub(crate) type SpillInto<S> = fn(S, Spill, Duration) -> BoxFuture<'static, Result<Spilled, Error>>;

/// A [`SpillInto`] for stores with a log.
pub(crate) fn spill_boxed<S: LogStore>(
    store: S,
    spill: Spill,
    lock_timeout: Duration,
) -> BoxFuture<'static, Result<Spilled, Error>> {
    Box::pin(async move { store.spill(&spill, lock_timeout).await })
}

/// Why a message is set apart.
enum Why {
    /// Its handler is detached, and runs from the log only.
    Detached,
    /// The handler failed.
    Failed { due_in: Duration, error: String, is_dead: bool },
}

impl<S: InboxStore> Inbox<S> {
    /// Sets a message apart for a detached handler.
    pub(crate) async fn queue_detached(
        &self,
        handler: &Registered<S>,
        delivery: &Delivery,
        unit: Option<&Unit>,
    ) -> Result<Ended, Error> {
        match self.spill(handler, &delivery.envelope, unit, Why::Detached).await {
            Err(error) if error.kind() == ErrorKind::Envelope => {
                Ok(Outcome::Rejected(Rejection::BadEnvelope(cause(error))).into())
            }
            spilled => spilled,
        }
    }

    /// Sets a message apart whose handler failed, where that is wanted. If it cannot be, the source keeps it.
    pub(crate) async fn spill_failed(
        &self,
        handler: &Registered<S>,
        delivery: &Delivery,
        unit: Option<&Unit>,
        ended: Ended,
    ) -> Ended {
        let (Some(stored), Mode::Inline { spill: true }) = (&self.inner.stored, self.inner.mode) else {
            return ended;
        };
        let retry = handler.settings.retry.unwrap_or(stored.settings.retry);
        let why = match &ended.outcome {
            Outcome::Retry { after, cause } => Why::Failed {
                due_in: after.unwrap_or_else(|| retry.delay(1, chance())),
                error: error_text(&**cause),
                is_dead: !retry.allows_another(1),
            },
            Outcome::Rejected(
                rejection @ (Rejection::Permanent(cause) | Rejection::EndedTransaction(cause)),
            ) => {
                let error = match rejection {
                    Rejection::Permanent(_) => error_text(&**cause),
                    _ => rejection.to_string(),
                };
                Why::Failed { due_in: Duration::ZERO, error, is_dead: true }
            }
            _ => return ended,
        };
        self.observe_failure(handler, &ended.outcome);
        match self.spill(handler, &delivery.envelope, unit, why).await {
            Ok(spilled) => spilled,
            Err(error) => {
                tracing::warn!(
                    error = crate::error::chain(&error),
                    "not set apart: its source keeps the message"
                );
                ended
            }
        }
    }

    async fn spill(
        &self,
        handler: &Registered<S>,
        envelope: &Envelope,
        unit: Option<&Unit>,
        why: Why,
    ) -> Result<Ended, Error> {
        let (Some(stored), Some(log)) = (&self.inner.stored, self.inner.log) else {
            return Err(Error::configuration("this inbox has no log to set messages apart in"));
        };
        let mut spill = self.to_spill(stored, handler, envelope, unit, why);
        let settings = &self.inner.settings;
        let mut troubled_since = None;
        let mut troubles = 0;
        let mut is_plain = false;
        let spilled = loop {
            let tried = (log.spill)(self.inner.store.clone(), spill.clone(), settings.lock_timeout).await;
            match tried {
                Ok(spilled) => break spilled,
                // The handler's error may be all that cannot be stored.
                Err(error) if S::is_about_data(&error) && !is_plain && spill.error.is_some() => {
                    is_plain = true;
                    spill.error = Some(unstorable_text(&error));
                    continue;
                }
                Err(error) if S::is_about_data(&error) => {
                    return Err(rejected(&Rejection::BadEnvelope(cause(error))));
                }
                Err(error)
                    if S::classify(&error) == Fault::Other
                        || troubled_since.get_or_insert_with(Instant::now).elapsed() >= settings.patience =>
                {
                    return Err(error);
                }
                // If the first try was heard, its marker says so.
                Err(_) => troubles += 1,
            }
            tokio::time::sleep(backoff(troubles, spread())).await;
        };
        Ok(match spilled {
            Spilled::New(_) => {
                self.inner.observer.count(observe::SPILLED, &handler.name);
                stored.wake.notify_one();
                Outcome::Queued.into()
            }
            Spilled::Known(_) if troubles > 0 => Outcome::Queued.into(),
            Spilled::Known(marker) => match unit {
                Some(unit) => self.known(unit, marker),
                None => return Err(Error::new(ErrorKind::Unavailable, "a message without marker was known")),
            },
            Spilled::Busy => Outcome::Busy.into(),
        })
    }

    fn to_spill(
        &self,
        stored: &Stored,
        handler: &Registered<S>,
        envelope: &Envelope,
        unit: Option<&Unit>,
        why: Why,
    ) -> Spill {
        let prepare = || handler.handler.prepare(envelope, &self.inner.selectors);
        let prepared = catch_unwind(AssertUnwindSafe(prepare)).ok().and_then(Result::ok);
        let key = unit
            .map(|unit| unit.key.clone())
            .or_else(|| resolve_stored(prepared.as_ref(), envelope).map(|key| key.stored()));
        let order_by = envelope.order_by.clone().or_else(|| prepared.and_then(|prepared| prepared.order_by));
        let lane = match &order_by {
            Some(key) => LaneChoice::Only(lane_of(key, stored.lanes)),
            None => LaneChoice::Prefer(u16::from(spread()) % stored.lanes.max(1)),
        };
        let (failures, due_in, error, is_dead) = match why {
            Why::Detached => (0, Duration::ZERO, None, false),
            Why::Failed { due_in, error, is_dead } => (1, due_in, Some(error), is_dead),
        };
        Spill {
            handler: stored.ids[handler.index],
            marker: unit.filter(|_| !mutant!("spill_without_marker")).cloned(),
            message: NewMessage {
                kind: envelope.kind.clone(),
                key,
                fingerprint: envelope.fingerprint(),
                order_by,
                headers: envelope.headers.clone(),
                body: envelope.body.clone(),
                occurred_at: envelope.occurred_at,
                due_at: envelope.due_at,
                waited: envelope.arrived.elapsed(),
            },
            lane,
            failures,
            due_in,
            error,
            is_dead,
        }
    }
}
