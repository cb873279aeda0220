//! Results: code that runs once per key, and calls whose duplicates get the first one's answer.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::backoff::{backoff, spread};
use crate::handler::AsyncFunc;
use crate::inbox::gate::{Entry, Waited};
use crate::inbox::permits::Permit;
use crate::inbox::unit::{Ended, TIMEOUT_GRACE};
use crate::inbox::waiting::Waiting;
use crate::inbox::{Inbox, InboxStore, ONCE_KIND, unit_of};
use crate::outcome::{Outcome, Rejection};
use crate::store::{Claimed, Fault, Limits, Unit, Unseen};
use crate::{Envelope, Error, ErrorKind, Key, Message, name};

/// A result, and whether it was made now or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once<T> {
    /// The code ran now.
    Fresh(T),
    /// The code had run before; this is its result.
    Replayed(T),
}

impl<T> Once<T> {
    /// The result, whenever it was made.
    pub fn into_inner(self) -> T {
        match self {
            Self::Fresh(value) | Self::Replayed(value) => value,
        }
    }

    /// Whether the code had run before.
    pub fn is_replayed(&self) -> bool {
        matches!(self, Self::Replayed(_))
    }
}

impl<S: InboxStore> Inbox<S> {
    /// Runs the closure once per key, in a transaction with its marker, and keeps its result: whoever comes later
    /// with the same key gets that result.
    ///
    /// The closure runs at most once per call. If it fails, nothing is kept and its error is returned; the next
    /// call with this key runs it again.
    pub async fn once<R, E, F>(&self, handler: &str, key: impl Into<Key>, body: F) -> Result<Once<R>, E>
    where
        for<'t> F: AsyncFnOnce(&'t mut S::Conn) -> Result<R, E>
            + AsyncFunc<&'t mut S::Conn, Result<R, E>, Fut: Send>
            + Send,
        R: Serialize + DeserializeOwned + Send,
        E: From<Error> + Send,
    {
        self.refuse_nested()?;
        let _visit = self.inner.doors.enter()?;
        name::check("handler name", handler)?;
        let unit = unit_of(self.origin_of(handler), ONCE_KIND, &key.into())?;
        let settings = &self.inner.settings;
        let waiting = Waiting::new(settings.in_flight, settings.lock_timeout);
        let _pass = loop {
            match self.inner.gate.enter(&unit) {
                Entry::First(pass) => break pass,
                // Whatever became of it, the marker tells.
                Entry::Copy(copy) => {
                    if let Waited::TimeIsUp = copy.wait(waiting.left()).await {
                        return Err(busy(handler).into());
                    }
                }
            }
        };
        let (mut tx, permit) = match self.claim_or_wait(&unit, &waiting).await? {
            Claim::Ours(tx, permit) => (tx, permit),
            Claim::Known(result) => return Ok(Once::Replayed(read_result(handler, result)?)),
        };

        let store = &self.inner.store;
        let limit = self.inner.settings.handler_timeout;
        let ran = tokio::time::timeout(
            limit.saturating_add(TIMEOUT_GRACE),
            self.inside(body(S::connection(&mut tx))),
        )
        .await;
        let value = match ran {
            Ok(Ok(value)) => value,
            Ok(Err(error)) => {
                store.body_ended(&mut tx, Err(&Unseen));
                store.rollback(tx).await;
                return Err(error);
            }
            Err(_elapsed) => {
                store.abandon(tx).await;
                return Err(
                    Error::new(ErrorKind::Handler, format!("the closure ran longer than {limit:?}")).into()
                );
            }
        };
        let result = serde_json::to_vec(&value).map_err(|error| {
            Error::new(ErrorKind::Codec, "the closure's result has no JSON form").with_source(error)
        })?;
        if let Err(error) = store.guard(&mut tx).await {
            store.rollback(tx).await;
            return Err(error.into());
        }
        store.record_results(&mut tx, &[(&unit, &result)]).await?;
        match store.commit(tx).await {
            Ok(()) => Ok(Once::Fresh(value)),
            Err(error) if S::classify(&error) == Fault::Connection => {
                drop(permit);
                // Nobody knows; another claim does, even if the commit is still under way.
                let waiting = Waiting::new(settings.in_flight, settings.lock_timeout);
                match self.claim_or_wait(&unit, &waiting).await? {
                    Claim::Known(_) => Ok(Once::Fresh(value)),
                    Claim::Ours(tx, _permit) => {
                        store.rollback(tx).await;
                        Err(error.into())
                    }
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Hands a message to one registered handler and returns its [`Reply`](crate::Reply), to duplicates too.
    pub async fn call<T, M>(&self, handler: &str, message: &M) -> Result<Once<T>, Error>
    where
        T: DeserializeOwned,
        M: Message,
    {
        self.call_envelope(handler, Envelope::of(message)?).await
    }

    /// [`call`](Inbox::call) with an envelope, for a message that is already encoded.
    pub async fn call_envelope<T: DeserializeOwned>(
        &self,
        handler: &str,
        envelope: Envelope,
    ) -> Result<Once<T>, Error> {
        self.refuse_nested()?;
        self.refuse_stored()?;
        let _visit = self.inner.doors.enter()?;
        let registered = self.registered(handler)?;
        if !registered.kinds.iter().any(|kind| kind == envelope.kind()) {
            return Err(Error::configuration(format!(
                "the handler {handler:?} does not take messages of kind {:?}",
                envelope.kind()
            )));
        }
        let Ended { outcome, result, .. } = self.run_unit(registered, Arc::new(envelope)).await?;
        match outcome {
            Outcome::Done => Ok(Once::Fresh(read_result(handler, result)?)),
            Outcome::Duplicate => Ok(Once::Replayed(read_result(handler, result)?)),
            Outcome::KeyReuse => Err(rejected(&Rejection::KeyReuse)),
            Outcome::Rejected(rejection) => Err(rejected(&rejection)),
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

    /// Claims a unit, however long another copy takes, within the waiting time.
    async fn claim_or_wait(&self, unit: &Unit, waiting: &Waiting) -> Result<Claim<'_, S::Tx>, Error> {
        let settings = &self.inner.settings;
        let mut is_copy = false;
        let mut troubled_since = None;
        let mut troubles = 0;
        loop {
            let Some(permit) = self.permit_within(waiting, None, is_copy).await else {
                return Err(busy(&unit.handler));
            };
            let limits = Limits {
                lock_timeout: self.claim_wait(is_copy, waiting),
                body_lock_timeout: None,
                handler_timeout: settings.handler_timeout,
            };
            let (error, over, locked) = match self.begin(limits).await {
                Ok(tx) => match self.claim_in(tx, unit, permit).await {
                    Ok(claim) => return Ok(claim),
                    Err(error) => (error, waiting.is_over(), true),
                },
                Err(error) => (error, waiting.is_over_for_the_writer(), false),
            };
            match S::classify(&error) {
                Fault::LockTimeout if over => return Err(busy(&unit.handler)),
                Fault::LockTimeout => is_copy |= locked,
                Fault::Connection | Fault::Session | Fault::Transient
                    if troubled_since.get_or_insert_with(Instant::now).elapsed() < settings.patience =>
                {
                    troubles += 1;
                    tokio::time::sleep(backoff(troubles, spread())).await;
                }
                _ => return Err(error),
            }
        }
    }

    async fn claim_in<'a>(
        &self,
        mut tx: S::Tx,
        unit: &Unit,
        permit: Permit<'a>,
    ) -> Result<Claim<'a, S::Tx>, Error> {
        let store = &self.inner.store;
        match store.claim(&mut tx, std::slice::from_ref(unit)).await?.pop() {
            Some(Claimed::Fresh) => {
                store.arm(&mut tx).await?;
                Ok(Claim::Ours(tx, permit))
            }
            Some(Claimed::Known(marker)) => {
                store.rollback(tx).await;
                Ok(Claim::Known(marker.result))
            }
            Some(Claimed::Busy) | None => Err(Error::new(
                ErrorKind::Unavailable,
                format!("the store {} gave no answer to a claim", S::NAME),
            )),
        }
    }
}

enum Claim<'a, Tx> {
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

/// A rejection as an error of the caller, which can tell bad input from a refusal.
pub(crate) fn rejected(rejection: &Rejection) -> Error {
    let kind = match rejection {
        Rejection::MissingKey | Rejection::BadKey(_) => ErrorKind::Key,
        Rejection::BadEnvelope(_) => ErrorKind::Envelope,
        Rejection::KeyReuse => ErrorKind::KeyReuse,
        Rejection::TooLarge { .. } => ErrorKind::TooLarge,
        Rejection::Undecodable(_) => ErrorKind::Codec,
        Rejection::Permanent(_) => ErrorKind::Rejected,
        Rejection::EndedTransaction(_) => ErrorKind::Transaction,
    };
    let error = Error::new(kind, rejection.to_string());
    match rejection.cause() {
        Some(cause) => error.with_source(cause),
        None => error,
    }
}

fn busy(handler: &str) -> Error {
    let message = format!(
        "{handler:?} is still at work on a copy of this message, or the store on others: try again later"
    );
    Error::new(ErrorKind::Busy, message)
}
