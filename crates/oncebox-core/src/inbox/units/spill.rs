//! Spill: an inline message is moved to the log, so that its source can acknowledge it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::backoff::{Retries, spread};
use crate::error::chain;
use crate::handler::Delivery;
use crate::inbox::InboxStore;
use crate::inbox::engine::Engine;
use crate::inbox::registered::Registered;
use crate::inbox::resolve::resolve_stored;
use crate::inbox::stored::{LogShared, LogStore, chance, error_text, lane_of, unstorable_text};
use crate::inbox::units::{UnitEnd, Units};
use crate::outcome::{Outcome, Rejection, cause};
use crate::store::{LaneChoice, NewMessage, Spill, Spilled, Unit};
use crate::{Envelope, Error, ErrorKind, observe};

/// The spill function of an inbox. A function pointer, because stores without a log have none.
pub(crate) type SpillInto<S> = fn(S, Spill, Duration) -> BoxFuture<'static, Result<Spilled, Error>>;

/// The [`SpillInto`] of stores with a log.
pub(crate) fn spill_boxed<S: LogStore>(
    store: S,
    spill: Spill,
    lock_timeout: Duration,
) -> BoxFuture<'static, Result<Spilled, Error>> {
    Box::pin(async move { store.spill(&spill, lock_timeout).await })
}

/// Moves messages to the log.
pub(crate) struct Spilling<S: InboxStore> {
    engine: Arc<Engine<S>>,
    log: Arc<LogShared>,
    into: SpillInto<S>,
}

/// Why a message is moved to the log.
enum SpillReason {
    /// Its handler is detached and runs from the log only.
    Detached,
    /// The handler failed.
    Failed { due_in: Duration, error: String, is_dead: bool },
}

impl<S: InboxStore> Units<S> {
    /// Moves a message of a detached handler to the log.
    pub(super) async fn queue_detached(
        &self,
        handler: &Registered<S>,
        delivery: &Delivery,
        unit: Option<&Unit>,
    ) -> Result<UnitEnd, Error> {
        let Some(spilling) = &self.spilling else {
            return Err(Error::configuration(
                "this inbox has no log for the messages of detached handlers: call .mode(Mode::inline()) on its builder",
            ));
        };
        match spilling.spill(handler, &delivery.envelope, unit, SpillReason::Detached).await {
            Err(error) if error.kind() == ErrorKind::Envelope => {
                Ok(Outcome::Rejected(Rejection::BadEnvelope(cause(error))).into())
            }
            spilled => spilled,
        }
    }

    /// Moves a message whose handler failed to the log, if the mode spills. If that fails, the source keeps the message.
    pub(super) async fn spill_failed(
        &self,
        handler: &Registered<S>,
        delivery: &Delivery,
        unit: Option<&Unit>,
        ended: UnitEnd,
    ) -> UnitEnd {
        let Some(spilling) = self.spilling.as_ref().filter(|_| self.engine.mode.spills_failures()) else {
            return ended;
        };
        let Some(why) = spilling.why(handler, &ended.outcome) else { return ended };
        // Counted here, because the outcome becomes `Queued` and the caller no longer sees the failure.
        self.engine.observe_failure(handler, &ended.outcome);
        match spilling.spill(handler, &delivery.envelope, unit, why).await {
            Ok(spilled) => spilled,
            Err(error) => {
                tracing::warn!(
                    error = chain(&error),
                    "could not store the failed message in the log: its source keeps it"
                );
                ended
            }
        }
    }
}

impl<S: InboxStore> Spilling<S> {
    pub(crate) fn new(engine: Arc<Engine<S>>, log: Arc<LogShared>, into: SpillInto<S>) -> Self {
        Self { engine, log, into }
    }

    /// Why a message is moved to the log; `None` if it is not.
    fn why(&self, handler: &Registered<S>, outcome: &Outcome) -> Option<SpillReason> {
        let retry = handler.settings.retry.unwrap_or(self.log.settings.retry);
        match outcome {
            Outcome::Retry { after, cause } => Some(SpillReason::Failed {
                due_in: after.unwrap_or_else(|| retry.delay(1, chance())),
                error: error_text(&**cause),
                is_dead: !retry.allows_another(1),
            }),
            Outcome::Rejected(
                rejection @ (Rejection::Permanent(cause) | Rejection::EndedTransaction(cause)),
            ) => {
                let error = match rejection {
                    Rejection::Permanent(_) => error_text(&**cause),
                    _ => rejection.to_string(),
                };
                Some(SpillReason::Failed { due_in: Duration::ZERO, error, is_dead: true })
            }
            _ => None,
        }
    }

    async fn spill(
        &self,
        handler: &Registered<S>,
        envelope: &Envelope,
        unit: Option<&Unit>,
        why: SpillReason,
    ) -> Result<UnitEnd, Error> {
        let mut spill = self.to_spill(handler, envelope, unit, why);
        let settings = &self.engine.settings;
        let mut retries = Retries::within(settings.store_timeout);
        let mut is_plain = false;
        let spilled = loop {
            let tried = (self.into)(self.engine.store.clone(), spill.clone(), settings.lock_timeout).await;
            match tried {
                Ok(spilled) => break spilled,
                // Perhaps only the handler's error text cannot be stored: the next attempt replaces it.
                Err(error) if S::is_about_data(&error) && !is_plain && spill.error.is_some() => {
                    is_plain = true;
                    spill.error = Some(unstorable_text(&error));
                }
                Err(error) if S::is_about_data(&error) => {
                    return Err(Rejection::BadEnvelope(cause(error)).to_error());
                }
                // A retry is safe: if the first attempt was committed, its marker is found.
                Err(error) => retries.after::<S>(error).await?,
            }
        };
        Ok(match spilled {
            Spilled::New(_) => {
                self.engine.observer.count(observe::SPILLED, &handler.name);
                // The workers of this process find it at once, without polling.
                self.log.wake.notify_one();
                Outcome::Queued.into()
            }
            // After a failed attempt, the marker is this message's own: its response was lost.
            Spilled::Known(_) if !retries.is_clean() => Outcome::Queued.into(),
            Spilled::Known(marker) => match unit {
                Some(unit) => UnitEnd::known(unit, marker, self.engine.settings.key_reuse),
                None => return Err(Error::new(ErrorKind::Unavailable, "a message without marker was known")),
            },
            Spilled::Busy => Outcome::Busy.into(),
        })
    }

    fn to_spill(
        &self,
        handler: &Registered<S>,
        envelope: &Envelope,
        unit: Option<&Unit>,
        why: SpillReason,
    ) -> Spill {
        let prepared = self.engine.prepare(handler, envelope).ok();
        let key = unit
            .map(|unit| unit.key.clone())
            .or_else(|| resolve_stored(prepared.as_ref(), envelope).map(|key| key.stored()));
        let order_by = envelope.order_by.clone().or_else(|| prepared.and_then(|prepared| prepared.order_by));
        let lane = match &order_by {
            Some(key) => LaneChoice::Only(lane_of(key, self.log.lanes)),
            None => LaneChoice::Prefer(u16::from(spread()) % self.log.lanes.max(1)),
        };
        let (failures, due_in, error, is_dead) = match why {
            SpillReason::Detached => (0, Duration::ZERO, None, false),
            SpillReason::Failed { due_in, error, is_dead } => (1, due_in, Some(error), is_dead),
        };
        Spill {
            handler: self.log.ids[handler.index],
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
                message_id: None,
            },
            lane,
            failures,
            due_in,
            error,
            is_dead,
        }
    }
}
