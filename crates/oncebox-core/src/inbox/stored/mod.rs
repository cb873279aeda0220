//! The stored inbox: accept now, process later, on the log.
//!
//! [`accept`](crate::Inbox::accept) appends to the log. Workers read it lane by lane and run the handlers in the lane's
//! transaction. A failed message is scheduled for retry as a task. After its last attempt it becomes a dead letter, which waits
//! for an operator.

mod accept;
mod account;
mod appender;
mod care;
mod chunks;
mod completer;
mod detached;
mod incarnation;
mod intake;
mod lanes;
mod lessons;
mod operators;
mod options;
mod presence;
mod pruner;
mod queue;
mod referee;
mod relays;
mod setback;
mod settle;
mod unknown;
mod visit;
mod work;
mod worker;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

pub use accept::Accept;
pub(crate) use accept::lane_of;
pub(crate) use account::{chance, error_text};
pub(crate) use detached::DetachedSlots;
use detached::{Bodies, DetachedRuns};
use intake::Intake;
use lanes::LaneVisitor;
pub(crate) use lessons::Lessons;
pub use operators::Operators;
use presence::Presence;
pub use pruner::PruneReport;
use pruner::prune_boxed;
pub(crate) use pruner::{Prune, Pruning, prune, prune_sent};
use relays::RelayRuns;
pub(crate) use relays::{RelayHandler, sink_limit};
pub(crate) use work::unstorable_text;
pub use worker::WorkReport;
use worker::Workers;

use crate::inbox::engine::Engine;
use crate::inbox::units::{SpillInto, spill_boxed};
use crate::inbox::{AcceptFn, InboxStore, accept_boxed};
use crate::store::{
    Care, DeadLetter, DeadLetters, HandlerId, LaneCount, Log, Operate, Processes, Ranges, Survey, Work,
};
use crate::{Error, ErrorKind, Retry};

/// A store with a log, which keeps messages for later. Every type that implements the roles implements it.
pub trait LogStore:
    InboxStore + Log + Work + Care + Processes + Ranges + DeadLetters + Operate + Survey
{
}

impl<S: InboxStore + Log + Work + Care + Processes + Ranges + DeadLetters + Operate + Survey> LogStore for S {}

pub(crate) type OnDead = Arc<dyn Fn(&DeadLetter) + Send + Sync>;

/// The settings of an inbox with a log.
#[derive(Clone)]
pub(crate) struct StoredSettings {
    pub(crate) lanes: LaneCount,
    pub(crate) workers: Option<usize>,
    pub(crate) work_batch: usize,
    pub(crate) batch_time: Option<Duration>,
    pub(crate) poll_every: Duration,
    pub(crate) retry: Retry,
    pub(crate) keep_messages: Duration,
    pub(crate) notify: bool,
    pub(crate) on_dead: Option<OnDead>,
    pub(crate) lease: Duration,
}

/// The functions of an inbox that need a log. Function pointers, because not every store has a log.
pub(crate) struct LogAccess<S: InboxStore> {
    pub(crate) prune: Prune<S>,
    pub(crate) spill: SpillInto<S>,
    pub(crate) accept: AcceptFn<S>,
}

impl<S: InboxStore> Clone for LogAccess<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: InboxStore> Copy for LogAccess<S> {}

impl<S: LogStore> LogAccess<S> {
    fn new() -> Self {
        Self { prune: prune_boxed::<S>, spill: spill_boxed::<S>, accept: accept_boxed::<S> }
    }
}

impl Default for StoredSettings {
    fn default() -> Self {
        Self {
            lanes: LaneCount(None),
            workers: None,
            work_batch: 500,
            batch_time: None,
            poll_every: Duration::from_secs(1),
            retry: Retry::default(),
            keep_messages: Duration::from_secs(24 * 60 * 60),
            notify: false,
            on_dead: None,
            lease: Duration::from_secs(15),
        }
    }
}

/// The default number of workers, if the pool has enough connections.
const WORKERS: usize = 8;

impl StoredSettings {
    /// The number of workers for a store with this capacity. By default they use at most half of it: accepting and upkeep need
    /// connections too.
    pub(crate) fn workers_of(&self, capacity: usize) -> usize {
        // A store with one connection still needs one worker.
        self.workers.unwrap_or_else(|| WORKERS.min(capacity / 2)).max(1)
    }
}

impl fmt::Debug for StoredSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredSettings")
            .field("lanes", &self.lanes)
            .field("workers", &self.workers)
            .field("work_batch", &self.work_batch)
            .finish_non_exhaustive()
    }
}

/// The shared state of all parts of an inbox with a log.
#[derive(Debug)]
pub(crate) struct LogShared {
    pub(crate) settings: StoredSettings,
    pub(crate) lanes: u16,
    /// The ids of the handlers in the database, in registration order.
    pub(crate) ids: Vec<HandlerId>,
    /// Notified when there may be work.
    pub(crate) wake: Notify,
    /// The error that stops the workers, if there is one.
    error: Mutex<Option<String>>,
}

impl LogShared {
    pub(crate) fn new(settings: StoredSettings, lanes: u16, ids: Vec<HandlerId>) -> Self {
        Self { settings, lanes, ids, wake: Notify::new(), error: Mutex::default() }
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        lock(&self.error).clone()
    }

    /// Records or clears the error. It logs changes only, so that an outage does not fill the log.
    fn note_error(&self, error: Option<String>) {
        let mut noted = lock(&self.error);
        match (&*noted, &error) {
            (None, Some(text)) => {
                tracing::error!(error = text, "the workers wait: the store does not respond");
            }
            (Some(_), None) => tracing::info!("the store responds again: the workers go on"),
            _ => {}
        }
        *noted = error;
    }
}

/// The parts of an inbox with a log.
pub(crate) struct LogParts<S: InboxStore> {
    pub(crate) shared: Arc<LogShared>,
    pub(crate) intake: Arc<Intake<S>>,
    pub(crate) workers: Workers<S>,
}

impl<S: InboxStore> LogParts<S> {
    /// Creates the parts, with this maximum number of appending transactions.
    pub(crate) fn new(engine: &Arc<Engine<S>>, shared: Arc<LogShared>, max_appenders: usize) -> Self {
        let intake = Arc::new(Intake::new(engine.clone(), shared.clone(), max_appenders));
        let presence = Arc::new(Presence::new(engine.clone(), shared.clone()));
        let lanes = Arc::new(LaneVisitor::new(engine.clone(), shared.clone(), presence.clone()));
        let bodies = Arc::<Bodies>::default();
        let detached = Arc::new(DetachedRuns::new(lanes.clone(), bodies.clone()));
        let relays = Arc::new(RelayRuns::new(lanes.clone(), bodies));
        let workers = Workers::new(lanes, detached, relays);
        Self { shared, intake, workers }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error of an inbox without a log.
pub(crate) fn not_stored() -> Error {
    Error::new(
        ErrorKind::Configuration,
        "this inbox handles messages inline and has no log: call .stored() or .mode(…) on its builder",
    )
}
