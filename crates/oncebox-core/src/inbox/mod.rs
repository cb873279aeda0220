//! The inbox: receives any number of copies of a message, and lets each handler take effect once.

mod batch_size;
mod body;
mod builder;
mod checks;
mod combiner;
mod contention;
mod doors;
mod engine;
pub(crate) mod faults;
mod nested;
mod permits;
mod registered;
mod resolve;
mod sessions;
mod stored;
mod sweeper;
mod units;

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use body::panic_text;
pub use builder::InboxBuilder;
use engine::Engine;
use futures_util::future::{BoxFuture, join, join_all};
pub(crate) use stored::lane_of;
pub use stored::{Accept, LogStore, Operators, PruneReport, WorkReport};
use stored::{LogParts, not_stored};
pub(crate) use stored::{Pruning, prune, prune_sent};
use sweeper::Sweeper;
pub(crate) use sweeper::sweep;
use tokio::sync::oneshot;
pub use units::Once;
use units::Units;

use crate::observe::Observer;
use crate::outbox::AnyOutbox;
use crate::report::Report;
use crate::retention::SweepReport;
use crate::store::{Claims, Inspect, Marker, Registry, Unit, Upkeep};
use crate::{Envelope, Error, ErrorKind, Key, StoredKey, name};

/// A store with everything that an inbox needs. Every type that implements the four roles implements it.
pub trait InboxStore: Registry + Claims + Upkeep + Inspect {}

impl<S: Registry + Claims + Upkeep + Inspect> InboxStore for S {}

/// The parts of an inbox, each with one job and its own state.
pub(crate) struct Parts<S: InboxStore> {
    /// The shared state of all parts.
    engine: Arc<Engine<S>>,
    /// Handles messages inline, as they are delivered.
    units: Units<S>,
    /// Accepts messages now and handles them later; `None` without a log.
    log: Option<LogParts<S>>,
    /// Sends heartbeats and deletes expired markers.
    sweeper: Sweeper,
    /// Takes a message into the log, if the mode says so.
    accept: Option<AcceptFn<S>>,
    /// Whether the inbox is for operators and handles no messages.
    for_operators: bool,
}

/// [`Inbox::accept`] as a function pointer, because not every store has a log.
pub(crate) type AcceptFn<S> = for<'a> fn(&'a Inbox<S>, Envelope) -> BoxFuture<'a, Result<Accept, Error>>;

pub(crate) fn accept_boxed<S: LogStore>(
    inbox: &Inbox<S>,
    envelope: Envelope,
) -> BoxFuture<'_, Result<Accept, Error>> {
    Box::pin(inbox.accept(envelope))
}

/// The inbox. Clones are cheap and share one inbox.
pub struct Inbox<S: InboxStore> {
    parts: Arc<Parts<S>>,
}

impl<S: InboxStore> Inbox<S> {
    /// Starts building an inbox on a store.
    pub fn builder(store: S) -> InboxBuilder<S> {
        InboxBuilder::new(store)
    }

    /// Passes a delivery to every handler of its kind, each in a transaction of its own, and reports the outcomes. Acknowledge
    /// as [`Report::settlement`] says, never before.
    ///
    /// An error concerns the store, never the message: deliver again. The one exception is a handler that calls its own inbox.
    pub async fn process(&self, envelope: Envelope) -> Result<Report, Error> {
        let Parts { engine, units, .. } = &*self.parts;
        engine.refuse_nested()?;
        let _visit = engine.doors.enter()?;
        engine.refuse_stored()?;
        // Not an error: a source often carries kinds that this program does not need, and must not block on them.
        let Some(handlers) = engine.by_kind.get(envelope.kind()) else {
            tracing::warn!(kind = envelope.kind(), "unhandled kind");
            engine.observer.unhandled(envelope.kind());
            return Ok(Report::default());
        };
        // Shared, so that several handlers do not copy the body.
        let envelope = Arc::new(envelope);
        let runs = handlers.iter().map(|&n| {
            let handler = &engine.handlers[n];
            let envelope = envelope.clone();
            async move {
                let ended = units.run(handler, envelope).await?;
                Ok::<_, Error>((handler.name.clone(), ended.outcome))
            }
        });
        // All handlers run to their end before an error returns: one handler's outage must not cancel the others.
        let outcomes = join_all(runs).await.into_iter().collect::<Result<Vec<_>, Error>>()?;
        Ok(Report::new(outcomes))
    }

    /// Claims a key for a handler inside the caller's own transaction. `true` means that the key is new; `false` means that
    /// it was handled before. The marker commits together with the other writes of the transaction.
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
        let unit = unit_of(self.parts.engine.origin_of(handler), kind, &key.into())?;
        Ok(self.parts.engine.store.claim_in(conn, &unit).await?.is_fresh())
    }

    /// Imports the dedup table of another system: marks its messages as handled. Returns the number of new keys.
    pub async fn import_processed<K: Into<Key>>(
        &self,
        handler: &str,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<u64, Error> {
        self.refuse_stored_marks()?;
        let registered = self.parts.engine.registered(handler)?;
        // A key counts for one kind only, so the kind must be unambiguous.
        let [kind] = &registered.kinds[..] else {
            return Err(Error::configuration(format!(
                "the handler {handler:?} takes several kinds: use import_processed_kind and name one"
            )));
        };
        self.import_processed_kind(handler, kind, keys).await
    }

    /// The same as [`import_processed`](Inbox::import_processed), for one kind of a handler, registered here or not.
    pub async fn import_processed_kind<K: Into<Key>>(
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
            new += self
                .parts
                .engine
                .store
                .import_processed(self.parts.engine.origin_of(handler), kind, chunk)
                .await?;
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
        let unit = unit_of(self.parts.engine.origin_of(handler), kind, &key.into())?;
        self.parts.engine.store.marker(&unit).await
    }

    /// The markers of every registered handler for a key. Useful to answer "was this message handled?"
    pub async fn markers(&self, key: impl Into<Key>) -> Result<Vec<Marker>, Error> {
        let key = key.into();
        let mut found = Vec::new();
        for handler in &self.parts.engine.handlers {
            for kind in &handler.kinds {
                found.extend(self.parts.engine.store.marker(&unit_of(&handler.origin, kind, &key)?).await?);
            }
        }
        Ok(found)
    }

    /// Deletes expired markers now, independently of the timer.
    pub async fn sweep(&self) -> Result<SweepReport, Error> {
        let Parts { engine, log, .. } = &*self.parts;
        let keep_messages = log.as_ref().map_or(Duration::ZERO, |log| log.shared.settings.keep_messages);
        sweeper::sweep(&engine.store, engine.settings.retention, keep_messages, engine.observer).await
    }

    /// Checks that the store responds and that the last sweep succeeded. The error says which one failed.
    pub async fn health(&self) -> Result<(), Error> {
        let Parts { engine, log, sweeper, .. } = &*self.parts;
        if let Some(error) = log.as_ref().and_then(|log| log.shared.last_error()) {
            return Err(Error::new(ErrorKind::Unavailable, format!("the workers wait: {error}")));
        }
        if let Some(outbox) = &engine.outbox {
            outbox.health()?;
        }
        if let Some(error) = sweeper.last_error() {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("cleanup failed; expired markers are kept until it succeeds: {error}"),
            ));
        }
        engine.store.live_time().await.map(drop)
    }

    /// Stops gracefully: refuses further messages ([`ErrorKind::Closed`]), and returns when all messages in flight are settled.
    /// Dropping an inbox without this loses nothing either: transactions in flight roll back, and their messages are delivered
    /// again.
    pub async fn close(&self) {
        // The sweeper stops last, so that live time counts until all calls have ended.
        self.parts.engine.doors.close().await;
        self.parts.sweeper.stop();
    }

    /// Takes a message into the log. `None` if the inbox handles messages inline.
    pub(crate) fn accept_fn(&self) -> Option<AcceptFn<S>> {
        self.parts.accept.filter(|_| !self.parts.engine.mode.is_inline())
    }

    /// Whether all handlers of a message have run on it, or have it in their log.
    pub(crate) async fn has_run(&self, envelope: &Envelope) -> Result<bool, Error> {
        let Parts { engine, units, .. } = &*self.parts;
        let Some(handlers) = engine.by_kind.get(envelope.kind()) else { return Ok(false) };
        let envelope = Arc::new(envelope.clone());
        for &n in handlers {
            if !units.has_run(&engine.handlers[n], envelope.clone()).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Refuses a source, if this inbox can take none of its messages.
    pub(crate) fn check_consumes(&self) -> Result<(), Error> {
        self.parts.engine.refuse_nested()?;
        self.refuse_operators()
    }

    /// Refuses messages in an inbox for operators, which does not know the number of lanes.
    fn refuse_operators(&self) -> Result<(), Error> {
        match self.parts.for_operators {
            false => Ok(()),
            true => Err(Error::configuration(
                "this inbox is for operators, and takes and handles no messages: build one without for_operators()",
            )),
        }
    }

    pub(crate) fn observer(&self) -> Observer {
        self.parts.engine.observer
    }

    /// Waits until [`close`](Self::close) is called.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + Send + use<S> {
        let engine = self.parts.engine.clone();
        async move { engine.doors.closed().await }
    }

    /// The store underneath.
    pub fn store(&self) -> &S {
        &self.parts.engine.store
    }

    /// The maximum size of a body in bytes, as set or by default.
    pub fn max_body_bytes(&self) -> usize {
        self.parts.engine.settings.max_body_bytes
    }

    /// The names of the handlers in registration order, each with its kinds.
    pub fn handlers(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.parts.engine.names()
    }

    /// Refuses to import markers of one handler into a log, which keeps one key for all handlers of a kind.
    fn refuse_stored_marks(&self) -> Result<(), Error> {
        match self.parts.engine.mode.is_inline() {
            true => Ok(()),
            false => Err(Error::configuration(
                "this inbox takes messages into its log: import_accepted(kind, keys) imports keys, resolve_dead(…) settles \
                 dead letters",
            )),
        }
    }
}

impl<S: LogStore> Inbox<S> {
    /// Takes a message into the log, once for each kind and key. When this returns, the message is durable: acknowledge it.
    /// Workers run its handlers later, see [`run`](Inbox::run).
    ///
    /// Call it for one message at a time, from any number of tasks: waiting calls share a transaction. After
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) deliver again: the store did not respond. Other errors concern
    /// the message, which has no key, is too large or exceeds another limit: delivering it again does not help.
    pub async fn accept(&self, envelope: Envelope) -> Result<Accept, Error> {
        let engine = &self.parts.engine;
        engine.refuse_nested()?;
        let _visit = engine.doors.enter()?;
        let log = self.log()?;
        engine.refuse_inline()?;
        self.refuse_operators()?;
        log.intake.accept(envelope).await
    }

    /// Takes several messages into the log, and returns the results in their order. A failed message does not affect the others.
    pub async fn accept_all(
        &self,
        envelopes: impl IntoIterator<Item = Envelope>,
    ) -> Vec<Result<Accept, Error>> {
        join_all(envelopes.into_iter().map(|envelope| self.accept(envelope))).await
    }

    /// Imports the inbox table of another system: copies of its messages are duplicates here. Returns the number of new keys.
    pub async fn import_accepted<K: Into<Key>>(
        &self,
        kind: &str,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<u64, Error> {
        self.log()?;
        name::check("kind", kind)?;
        let keys = checked_keys(keys)?;
        let mut new = 0;
        for chunk in keys.chunks(KEYS_AT_ONCE) {
            new += self.parts.engine.store.import_accepted(kind, chunk).await?;
        }
        Ok(new)
    }

    /// Works until `shutdown` is ready or the inbox is closed, then finishes its in-flight work. Run it in any number of
    /// processes: they share the work.
    ///
    /// While the store does not respond, even at the start, the workers wait for it. An error means that they can never start.
    pub async fn run(&self, shutdown: impl Future<Output = ()> + Send) -> Result<WorkReport, Error> {
        let log = self.log()?;
        self.refuse_operators()?;
        let _visit = self.parts.engine.doors.enter()?;
        match &self.parts.engine.outbox {
            Some(outbox) => run_with_outbox(log, &**outbox, shutdown).await,
            None => log.workers.run(shutdown).await,
        }
    }

    /// Keeps this process among the running ones while it does something else than the work of this inbox.
    pub(crate) async fn present_while<T: Send>(
        &self,
        other: impl Future<Output = T> + Send,
    ) -> Result<T, Error> {
        Ok(self.log()?.workers.present_while(other).await)
    }

    /// Visits every lane that has work, once. For use from a scheduler such as cron.
    pub async fn work_once(&self) -> Result<WorkReport, Error> {
        let (_, mut report) = self.flush_outbox().await?;
        report += self.log()?.workers.work_once().await?;
        Ok(report)
    }

    /// Works until no message can run now. Tasks that are not due yet stay.
    pub async fn work_until_idle(&self) -> Result<WorkReport, Error> {
        let log = self.log()?;
        let mut report = WorkReport::default();
        loop {
            let (moved, sent) = self.flush_outbox().await?;
            let worked = log.workers.work_until_idle().await?;
            report += sent;
            report += worked;
            // Handlers that ran may have published.
            if self.parts.engine.outbox.is_none() || (moved == 0 && worked.is_empty()) {
                return Ok(report);
            }
        }
    }

    /// Moves the messages of the outbox to the log, if there is one. Returns their number, and what its relays have done.
    async fn flush_outbox(&self) -> Result<(u64, WorkReport), Error> {
        match &self.parts.engine.outbox {
            Some(outbox) => outbox.flush().await,
            None => Ok((0, WorkReport::default())),
        }
    }

    /// Deletes expired messages and accept markers now, independently of the timer. A message expires when all handlers of its
    /// kind have passed it and it is older than `keep_messages`. The accept marker of a deleted message expires after the
    /// retention of markers. Only time with a live process counts.
    pub async fn prune(&self) -> Result<PruneReport, Error> {
        let engine = &self.parts.engine;
        let shared = &self.log()?.shared;
        let pruning = Pruning {
            lanes: shared.lanes,
            keep_messages: shared.settings.keep_messages,
            retention: engine.settings.retention,
        };
        prune(&engine.store, pruning, engine.observer).await
    }

    /// Wakes the workers.
    pub(crate) fn wake(&self) {
        if let Some(log) = &self.parts.log {
            log.shared.wake.notify_one();
        }
    }

    /// The number of lanes of the log.
    pub(crate) fn lanes(&self) -> u16 {
        self.parts.log.as_ref().map_or(0, |log| log.shared.lanes)
    }

    /// A relay whose sink does not confirm, and why.
    pub(crate) fn waiting_relay(&self) -> Option<(&str, String)> {
        // A process that waits tries again within seconds. After a longer time another one has its lanes.
        let within = self.parts.log.as_ref()?.shared.settings.lease;
        let mut relays = self.parts.engine.handlers.iter();
        relays.find_map(|handler| Some((&*handler.name, handler.relay.as_ref()?.waits(within)?)))
    }

    fn log(&self) -> Result<&LogParts<S>, Error> {
        self.parts.log.as_ref().ok_or_else(not_stored)
    }
}

impl<S: InboxStore> Engine<S> {
    /// Refuses `process` in a stored inbox. A message that is processed here and accepted elsewhere would run twice.
    pub(crate) fn refuse_stored(&self) -> Result<(), Error> {
        match self.mode.is_inline() {
            true => Ok(()),
            false => Err(Error::configuration(
                "this inbox takes messages into its log: call accept(), and run() for the handlers",
            )),
        }
    }

    /// Refuses `accept` in an inline inbox. A message that is accepted here and processed elsewhere would run twice.
    fn refuse_inline(&self) -> Result<(), Error> {
        match self.mode.reads_log() {
            true => Ok(()),
            false => Err(Error::configuration(
                "this inbox handles messages inline: call process(). Its log is for scheduled retries, dead letters and detached \
                 handlers",
            )),
        }
    }
}

/// Runs the workers of an inbox, and beside them the mover of its outbox, which wakes them after each move.
async fn run_with_outbox<S: LogStore>(
    log: &LogParts<S>,
    outbox: &dyn AnyOutbox<S>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<WorkReport, Error> {
    let (ended, has_ended) = oneshot::channel::<()>();
    let work = async move {
        let report = log.workers.run(shutdown).await;
        // The mover ends last: handlers in their last transactions may still publish.
        drop(ended);
        report
    };
    let mover = outbox.run(Box::pin(async move {
        let _ = has_ended.await;
    }));
    let wake = async {
        let mut moves = outbox.moves();
        while moves.changed().await.is_ok() {
            log.shared.wake.notify_one();
            if log.shared.settings.notify {
                log.intake.announce();
            }
        }
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        (report, relayed) = join(work, mover) => {
            let mut report = report?;
            report += relayed?;
            Ok(report)
        }
        never = wake => match never {},
    }
}

/// The number of keys that one statement imports.
const KEYS_AT_ONCE: usize = 1_000;

/// Checks keys, and returns them sorted and without repeats.
fn checked_keys<K: Into<Key>>(keys: impl IntoIterator<Item = K>) -> Result<Vec<StoredKey>, Error> {
    let keys = keys.into_iter().map(|key| {
        let key = key.into();
        name::check_key(&key)?;
        Ok(key.stored())
    });
    let mut keys = keys.collect::<Result<Vec<StoredKey>, Error>>()?;
    // Sorted like all claims, so that an import and a batch cannot deadlock.
    keys.sort();
    keys.dedup();
    Ok(keys)
}

/// Creates a unit without a body to compare, for claims, imports and look-ups.
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
        Self { parts: self.parts.clone() }
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
