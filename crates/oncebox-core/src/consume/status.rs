//! What a consumer does now, for health checks and operators.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::chain;
use crate::observe::{self, Observer};
use crate::{Error, ErrorKind, Settlement};

/// The state of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsumerState {
    /// It does not run.
    Closed,
    /// It connects, or waits for the next attempt to connect.
    Connecting,
    /// It takes messages.
    Running,
    /// It takes no further messages, and finishes those in flight.
    Draining,
}

impl ConsumerState {
    /// The state's stable short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Connecting => "connecting",
            Self::Running => "running",
            Self::Draining => "draining",
        }
    }
}

/// A view of a consumer at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConsumerStatus {
    /// The name of the source.
    pub source: String,
    /// The state.
    pub state: ConsumerState,
    /// How long it has been in this state.
    pub for_time: Duration,
    /// The number of sessions so far.
    pub sessions: u64,
    /// Deliveries that have arrived.
    pub received: u64,
    /// Deliveries that were acknowledged.
    pub acknowledged: u64,
    /// Deliveries that the source delivers again later.
    pub retried: u64,
    /// Deliveries that were rejected.
    pub rejected: u64,
    /// Deliveries that are not settled yet.
    pub in_flight: usize,
    /// The age of the oldest of them.
    pub oldest_unsettled: Option<Duration>,
    /// Why the source cannot be reached, while that is so.
    pub source_error: Option<String>,
    /// Why deliveries wait for the store, while that is so.
    pub store_error: Option<String>,
    /// Risky settings of the source, each with the remedy.
    pub warnings: Vec<String>,
}

/// Reads the state of a [`Consumer`](crate::Consumer). Clones read the same one.
#[derive(Clone, Debug)]
pub struct ConsumerWatch {
    board: Arc<StatusBoard>,
}

impl ConsumerWatch {
    pub(super) fn new(board: Arc<StatusBoard>) -> Self {
        Self { board }
    }

    /// The state now.
    pub fn status(&self) -> ConsumerStatus {
        self.board.status()
    }

    /// Checks that the source delivers and the store responds. The error says what waits, and why.
    pub fn health(&self) -> Result<(), Error> {
        let status = self.status();
        let waits = |what: &str, why: &str| {
            Err(Error::new(ErrorKind::Unavailable, format!("the source {:?} {what}: {why}", status.source)))
        };
        match (&status.source_error, &status.store_error, status.state) {
            (Some(why), _, _) => waits("cannot be reached", why),
            (None, Some(why), _) => waits("waits for the store", why),
            (None, None, ConsumerState::Connecting) => waits("is not connected yet", "it connects"),
            (None, None, ConsumerState::Closed) => waits("is not consumed", "its consumer does not run"),
            (None, None, ConsumerState::Running | ConsumerState::Draining) => Ok(()),
        }
    }
}

/// Where a consumer notes what it does.
#[derive(Debug)]
pub(super) struct StatusBoard {
    source: String,
    observer: Observer,
    notes: Mutex<Notes>,
}

#[derive(Debug)]
struct Notes {
    state: ConsumerState,
    since: Instant,
    sessions: u64,
    received: u64,
    acknowledged: u64,
    retried: u64,
    rejected: u64,
    in_flight: usize,
    /// When the oldest delivery in flight arrived.
    oldest: Option<Instant>,
    source_error: Option<String>,
    store_error: Option<String>,
    /// The number of deliveries that wait for the store.
    waiting: usize,
    warnings: Vec<String>,
}

/// A delivery that waits for the store, until it is dropped.
pub(super) struct StoreWait<'a>(&'a StatusBoard);

impl StatusBoard {
    pub(super) fn new(source: &str, observer: Observer) -> Self {
        let notes = Notes {
            state: ConsumerState::Closed,
            since: Instant::now(),
            sessions: 0,
            received: 0,
            acknowledged: 0,
            retried: 0,
            rejected: 0,
            in_flight: 0,
            oldest: None,
            source_error: None,
            store_error: None,
            waiting: 0,
            warnings: Vec::new(),
        };
        Self { source: source.to_owned(), observer, notes: Mutex::new(notes) }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn connecting(&self) {
        self.notes().enter(ConsumerState::Connecting);
    }

    pub(super) fn running(&self, warnings: Vec<String>) {
        let mut notes = self.notes();
        notes.enter(ConsumerState::Running);
        notes.sessions += 1;
        self.observer.gauge_source(observe::SOURCE_CONNECTED, &self.source, 1);
        // Each session finds the same ones.
        for warning in warnings.iter().filter(|warning| !notes.warnings.contains(warning)) {
            tracing::warn!(source = self.source, "{warning}");
        }
        notes.warnings = warnings;
        if notes.source_error.take().is_some() {
            tracing::info!(source = self.source, "connected again");
        }
    }

    /// Notes why there is no session. It logs changes only, so that an outage does not fill the log.
    pub(super) fn lost(&self, error: &Error) {
        let text = chain(error);
        let mut notes = self.notes();
        if notes.source_error.as_ref() != Some(&text) {
            tracing::error!(
                source = self.source,
                error = text,
                "the source cannot be reached: another attempt follows"
            );
        }
        notes.source_error = Some(text);
        notes.enter(ConsumerState::Connecting);
        self.observer.gauge_source(observe::SOURCE_CONNECTED, &self.source, 0);
    }

    pub(super) fn draining(&self) {
        self.notes().enter(ConsumerState::Draining);
    }

    pub(super) fn closed(&self) {
        let mut notes = self.notes();
        notes.enter(ConsumerState::Closed);
        self.observer.gauge_source(observe::SOURCE_CONNECTED, &self.source, 0);
        self.observer.gauge_source(observe::SOURCE_IN_FLIGHT, &self.source, 0);
        (notes.in_flight, notes.oldest, notes.source_error) = (0, None, None);
    }

    pub(super) fn received(&self, deliveries: usize) {
        self.notes().received += deliveries as u64;
        self.observer.count_source(observe::SOURCE_RECEIVED, &self.source, deliveries as u64);
    }

    pub(super) fn settled(&self, settlement: Settlement) {
        let mut notes = self.notes();
        let (count, metric) = match settlement {
            Settlement::Ack => (&mut notes.acknowledged, observe::SOURCE_ACKNOWLEDGED),
            Settlement::Retry { .. } => (&mut notes.retried, observe::SOURCE_RETRIED),
            Settlement::Reject => (&mut notes.rejected, observe::SOURCE_REJECTED),
        };
        *count += 1;
        self.observer.count_source(metric, &self.source, 1);
    }

    pub(super) fn flies(&self, (in_flight, oldest): (usize, Option<Duration>)) {
        let mut notes = self.notes();
        if notes.in_flight != in_flight {
            self.observer.gauge_source(observe::SOURCE_IN_FLIGHT, &self.source, in_flight);
        }
        notes.in_flight = in_flight;
        notes.oldest = oldest.and_then(|age| Instant::now().checked_sub(age));
    }

    /// Notes that a delivery waits for the store. It logs changes only.
    pub(super) fn store_waits(&self, error: &Error) -> StoreWait<'_> {
        let mut notes = self.notes();
        notes.waiting += 1;
        if notes.store_error.is_none() {
            let text = chain(error);
            tracing::error!(
                source = self.source,
                error = text,
                "deliveries wait: the store does not respond"
            );
            notes.store_error = Some(text);
        }
        StoreWait(self)
    }

    /// Whether deliveries wait for the store. No further ones are taken meanwhile.
    pub(super) fn is_store_away(&self) -> bool {
        self.notes().waiting > 0
    }

    fn status(&self) -> ConsumerStatus {
        let notes = self.notes();
        ConsumerStatus {
            source: self.source.clone(),
            state: notes.state,
            for_time: notes.since.elapsed(),
            sessions: notes.sessions,
            received: notes.received,
            acknowledged: notes.acknowledged,
            retried: notes.retried,
            rejected: notes.rejected,
            in_flight: notes.in_flight,
            oldest_unsettled: notes.oldest.map(|oldest| oldest.elapsed()),
            source_error: notes.source_error.clone(),
            store_error: notes.store_error.clone(),
            warnings: notes.warnings.clone(),
        }
    }
}

impl Notes {
    fn enter(&mut self, state: ConsumerState) {
        if self.state != state {
            (self.state, self.since) = (state, Instant::now());
        }
    }
}

impl Drop for StoreWait<'_> {
    fn drop(&mut self) {
        let mut notes = self.0.notes();
        notes.waiting -= 1;
        if notes.waiting == 0 {
            notes.store_error = None;
        }
    }
}
