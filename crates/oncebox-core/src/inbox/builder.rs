//! Putting an inbox together.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::handler::{Handler, HandlerOptions, Input, Selectors, Settings, States, erase};
use crate::inbox::batch_size::BatchSize;
use crate::inbox::checks::Checks;
use crate::inbox::doors::Doors;
use crate::inbox::engine::Engine;
use crate::inbox::permits::Permits;
use crate::inbox::registered::Registered;
use crate::inbox::stored::{DetachedSlots, Lessons, LogAccess, LogParts, LogShared, Pruning, StoredSettings};
use crate::inbox::sweeper::Sweeper;
use crate::inbox::units::{Batches, Spilling, Units};
use crate::inbox::{Inbox, InboxStore, Parts};
use crate::observe::Observer;
use crate::policy::{InFlight, KeyReuse, MissingKey};
use crate::retention::Retention;
use crate::store::Registration;
use crate::{Envelope, Error, Headers, Key, Message, Mode};

/// The connections of a pool that inline transactions leave free: upkeep must not wait for handlers. Look-ups have permits.
pub(super) const INLINE_SPARE: usize = 1;
/// What a pool needs beyond its workers: for accepting, upkeep and look-ups.
pub(super) const SPARE_CONNECTIONS: usize = 3;

/// What holds for the whole inbox.
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
            max_body_bytes: 1024 * 1024,
            max_batch: 64,
            max_in_flight: None,
            dedup_off: false,
            retention: Retention::default(),
        }
    }
}

/// Puts an inbox together; see [`Inbox::builder`].
#[must_use]
pub struct InboxBuilder<S: InboxStore> {
    store: S,
    handlers: Vec<Registered<S>>,
    states: States,
    selectors: Selectors,
    settings: InboxSettings,
    pub(super) stored: StoredSettings,
    pub(super) mode: Mode,
    /// What is done with the log; with it there is one.
    pub(super) log: Option<LogAccess<S>>,
    /// Whether it only looks and acts.
    pub(super) for_operators: bool,
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
            for_operators: false,
            metrics: true,
        }
    }

    /// Registers a handler under a name. The name is part of what is deduplicated: it outlives renames of the
    /// function, and two handlers of one message have two names.
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

    /// Registers a handler that takes the [`Envelope`] undecoded, for these kinds.
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

    /// Registers a handler that takes the [`Envelope`] undecoded, with options of its own.
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
        kinds.sort();
        kinds.dedup();
        self.handlers.push(Registered {
            index: self.handlers.len(),
            origin: name.as_str().into(),
            name: name.into(),
            // The real ones need to know all handlers: see build().
            batches: Batches::new(1, 1),
            lessons: Mutex::new(Lessons::new(BatchSize::new(1, 1))),
            kinds,
            detached: options.settings.detached.map(DetachedSlots::new),
            settings: options.settings,
            handler: erase(handler, options.selector),
            requirements: H::requirements(),
            takes_envelope: H::Input::KIND.is_none(),
        });
        self
    }

    /// Gives handlers a value: each call of a handler that takes [`State<T>`](crate::State) gets a clone. One value per type.
    pub fn state<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.states.insert(value);
        self
    }

    /// Finds the key of every message of type `M`, from the message and its headers, for handlers with no
    /// selector of their own. `None` leaves it to the next in line.
    pub fn key_for<M: Message>(
        mut self,
        selector: impl Fn(&M, &Headers) -> Option<Key> + Send + Sync + 'static,
    ) -> Self {
        self.selectors.insert::<M>(Arc::new(selector));
        self
    }

    /// What to do with a message that has no key: reject it, unless set otherwise.
    pub fn missing_key(mut self, policy: MissingKey) -> Self {
        self.settings.missing_key = policy;
        self
    }

    /// What to do with a key that comes again with another body: skip it, unless set otherwise.
    pub fn key_reuse(mut self, policy: KeyReuse) -> Self {
        self.settings.key_reuse = policy;
        self
    }

    /// What a copy does that arrives while the first one runs: wait up to 30 s, unless set otherwise.
    pub fn in_flight(mut self, policy: InFlight) -> Self {
        self.settings.in_flight = policy;
        self
    }

    /// How long one claim holds a connection while it waits for another copy; then it gives the connection back
    /// and asks again, until the waiting time of `in_flight` is over. 1 s.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.settings.lock_timeout = timeout;
        self
    }

    /// The longest that a handler may run. Its statement is ended on the server too. 30 s.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.settings.handler_timeout = timeout;
        self
    }

    /// How long a call keeps trying when the store has not answered once, before it returns
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable). 5 s. A try that has begun is waited for: keep the pool's
    /// own time limit for a connection below this.
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.settings.store_timeout = timeout;
        self
    }

    /// The largest body that is taken. 1 MiB.
    pub fn max_body_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_body_bytes = bytes;
        self
    }

    /// The most messages of one handler that share a transaction when many wait. 64; 1 gives each its own.
    pub fn max_batch(mut self, units: usize) -> Self {
        self.settings.max_batch = units;
        self
    }

    /// The maximum number of inline transactions in flight, for all handlers and [`once`](Inbox::once) together. Messages that
    /// come beyond it wait, and share a transaction where they can. The store's pool without one connection, unless set: that
    /// one is for upkeep. Fast handlers use two for each core.
    pub fn max_in_flight(mut self, transactions: usize) -> Self {
        self.settings.max_in_flight = Some(transactions);
        self
    }

    /// Runs every handler on every delivery, with no markers: the inbox is optional.
    pub fn without_dedup(mut self) -> Self {
        self.settings.dedup_off = true;
        self
    }

    /// How long markers are kept and how they are swept: 7 days, automatically, every hour.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.settings.retention = retention;
        self
    }

    /// Whether metrics are recorded through the `metrics` facade. On.
    pub fn metrics(mut self, enabled: bool) -> Self {
        self.metrics = enabled;
        self
    }

    /// Checks everything that can be checked before the first message: names, states, settings, the store's
    /// schema, which it never alters. Starts the sweeper.
    pub async fn build(mut self) -> Result<Inbox<S>, Error> {
        let checks = Checks {
            handlers: &self.handlers,
            states: &self.states,
            settings: &self.settings,
            stored: &self.stored,
            mode: self.mode,
            has_log: self.log.is_some(),
            for_operators: self.for_operators,
            capacity: self.store.capacity(),
        };
        checks.all()?;
        self.store.check().await?;
        let capacity = self.store.capacity();
        let limit = self.settings.max_in_flight.unwrap_or(capacity.saturating_sub(INLINE_SPARE));
        let permits = Permits::new(limit.min(capacity));
        let handlers = self.handlers.len().max(1);
        for handler in &mut self.handlers {
            handler.batches = Batches::new(self.settings.max_batch, permits.limit() / handlers);
            let size = BatchSize::new(self.stored.work_batch, 1);
            handler.lessons = Mutex::new(Lessons::new(match self.stored.batch_time {
                Some(time) => size.within(time),
                None => size,
            }));
        }
        // Operators make no lanes: how many there are is said by who accepts.
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
        observer.expect(by_kind.keys());
        for (handler, origin) in self.handlers.iter_mut().zip(layout.origins) {
            handler.origin = origin.into();
        }
        let pruning = self.log.map(|log| {
            let (lanes, keep_messages) = (layout.lanes, self.stored.keep_messages);
            (log.prune, Pruning { lanes, keep_messages, retention: self.settings.retention })
        });
        let sweeper = match self.for_operators {
            true => Sweeper::idle(),
            false => Sweeper::start(self.store.clone(), self.settings.retention, pruning, observer),
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
        let parts = Parts { engine, units, log, sweeper, for_operators: self.for_operators };
        Ok(Inbox { parts: Arc::new(parts) })
    }

    fn registrations(&self) -> Vec<Registration> {
        let registration = |handler: &Registered<S>| {
            let kinds = handler.kinds.clone();
            let Settings { start, revive, ordered, .. } = handler.settings;
            let mode = handler.mode(self.mode);
            Registration { name: handler.name.to_string(), kinds, mode, ordered, start, revive }
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
