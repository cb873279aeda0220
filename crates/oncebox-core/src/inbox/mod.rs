//! The inbox: takes deliveries in any number of copies, makes every handler take effect once.

mod batch;
mod batch_size;
mod begun;
mod builder;
mod contention;
mod doors;
mod gate;
mod nested;
mod once;
mod permits;
mod resolve;
mod slots;
mod stored;
mod sweeper;
mod unit;
mod waiting;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use builder::InboxBuilder;
use builder::{InboxSettings, Registered};
use futures_util::future::join_all;
pub use once::Once;
pub use stored::{Accept, LogStore, PruneReport, WorkReport};
pub(crate) use stored::{Lessons, LogAccess, Prune, Pruning, Slots, Stored, StoredSettings};

use crate::handler::{Selectors, States};
use crate::observe::Observer;
use crate::report::Report;
use crate::retention::SweepReport;
use crate::store::{Claims, Inspect, Marker, Registry, Unit, Upkeep};
use crate::{Envelope, Error, ErrorKind, Key, Mode, StoredKey, name};

/// A store that has everything an inbox needs. Implemented by whatever implements the roles.
pub trait InboxStore: Registry + Claims + Upkeep + Inspect {}

impl<S: Registry + Claims + Upkeep + Inspect> InboxStore for S {}

/// The kind under which [`Inbox::once`] keeps its markers.
pub(crate) const ONCE_KIND: &str = "@once";

pub(crate) struct Inner<S: InboxStore> {
    store: S,
    handlers: Vec<Registered<S>>,
    by_kind: HashMap<String, Vec<usize>>,
    states: Arc<States>,
    selectors: Selectors,
    settings: InboxSettings,
    observer: Observer,
    doors: doors::Doors,
    gate: gate::Gate,
    begun: begun::Begun<S::Begun>,
    permits: permits::Permits,
    sweeper: sweeper::Sweeper,
    mode: Mode,
    /// Where there is a log.
    log: Option<LogAccess<S>>,
    /// Whether it only looks and acts.
    for_operators: bool,
    stored: Option<Stored>,
}

/// The inbox. Cheap to clone; all clones are one inbox.
pub struct Inbox<S: InboxStore> {
    inner: Arc<Inner<S>>,
}

impl<S: InboxStore> Inbox<S> {
    /// Starts to put an inbox together on a store.
    pub fn builder(store: S) -> InboxBuilder<S> {
        InboxBuilder::new(store)
    }

    pub(crate) fn from_inner(inner: Inner<S>) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// Hands a delivery to every handler of its kind, each in a transaction of its own, and says what became of
    /// it. Acknowledge by [`Report::settlement`], never before.
    ///
    /// An error is about the store, never about the message: deliver again. (Or it says that a handler called its own
    /// inbox.)
    pub async fn process(&self, envelope: Envelope) -> Result<Report, Error> {
        self.refuse_nested()?;
        let _visit = self.inner.doors.enter()?;
        self.refuse_stored()?;
        let Some(handlers) = self.inner.by_kind.get(envelope.kind()) else {
            tracing::warn!(kind = envelope.kind(), "nobody handles this kind of message");
            self.inner.observer.unhandled(envelope.kind());
            return Ok(Report::default());
        };
        let envelope = Arc::new(envelope);
        let units = handlers.iter().map(|&n| {
            let handler = &self.inner.handlers[n];
            let envelope = envelope.clone();
            async move {
                let ended = self.run_unit(handler, envelope).await?;
                Ok::<_, Error>((handler.name.clone(), ended.outcome))
            }
        });
        let outcomes = join_all(units).await.into_iter().collect::<Result<Vec<_>, Error>>()?;
        Ok(Report::new(outcomes))
    }

    /// Claims a key for a handler inside a transaction that the caller owns: `true` means go on, `false` means
    /// that it was done before. The marker commits with whatever else the transaction writes.
    ///
    /// A concurrent claim of the same key waits until that transaction ends.
    pub async fn claim(
        &self,
        conn: &mut S::Conn,
        handler: &str,
        kind: &str,
        key: impl Into<Key>,
    ) -> Result<bool, Error> {
        name::check("handler name", handler)?;
        name::check("kind", kind)?;
        let unit = unit_of(self.origin_of(handler), kind, &key.into())?;
        Ok(self.inner.store.claim_in(conn, &unit).await?.is_fresh())
    }

    /// Marks messages as handled that were handled elsewhere: imports the dedup table of another system. How many
    /// of the keys were new.
    pub async fn mark_processed<K: Into<Key>>(
        &self,
        handler: &str,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<u64, Error> {
        self.refuse_stored_marks()?;
        let registered = self.registered(handler)?;
        let [kind] = &registered.kinds[..] else {
            return Err(Error::configuration(format!(
                "the handler {handler:?} takes several kinds: use mark_processed_kind and name one"
            )));
        };
        self.mark_processed_kind(handler, kind, keys).await
    }

    /// [`mark_processed`](Inbox::mark_processed) for one kind of a handler, registered here or not.
    pub async fn mark_processed_kind<K: Into<Key>>(
        &self,
        handler: &str,
        kind: &str,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<u64, Error> {
        name::check("handler name", handler)?;
        name::check("kind", kind)?;
        let keys = checked_keys(keys)?;
        let mut new = 0;
        for chunk in keys.chunks(KEYS_AT_ONCE) {
            new += self.inner.store.mark_processed(self.origin_of(handler), kind, chunk).await?;
        }
        Ok(new)
    }

    /// The marker of a handler for a message: when it was received and processed, and with what result.
    pub async fn marker(
        &self,
        handler: &str,
        kind: &str,
        key: impl Into<Key>,
    ) -> Result<Option<Marker>, Error> {
        let unit = unit_of(self.origin_of(handler), kind, &key.into())?;
        self.inner.store.marker(&unit).await
    }

    /// The markers of every registered handler for a key: what a support question asks.
    pub async fn markers(&self, key: impl Into<Key>) -> Result<Vec<Marker>, Error> {
        let key = key.into();
        let mut found = Vec::new();
        for handler in &self.inner.handlers {
            for kind in &handler.kinds {
                found.extend(self.inner.store.marker(&unit_of(&handler.origin, kind, &key)?).await?);
            }
        }
        Ok(found)
    }

    /// Sweeps old markers now, whatever the timer says.
    pub async fn sweep(&self) -> Result<SweepReport, Error> {
        let keep_messages =
            self.inner.stored.as_ref().map_or(Duration::ZERO, |stored| stored.settings.keep_messages);
        sweeper::sweep(&self.inner.store, self.inner.settings.retention, keep_messages, self.inner.observer)
            .await
    }

    /// Whether the store answers and the last sweep worked; an error says what does not.
    pub async fn health(&self) -> Result<(), Error> {
        if let Some(trouble) = self.inner.stored.as_ref().and_then(Stored::trouble) {
            return Err(Error::new(ErrorKind::Unavailable, format!("the workers wait: {trouble}")));
        }
        if let Some(trouble) = self.inner.sweeper.trouble() {
            return Err(Error::new(ErrorKind::Unavailable, format!("upkeep fails: {trouble}")));
        }
        self.inner.store.live_time().await.map(drop)
    }

    /// Stops gracefully: lets no further message in ([`ErrorKind::Closed`]), and returns when all that are being handled
    /// are settled. Dropping an inbox without this loses nothing either: what is cut off rolls back and is delivered
    /// again.
    pub async fn close(&self) {
        self.inner.doors.close().await;
        self.inner.begun.clear();
        self.inner.sweeper.stop();
    }

    /// The store underneath.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// The names of the registered handlers, in order, each with its kinds.
    pub fn handlers(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.inner.handlers.iter().map(|handler| (&*handler.name, &handler.kinds[..]))
    }

    /// The log knows keys by kind, for all handlers at once.
    fn refuse_stored_marks(&self) -> Result<(), Error> {
        match self.inner.mode {
            Mode::Stored => Err(Error::configuration(
                "this inbox takes messages into its log: mark_accepted(kind, keys) imports keys, mark_dead_processed(…) settles \
                 dead letters",
            )),
            Mode::Inline { .. } | Mode::Mixed => Ok(()),
        }
    }

    /// A message that is processed here and accepted there would run twice.
    pub(crate) fn refuse_stored(&self) -> Result<(), Error> {
        match self.inner.mode {
            Mode::Stored => Err(Error::configuration(
                "this inbox takes messages into its log: call accept(), and run() for the handlers",
            )),
            Mode::Inline { .. } | Mode::Mixed => Ok(()),
        }
    }

    /// The name with which a handler's markers are made.
    fn origin_of<'n>(&'n self, handler: &'n str) -> &'n str {
        self.registered(handler).map_or(handler, |registered| &*registered.origin)
    }

    fn registered(&self, handler: &str) -> Result<&Registered<S>, Error> {
        self.inner.handlers.iter().find(|registered| &*registered.name == handler).ok_or_else(|| {
            let names: Vec<_> = self.handlers().map(|(name, _)| name).collect();
            Error::configuration(format!(
                "no handler is registered as {handler:?}; there are: {}",
                names.join(", ")
            ))
        })
    }
}

/// So many keys are imported by one statement.
const KEYS_AT_ONCE: usize = 1_000;

/// Keys that can stand in markers, sorted, each once.
fn checked_keys<K: Into<Key>>(keys: impl IntoIterator<Item = K>) -> Result<Vec<StoredKey>, Error> {
    let keys = keys.into_iter().map(|key| {
        let key = key.into();
        name::check_key(&key)?;
        Ok(key.stored())
    });
    let mut keys = keys.collect::<Result<Vec<StoredKey>, Error>>()?;
    keys.sort();
    keys.dedup();
    Ok(keys)
}

/// A unit that has no body to compare: claimed by hand, imported or looked up.
fn unit_of(handler: &str, kind: &str, key: &Key) -> Result<Unit, Error> {
    name::check_key(key)?;
    Ok(Unit {
        handler: handler.to_owned(),
        kind: kind.to_owned(),
        key: key.stored(),
        fingerprint: None,
        waited: Duration::ZERO,
    })
}

impl<S: InboxStore> Clone for Inbox<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<S: InboxStore> fmt::Debug for Inbox<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.handlers().map(|(name, _)| name).collect();
        f.debug_struct("Inbox")
            .field("store", &S::NAME)
            .field("guarantee", &S::GUARANTEE)
            .field("handlers", &names)
            .finish_non_exhaustive()
    }
}
