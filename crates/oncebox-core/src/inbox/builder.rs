//! The builder of an inbox.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::handler::{Detachment, Handler, HandlerOptions, Input, Selectors, Settings, States, erase};
use crate::inbox::batch_size::BatchSize;
use crate::inbox::checks::Checks;
use crate::inbox::doors::Doors;
use crate::inbox::engine::Engine;
use crate::inbox::permits::Permits;
use crate::inbox::registered::Registered;
use crate::inbox::stored::{
    DetachedSlots, Lessons, LogAccess, LogParts, LogShared, Pruning, RelayHandler, StoredSettings, sink_limit,
};
use crate::inbox::sweeper::Sweeper;
use crate::inbox::units::{Batches, Spilling, Units};
use crate::inbox::{Inbox, InboxStore, Parts};
use crate::limits::MAX_BODY_BYTES;
use crate::observe::Observer;
use crate::outbox::{AnyOutbox, Relay, RelayLink};
use crate::policy::{InFlight, KeyReuse, MissingKey};
use crate::retention::Retention;
use crate::store::Registration;
use crate::{Envelope, Error, Headers, Key, Message, Mode};

/// Connections that inline transactions leave free. Upkeep must not wait for handlers; look-ups have permits of their own.
pub(super) const INLINE_SPARE: usize = 1;
/// Connections that a pool needs beyond its workers: for accepting, upkeep and look-ups.
pub(super) const SPARE_CONNECTIONS: usize = 3;

/// The settings of the whole inbox.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InboxSettings {
    pub(crate) missing_key: MissingKey,
    pub(crate) key_reuse: KeyReuse,
    pub(crate) in_flight: InFlight,
    pub(crate) lock_timeout: Duration,
    pub(crate) handler_timeout: Duration,
    pub(crate) store_timeout: Duration,
    pub(crate) max_body_bytes: usize,
    pub(crate) max_batch: usize,
    pub(crate) max_in_flight: Option<usize>,
    pub(crate) dedup_off: bool,
    pub(crate) retention: Retention,
}

impl Default for InboxSettings {
    fn default() -> Self {
        Self {
            missing_key: MissingKey::default(),
            key_reuse: KeyReuse::default(),
            in_flight: InFlight::default(),
            lock_timeout: Duration::from_secs(1),
            handler_timeout: Duration::from_secs(30),
            store_timeout: Duration::from_secs(5),
            max_body_bytes: MAX_BODY_BYTES,
            max_batch: 64,
            max_in_flight: None,
            dedup_off: false,
            retention: Retention::default(),
        }
    }
}

/// Builds an inbox. Start with [`Inbox::builder`].
#[must_use]
pub struct InboxBuilder<S: InboxStore> {
    store: S,
    handlers: Vec<Registered<S>>,
    states: States,
    selectors: Selectors,
    settings: InboxSettings,
    pub(super) stored: StoredSettings,
    pub(super) mode: Mode,
    /// The functions of an inbox with a log; `None` without one.
    pub(super) log: Option<LogAccess<S>>,
    /// The outbox through which handlers publish, if there is one.
    pub(super) outbox: Option<Arc<dyn AnyOutbox<S>>>,
    /// Whether the inbox is for operators and handles no messages.
    pub(super) for_operators: bool,
    /// Whether the inbox deletes what has expired.
    pub(super) has_upkeep: bool,
    metrics: bool,
}

impl<S: InboxStore> InboxBuilder<S> {
    pub(crate) fn new(store: S) -> Self {
        Self {
            store,
            handlers: Vec::new(),
            states: States::default(),
            selectors: Selectors::default(),
            settings: InboxSettings::default(),
            stored: StoredSettings::default(),
            mode: Mode::inline(),
            log: None,
            outbox: None,
            for_operators: false,
            has_upkeep: true,
            metrics: true,
        }
    }

    /// Registers a handler under a name. The name is part of each marker, so it stays the same when the function is renamed,
    /// and two handlers of one message need two names.
    pub fn on<H, Marker>(self, name: impl Into<String>, handler: H) -> Self
    where
        H: Handler<S, Marker>,
        Marker: 'static,
    {
        self.on_with(name, handler, |options| options)
    }

    /// Registers a handler with options of its own.
    pub fn on_with<H, Marker>(
        self,
        name: impl Into<String>,
        handler: H,
        options: impl FnOnce(HandlerOptions<H::Input>) -> HandlerOptions<H::Input>,
    ) -> Self
    where
        H: Handler<S, Marker>,
        Marker: 'static,
    {
        let kinds = H::Input::KIND.into_iter().map(str::to_owned).collect();
        self.register(name.into(), kinds, handler, options(HandlerOptions::new()))
    }

    /// Registers a handler that takes the undecoded [`Envelope`] of these kinds.
    pub fn on_raw<H, Marker, K: Into<String>>(
        self,
        name: impl Into<String>,
        kinds: impl IntoIterator<Item = K>,
        handler: H,
    ) -> Self
    where
        H: Handler<S, Marker, Input = Envelope>,
        Marker: 'static,
    {
        self.on_raw_with(name, kinds, handler, |options| options)
    }

    /// Registers a handler that takes the undecoded [`Envelope`], with options of its own.
    pub fn on_raw_with<H, Marker, K: Into<String>>(
        self,
        name: impl Into<String>,
        kinds: impl IntoIterator<Item = K>,
        handler: H,
        options: impl FnOnce(HandlerOptions<Envelope>) -> HandlerOptions<Envelope>,
    ) -> Self
    where
        H: Handler<S, Marker, Input = Envelope>,
        Marker: 'static,
    {
        let kinds = kinds.into_iter().map(Into::into).collect();
        self.register(name.into(), kinds, handler, options(HandlerOptions::new()))
    }

    fn register<H, Marker>(
        mut self,
        name: String,
        mut kinds: Vec<String>,
        handler: H,
        options: HandlerOptions<H::Input>,
    ) -> Self
    where
        H: Handler<S, Marker>,
        Marker: 'static,
    {
        // One order for equal sets of kinds, so that the registration in the database does not change without need.
        kinds.sort();
        kinds.dedup();
        self.handlers.push(Registered {
            index: self.handlers.len(),
            origin: name.as_str().into(),
            name: name.into(),
            // Placeholders: the real limits depend on the number of handlers, which only build() knows.
            batches: Batches::new(1, 1),
            lessons: Mutex::new(Lessons::new(BatchSize::new(1, 1))),
            kinds,
            detached: options.settings.detached.map(DetachedSlots::new),
            relay: None,
            settings: options.settings,
            handler: erase(handler, options.selector),
            requirements: H::requirements(),
            takes_envelope: H::Input::KIND.is_none(),
        });
        self
    }

    /// Registers a relay of an outbox.
    pub(crate) fn relay(mut self, relay: &Relay) -> Self {
        let limit = sink_limit(self.stored.lease);
        let settings = Settings {
            retry: Some(relay.retry),
            start: relay.start,
            revive: relay.revive,
            ordered: relay.ordered,
            // The relay's own limit comes first.
            timeout: Some(limit.saturating_add(Duration::from_secs(1))),
            detached: Some(Detachment {
                open_tasks: relay.open_tasks,
                out_of_process: true,
                ..Detachment::default()
            }),
            ..Settings::default()
        };
        self.handlers.push(Registered {
            index: self.handlers.len(),
            origin: relay.name.as_str().into(),
            name: relay.name.as_str().into(),
            batches: Batches::new(1, 1),
            lessons: Mutex::new(Lessons::new(BatchSize::new(1, 1))),
            kinds: relay.kinds.clone(),
            detached: settings.detached.map(DetachedSlots::new),
            relay: Some(RelayLink::new(relay)),
            settings,
            handler: Box::new(RelayHandler { sink: relay.sink.clone(), limit }),
            requirements: Vec::new(),
            takes_envelope: true,
        });
        self
    }

    /// Adds a value for handlers: each call of a handler with a [`State<T>`](crate::State) parameter gets a clone. One value
    /// per type.
    pub fn state<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.states.insert(value);
        self
    }

    /// Selects the key of every message of type `M`, from the message and its headers, for handlers without a selector of
    /// their own. If the selector returns `None`, the next source of a key is used.
    pub fn key_for<M: Message>(
        mut self,
        selector: impl Fn(&M, &Headers) -> Option<Key> + Send + Sync + 'static,
    ) -> Self {
        self.selectors.insert::<M>(Arc::new(selector));
        self
    }

    /// What to do with a message that has no key. Default: reject it.
    pub fn missing_key(mut self, policy: MissingKey) -> Self {
        self.settings.missing_key = policy;
        self
    }

    /// What to do with a key that arrives again with another body. Default: skip it.
    pub fn key_reuse(mut self, policy: KeyReuse) -> Self {
        self.settings.key_reuse = policy;
        self
    }

    /// What to do with a copy that arrives while the first one runs. Default: wait up to 30 s.
    pub fn in_flight(mut self, policy: InFlight) -> Self {
        self.settings.in_flight = policy;
        self
    }

    /// The maximum time for which one claim holds a connection while it waits for another copy. Then it returns the connection
    /// and tries again, until the waiting time of `in_flight` is over. Default: 1 s.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.settings.lock_timeout = timeout;
        self
    }

    /// The maximum duration of a handler. Its statement is cancelled on the server too. Default: 30 s.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.settings.handler_timeout = timeout;
        self
    }

    /// How long a call retries while the store does not respond, before it returns
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable). Default: 5 s. An attempt that has started is not cut short:
    /// set the pool's own time limit for a connection below this.
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.settings.store_timeout = timeout;
        self
    }

    /// The maximum size of a body. Default: 1 MiB.
    pub fn max_body_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_body_bytes = bytes;
        self
    }

    /// The maximum number of messages of one handler that share a transaction when many wait. Default: 64; with 1, each message
    /// has its own transaction.
    pub fn max_batch(mut self, units: usize) -> Self {
        self.settings.max_batch = units;
        self
    }

    /// The maximum number of inline transactions in flight, for all handlers and [`once`](Inbox::once) together. Further
    /// messages wait, and share a transaction where they can. Default: the size of the store's pool minus one connection for
    /// upkeep. Fast handlers use two for each core.
    pub fn max_in_flight(mut self, transactions: usize) -> Self {
        self.settings.max_in_flight = Some(transactions);
        self
    }

    /// Turns deduplication off: every handler runs on every delivery, and no markers are written.
    pub fn without_dedup(mut self) -> Self {
        self.settings.dedup_off = true;
        self
    }

    /// How long markers are kept and when expired ones are deleted. Default: 7 days, deleted automatically every hour.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.settings.retention = retention;
        self
    }

    /// Whether metrics are recorded through the `metrics` facade. Default: on.
    pub fn metrics(mut self, enabled: bool) -> Self {
        self.metrics = enabled;
        self
    }

    /// Builds the inbox. It checks names, states, settings and the store's schema, which it never alters, and starts the
    /// sweeper.
    pub async fn build(mut self) -> Result<Inbox<S>, Error> {
        let checks = Checks {
            handlers: &self.handlers,
            states: &self.states,
            settings: &self.settings,
            stored: &self.stored,
            mode: self.mode,
            has_log: self.log.is_some(),
            has_outbox: self.outbox.is_some(),
            for_operators: self.for_operators,
            capacity: self.store.capacity(),
        };
        checks.all()?;
        self.store.check().await?;
        let capacity = self.store.capacity();
        let limit = self.settings.max_in_flight.unwrap_or(capacity.saturating_sub(INLINE_SPARE));
        // More permits than connections would only move the wait into the pool, which has a time limit of its own.
        let permits = Permits::new(limit.min(capacity));
        let handlers = self.handlers.len().max(1);
        for handler in &mut self.handlers {
            // An equal share for each handler, so that one handler's slots cannot use all permits.
            handler.batches = Batches::new(self.settings.max_batch, permits.limit() / handlers);
            let size = BatchSize::new(self.stored.work_batch, 1);
            handler.lessons = Mutex::new(Lessons::new(match self.stored.batch_time {
                Some(time) => size.within(time),
                None => size,
            }));
        }
        // An inbox for operators creates no lanes: the first program that accepts messages sets their number.
        let lanes = self.log.filter(|_| !self.for_operators).map(|_| self.stored.lanes);
        let layout = self.store.register(lanes, &self.registrations()).await?;
        let mut by_kind: HashMap<String, Vec<usize>> = HashMap::new();
        for (n, handler) in self.handlers.iter().enumerate() {
            for kind in &handler.kinds {
                by_kind.entry(kind.clone()).or_default().push(n);
            }
        }
        let observer = Observer { enabled: self.metrics };
        observer.describe();
        // Registered kinds reserve their metric labels first, because senders can use any number of other kinds.
        observer.expect(by_kind.keys());
        for (handler, origin) in self.handlers.iter_mut().zip(layout.origins) {
            handler.origin = origin.into();
        }
        let pruning = self.log.map(|log| {
            let (lanes, keep_messages) = (layout.lanes, self.stored.keep_messages);
            (log.prune, Pruning { lanes, keep_messages, retention: self.settings.retention })
        });
        // Heartbeats count as live time for retention, and an operator's tool handles no messages.
        let sweeper = match self.has_upkeep && !self.for_operators {
            false => Sweeper::idle(),
            true => Sweeper::start(self.store.clone(), self.settings.retention, pruning, observer),
        };
        let engine = Arc::new(Engine {
            store: self.store,
            handlers: self.handlers,
            by_kind,
            states: Arc::new(self.states),
            selectors: self.selectors,
            settings: self.settings,
            observer,
            mode: self.mode,
            doors: Doors::open(),
            permits,
            outbox: self.outbox,
        });
        let workers = self.stored.workers_of(capacity);
        let shared = self
            .log
            .map(|access| (access, Arc::new(LogShared::new(self.stored, layout.lanes, layout.handlers))));
        let spilling = shared
            .as_ref()
            .map(|(access, shared)| Spilling::new(engine.clone(), shared.clone(), access.spill));
        let units = Units::new(engine.clone(), spilling);
        let appenders = capacity.saturating_sub(workers + SPARE_CONNECTIONS);
        let log = shared.map(|(_, shared)| LogParts::new(&engine, shared, appenders));
        let accept = self.log.map(|log| log.accept);
        let parts = Parts { engine, units, log, sweeper, accept, for_operators: self.for_operators };
        Ok(Inbox { parts: Arc::new(parts) })
    }

    fn registrations(&self) -> Vec<Registration> {
        let registration = |handler: &Registered<S>| {
            let kinds = handler.kinds.clone();
            let Settings { start, revive, ordered, .. } = handler.settings;
            let mode = handler.mode(self.mode);
            let keep = handler.relay.as_ref().map(|relay| relay.keep_sent);
            Registration { name: handler.name.to_string(), kinds, mode, ordered, start, revive, keep }
        };
        self.handlers.iter().map(registration).collect()
    }
}

impl<S: InboxStore> fmt::Debug for InboxBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.handlers.iter().map(|handler| &*handler.name).collect();
        f.debug_struct("InboxBuilder")
            .field("store", &S::NAME)
            .field("handlers", &names)
            .finish_non_exhaustive()
    }
}
