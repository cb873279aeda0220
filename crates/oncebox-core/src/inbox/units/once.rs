//! Results: code that runs once per key, and calls whose duplicates get the first result.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::backoff::Retries;
use crate::handler::AsyncFunc;
use crate::inbox::body::{BodyStopped, timed_out};
use crate::inbox::faults::{Judgement, Meaning};
use crate::inbox::permits::Permit;
use crate::inbox::units::attempts::no_answer;
use crate::inbox::units::gate::{Admission, Waited};
use crate::inbox::units::{CopyWait, UnitEnd, Units};
use crate::inbox::{Inbox, InboxStore, unit_of};
use crate::outcome::{Outcome, Rejection};
use crate::store::{Claimed, Limits, OpaqueError, Unit};
use crate::{Envelope, Error, ErrorKind, Key, Message, name};

/// The kind under which [`Inbox::once`] keeps its markers.
const ONCE_KIND: &str = "@once";

/// A result, and whether the code ran now or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once<T> {
    /// The code ran now.
    Fresh(T),
    /// The code ran before; this is its stored result.
    Replayed(T),
}

impl<T> Once<T> {
    /// The result, from now or from before.
    pub fn into_inner(self) -> T {
        match self {
            Self::Fresh(value) | Self::Replayed(value) => value,
        }
    }

    /// Whether the code ran before.
    pub fn is_replayed(&self) -> bool {
        matches!(self, Self::Replayed(_))
    }
}

impl<S: InboxStore> Inbox<S> {
    /// Runs the closure once per key, in a transaction with its marker, and stores its result. Later calls with the same key
    /// get that result.
    ///
    /// The closure runs at most once per call. If it fails, nothing is stored and its error is returned. The next call with
    /// this key runs it again.
    pub async fn once<R, E, F>(&self, handler: &str, key: impl Into<Key>, body: F) -> Result<Once<R>, E>
    where
        for<'t> F: AsyncFnOnce(&'t mut S::Conn) -> Result<R, E>
            + AsyncFunc<&'t mut S::Conn, Result<R, E>, Fut: Send>
            + Send,
        R: Serialize + DeserializeOwned + Send,
        E: From<Error> + Send,
    {
        let (engine, units) = (&self.parts.engine, &self.parts.units);
        engine.refuse_nested()?;
        let _visit = engine.doors.enter()?;
        name::check("handler name", handler)?;
        let unit = unit_of(engine.origin_of(handler), ONCE_KIND, &key.into())?;
        let settings = &engine.settings;
        let wait = CopyWait::new(settings.in_flight, settings.lock_timeout);
        let _pass = loop {
            match units.gate.enter(&unit) {
                Admission::Run(pass) => break pass,
                // However the first copy ended, the marker has the result.
                Admission::Wait(copy) => {
                    if let Waited::TimedOut = copy.wait(wait.left()).await {
                        return Err(busy(handler).into());
                    }
                }
            }
        };
        let (mut tx, permit) = match units.claim_or_wait(&unit, &wait).await? {
            OnceClaim::Ours(tx, permit) => (tx, permit),
            OnceClaim::Known(result) => return Ok(Once::Replayed(read_result(handler, result)?)),
        };

        let store = &engine.store;
        let value = match engine.run_closure(body(S::connection(&mut tx))).await {
            Ok(Ok(value)) => value,
            Ok(Err(error)) => {
                // The error has the caller's own type, so the store cannot inspect it.
                store.body_ended(&mut tx, Err(&OpaqueError));
                store.rollback(tx).await;
                return Err(error);
            }
            // The caller's own closure panicked, so the panic continues in the caller. Dropping `tx` rolls it back.
            Err(BodyStopped::Panicked(panic)) => std::panic::resume_unwind(panic),
            Err(BodyStopped::TimedOut) => {
                // Its statement may still run, so the connection is closed and not reused.
                store.abandon(tx).await;
                let message = timed_out(settings.handler_timeout).to_string();
                return Err(Error::new(ErrorKind::Handler, message).into());
            }
        };
        let result = serde_json::to_vec(&value).map_err(|error| {
            Error::new(ErrorKind::Codec, "the closure's result has no JSON form").with_source(error)
        })?;
        // The closure may have ended the transaction itself. Then the result would not commit with the marker.
        if let Err(error) = store.guard(&mut tx).await {
            store.rollback(tx).await;
            return Err(error.into());
        }
        store.record_results(&mut tx, &[(&unit, &result)]).await?;
        match engine.commit(tx).await {
            Ok(()) => Ok(Once::Fresh(value)),
            Err(error) if Meaning::of::<S>(&error) == Meaning::Lost => {
                drop(permit);
                // The commit may have succeeded. Another claim finds out, because it waits for a commit that is still in progress.
                let wait = CopyWait::new(settings.in_flight, settings.lock_timeout);
                match units.claim_or_wait(&unit, &wait).await? {
                    OnceClaim::Known(_) => Ok(Once::Fresh(value)),
                    OnceClaim::Ours(tx, _permit) => {
                        store.rollback(tx).await;
                        Err(error.into())
                    }
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Passes a message to one registered handler and returns its [`Reply`](crate::Reply), for duplicates too.
    pub async fn call<T, M>(&self, handler: &str, message: &M) -> Result<Once<T>, Error>
    where
        T: DeserializeOwned,
        M: Message,
    {
        self.call_envelope(handler, Envelope::of(message)?).await
    }

    /// The same as [`call`](Inbox::call), with an envelope, for a message that is already encoded.
    pub async fn call_envelope<T: DeserializeOwned>(
        &self,
        handler: &str,
        envelope: Envelope,
    ) -> Result<Once<T>, Error> {
        let engine = &self.parts.engine;
        engine.refuse_nested()?;
        engine.refuse_stored()?;
        let _visit = engine.doors.enter()?;
        let registered = engine.registered(handler)?;
        if !registered.kinds.iter().any(|kind| kind == envelope.kind()) {
            return Err(Error::configuration(format!(
                "the handler {handler:?} does not take messages of kind {:?}",
                envelope.kind()
            )));
        }
        let envelope = Arc::new(envelope);
        let UnitEnd { outcome, result, .. } = self.parts.units.run(registered, envelope).await?;
        match outcome {
            Outcome::Done => Ok(Once::Fresh(read_result(handler, result)?)),
            Outcome::Duplicate => Ok(Once::Replayed(read_result(handler, result)?)),
            Outcome::KeyReuse => Err(Rejection::KeyReuse.to_error()),
            Outcome::Rejected(rejection) => Err(rejection.to_error()),
            Outcome::Busy => Err(busy(handler)),
            Outcome::Retry { cause, after } => {
                let error = Error::new(ErrorKind::Handler, format!("the handler {handler:?} failed"));
                Err(error.with_source(cause).with_retry_after(after))
            }
            Outcome::Queued => Err(Error::new(
                ErrorKind::NoResult,
                format!("the handler {handler:?} runs later: it has no reply yet"),
            )),
        }
    }
}

impl<S: InboxStore> Units<S> {
    /// Claims a unit. It waits for another copy until the waiting time is over.
    async fn claim_or_wait(&self, unit: &Unit, wait: &CopyWait) -> Result<OnceClaim<'_, S::Tx>, Error> {
        let engine = &self.engine;
        let mut is_copy = false;
        let mut retries = Retries::within(engine.settings.store_timeout);
        loop {
            let Some(permit) = engine.permit_within(wait, None, is_copy).await else {
                return Err(busy(&unit.handler));
            };
            let limits = Limits {
                lock_timeout: wait.claim_timeout(is_copy, engine.permits.limit()),
                // The closure runs at most once per call, so it cannot run again after a lock timeout.
                body_lock_timeout: None,
                handler_timeout: engine.settings.handler_timeout,
            };
            let (error, over, locked) = match engine.store.begin(limits).await {
                Ok(tx) => match self.claim_in(tx, unit, permit).await {
                    Ok(claim) => return Ok(claim),
                    Err(error) => (error, wait.is_over(), true),
                },
                Err(error) => (error, wait.is_over_for_the_writer(), false),
            };
            match Judgement::of::<S>(&error).is_locked() {
                true if over => return Err(busy(&unit.handler)),
                true => is_copy |= locked,
                false => retries.after::<S>(error).await?,
            }
        }
    }

    async fn claim_in<'a>(
        &self,
        mut tx: S::Tx,
        unit: &Unit,
        permit: Permit<'a>,
    ) -> Result<OnceClaim<'a, S::Tx>, Error> {
        let store = &self.engine.store;
        match store.claim(&mut tx, std::slice::from_ref(unit)).await?.pop() {
            Some(Claimed::Fresh) => {
                store.arm(&mut tx).await?;
                Ok(OnceClaim::Ours(tx, permit))
            }
            Some(Claimed::Known(marker)) => {
                store.rollback(tx).await;
                Ok(OnceClaim::Known(marker.result))
            }
            Some(Claimed::Busy) | None => Err(no_answer::<S>()),
        }
    }
}

enum OnceClaim<'a, Tx> {
    Ours(Tx, Permit<'a>),
    Known(Option<Vec<u8>>),
}

fn read_result<R: DeserializeOwned>(handler: &str, result: Option<Vec<u8>>) -> Result<R, Error> {
    let result = result.ok_or_else(|| {
        Error::new(
            ErrorKind::NoResult,
            format!("the key was handled by {handler:?}, but with no result stored"),
        )
    })?;
    serde_json::from_slice(&result).map_err(|error| {
        Error::new(ErrorKind::Codec, format!("the result of {handler:?} is not of the type asked for"))
            .with_source(error)
    })
}

fn busy(handler: &str) -> Error {
    let message = format!(
        "{handler:?} is still at work on a copy of this message, or the store on others: try again later"
    );
    Error::new(ErrorKind::Busy, message)
}
