//! The stored inbox: accept now, process later, on the log.
//!
//! [`accept`](crate::Inbox::accept) appends to the log; workers read it lane by lane and run the handlers in the lane's
//! transaction. What fails is set apart as a task; what fails for good is a dead letter, which is the operator's.

mod accept;
mod appender;
mod care;
mod completer;
mod detached;
mod incarnation;
mod lessons;
mod operate;
mod options;
mod presence;
mod pruner;
mod queue;
mod setback;
mod settle;
mod spill;
mod survey;
mod unknown;
mod visit;
mod work;
mod worker;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

pub use accept::Accept;
use completer::Completer;
use detached::Bodies;
pub(crate) use detached::Slots;
pub(crate) use lessons::Lessons;
use presence::Presence;
pub use pruner::PruneReport;
use pruner::prune_boxed;
pub(crate) use pruner::{Prune, Pruning};
use queue::Queue;
use spill::{SpillInto, spill_boxed};
use unknown::UnknownCommit;
pub use worker::WorkReport;

use crate::inbox::InboxStore;
use crate::store::{DeadLetter, DeadLetters, HandlerId, Lanes, Log, Operate, Processes, Survey, Work};
use crate::{Error, ErrorKind, Retry};

/// A store that keeps messages for later. Implemented by whatever implements the roles.
pub trait LogStore: InboxStore + Log + Work + Processes + DeadLetters + Operate + Survey {}

impl<S: InboxStore + Log + Work + Processes + DeadLetters + Operate + Survey> LogStore for S {}

pub(crate) type OnDead = Arc<dyn Fn(&DeadLetter) + Send + Sync>;

/// What can be set for a stored inbox.
#[derive(Clone)]
pub(crate) struct StoredSettings {
    pub(crate) lanes: Lanes,
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

/// What an inbox does with the log of its store, which not every store has.
pub(crate) struct LogAccess<S> {
    pub(crate) prune: Prune<S>,
    pub(crate) spill: SpillInto<S>,
}

impl<S> Clone for LogAccess<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for LogAccess<S> {}

impl<S: LogStore> LogAccess<S> {
    fn new() -> Self {
        Self { prune: prune_boxed::<S>, spill: spill_boxed::<S> }
    }
}

impl Default for StoredSettings {
    fn default() -> Self {
        Self {
            lanes: Lanes(None),
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

/// Workers of a store with many connections, unless set.
const WORKERS: usize = 8;

impl StoredSettings {
    /// How many workers there are on a store that can have so many transactions in flight. Others need connections too.
    pub(crate) fn workers_of(&self, capacity: usize) -> usize {
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

/// What an inbox with a log has beside the rest.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) settings: StoredSettings,
    pub(crate) lanes: u16,
    /// The handlers' numbers in the database, in the order of the handlers.
    pub(crate) ids: Vec<HandlerId>,
    /// Messages that wait to be accepted.
    queue: Queue,
    /// Told when there may be work.
    pub(crate) wake: Notify,
    /// Whether other processes are about to be told.
    announcing: AtomicBool,
    /// What keeps the workers from working, if anything does.
    trouble: Mutex<Option<String>>,
    /// Commits whose answer was lost: where they would have led, and with how many messages.
    unknown: Mutex<HashMap<(HandlerId, u16), UnknownCommit>>,
    presence: Presence,
    /// Held by whatever runs outside of transactions; alone by what may kill the process.
    alone: Arc<tokio::sync::RwLock<()>>,
    /// Whether a message of which a process may have died waits for the others to end, or runs.
    has_suspect: AtomicBool,
    bodies: Arc<Bodies>,
    completer: Completer,
    /// Kinds that nobody handles and of which it was said.
    unhandled: Mutex<HashSet<String>>,
}

impl Stored {
    pub(crate) fn new(
        settings: StoredSettings,
        lanes: u16,
        ids: Vec<HandlerId>,
        max_appenders: usize,
    ) -> Self {
        Self {
            settings,
            lanes,
            ids,
            queue: Queue::new(lanes, max_appenders),
            wake: Notify::new(),
            announcing: AtomicBool::new(false),
            trouble: Mutex::default(),
            unknown: Mutex::default(),
            presence: Presence::default(),
            alone: Arc::default(),
            has_suspect: AtomicBool::new(false),
            bodies: Arc::default(),
            completer: Completer::default(),
            unhandled: Mutex::default(),
        }
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    /// Whether it was not said before that nobody handles this kind. Of very many kinds it is said no more.
    pub(crate) fn is_news(&self, kind: &str) -> bool {
        const KINDS: usize = 1000;
        let mut unhandled = lock(&self.unhandled);
        !unhandled.contains(kind) && unhandled.len() < KINDS && unhandled.insert(kind.to_owned())
    }

    fn unknown(&self) -> MutexGuard<'_, HashMap<(HandlerId, u16), UnknownCommit>> {
        lock(&self.unknown)
    }

    /// Logs when it changes, not every time.
    fn note_trouble(&self, trouble: Option<String>) {
        let mut noted = lock(&self.trouble);
        match (&*noted, &trouble) {
            (None, Some(text)) => {
                tracing::error!(error = text, "the workers wait: the store does not answer");
            }
            (Some(_), None) => tracing::info!("the workers go on"),
            _ => {}
        }
        *noted = trouble;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What those who ask an inline inbox for its log are told.
fn not_stored() -> Error {
    Error::new(
        ErrorKind::Configuration,
        "this inbox handles messages inline and has no log: call .stored() or .mode(…) on its builder",
    )
}
