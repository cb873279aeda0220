//! Runs one unit, from the envelope to its outcome.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tracing::Instrument;

use crate::error::chain;
use crate::handler::{Cancellation, Delivery, EffectId, Prepared};
use crate::inbox::InboxStore;
use crate::inbox::body::panic_text;
use crate::inbox::engine::Engine;
use crate::inbox::registered::Registered;
use crate::inbox::resolve::resolve;
use crate::inbox::units::attempts::AttemptInput;
use crate::inbox::units::{CopyWait, UnitEnd, Units};
use crate::limits::{check_envelope, check_order_by};
use crate::observe;
use crate::outcome::{Outcome, Rejection, cause};
use crate::policy::MissingKey;
use crate::store::Unit;
use crate::{Envelope, Error, Headers, name};

/// A delivery, its unit (`None` without deduplication), and the decoded message.
type Identified = (Delivery, Option<Unit>, Box<dyn Any + Send>);

impl<S: InboxStore> Units<S> {
    /// Runs one handler on one message, until its outcome is known.
    pub(crate) async fn run(
        &self,
        handler: &Registered<S>,
        envelope: Arc<Envelope>,
    ) -> Result<UnitEnd, Error> {
        let span = tracing::info_span!(
            "oncebox.unit",
            handler = &*handler.name,
            kind = envelope.kind(),
            traceparent = envelope.headers().get(Headers::TRACEPARENT),
            outcome = tracing::field::Empty,
        );
        let ended = self.decide(handler, envelope.clone()).instrument(span.clone()).await?;
        span.record("outcome", ended.outcome.name());
        span.in_scope(|| self.observe(handler, &envelope, &ended));
        Ok(ended)
    }

    async fn decide(&self, handler: &Registered<S>, envelope: Arc<Envelope>) -> Result<UnitEnd, Error> {
        let (delivery, unit, message) = match self.identify(handler, envelope) {
            Ok(identified) => identified,
            Err(rejection) => return Ok(Outcome::Rejected(rejection).into()),
        };
        let settings = &self.engine.settings;
        let wait = CopyWait::new(settings.in_flight, settings.lock_timeout);
        match unit {
            Some(unit) => self.pass_the_gate(handler, &delivery, unit, message, wait).await,
            None if handler.detached.is_some() => self.queue_detached(handler, &delivery, None).await,
            None => {
                let first = AttemptInput::first(message);
                let ended = self.attempts.run(handler, &delivery, None, first, &wait).await?;
                Ok(self.spill_failed(handler, &delivery, None, ended).await)
            }
        }
    }

    /// Whether a handler has run on this message, or has it in its log. Without deduplication that is not known.
    pub(crate) async fn has_run(
        &self,
        handler: &Registered<S>,
        envelope: Arc<Envelope>,
    ) -> Result<bool, Error> {
        match self.identify(handler, envelope) {
            Ok((_, Some(unit), _)) => Ok(self.engine.store.marker(&unit).await?.is_some()),
            Ok((_, None, _)) | Err(_) => Ok(false),
        }
    }

    /// Checks and decodes a message, and finds its key. There is no unit without deduplication.
    fn identify(&self, handler: &Registered<S>, envelope: Arc<Envelope>) -> Result<Identified, Rejection> {
        let engine = &self.engine;
        check_envelope(&envelope, engine.settings.max_body_bytes)?;
        let prepared = engine.prepare(handler, &envelope)?;
        check_order_by(envelope.order_by().or(prepared.order_by.as_ref()))?;
        // After decoding, because the key may come from the fields of the message.
        let key = resolve(&prepared, &envelope);
        if let Some(Err(error)) = key.as_ref().map(name::check_key) {
            return Err(Rejection::BadKey(cause(error)));
        }
        let dedup = !handler.settings.dedup_off && !engine.settings.dedup_off;
        if key.is_none() && dedup {
            engine.observer.count(observe::MISSING_KEY, &handler.name);
            if engine.settings.missing_key == MissingKey::Reject {
                return Err(Rejection::MissingKey);
            }
        }
        let unit = key.as_ref().filter(|_| dedup).map(|key| Unit {
            handler: if mutant!("key_without_handler") { "@any".into() } else { handler.origin.to_string() },
            kind: envelope.kind().to_owned(),
            key: key.stored(),
            fingerprint: Some(envelope.fingerprint()),
            waited: envelope.arrived.elapsed(),
        });
        let effect_id = match &key {
            Some(key) => EffectId::of(&handler.origin, envelope.kind(), key),
            // Without a key two deliveries cannot be recognized as the same message.
            None => EffectId::unique(),
        };
        let delivery = Delivery {
            handler: handler.name.clone(),
            envelope,
            key,
            effect_id,
            is_replay: false,
            cancellation: Cancellation::never(),
            states: engine.states.clone(),
        };
        Ok((delivery, unit, prepared.message))
    }

    fn observe(&self, handler: &Registered<S>, envelope: &Envelope, ended: &UnitEnd) {
        let observer = self.engine.observer;
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
                tracing::warn!("a key was reused for another body");
            }
            Outcome::Busy => {
                observer.count(observe::BUSY, name);
                tracing::debug!("busy: another copy of the message is still running");
            }
            Outcome::Retry { .. } | Outcome::Rejected(_) if ended.shared => {
                tracing::debug!("a copy shares the outcome of the first one");
            }
            failed @ (Outcome::Retry { .. }
            | Outcome::Rejected(Rejection::Permanent(_) | Rejection::EndedTransaction(_))) => {
                self.engine.observe_failure(handler, failed);
            }
            // Any sender can cause these, so they are warnings and not errors of the handler.
            Outcome::Rejected(rejection) => {
                observer.count(observe::REJECTED, name);
                tracing::warn!(error = %rejection, "rejected");
            }
            Outcome::Queued => tracing::debug!("queued in the log"),
        }
    }
}

impl<S: InboxStore> Engine<S> {
    /// Decodes a message for a handler. A codec or a selector that panics rejects the message.
    pub(crate) fn prepare(
        &self,
        handler: &Registered<S>,
        envelope: &Envelope,
    ) -> Result<Prepared, Rejection> {
        let prepare = || handler.handler.prepare(envelope, &self.selectors);
        // Codecs and selectors are user code outside of the body's own panic handling.
        catch_unwind(AssertUnwindSafe(prepare)).unwrap_or_else(|panic| {
            let text = format!("panicked while decoding: {}", panic_text(&*panic));
            Err(Rejection::Undecodable(cause(text)))
        })
    }

    /// Counts and logs a failure of a handler.
    pub(super) fn observe_failure(&self, handler: &Registered<S>, outcome: &Outcome) {
        let observer = self.observer;
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
