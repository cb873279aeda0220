//! The builder of an outbox.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::limits::MAX_BODY_BYTES;
use crate::observe::Observer;
use crate::outbox::mover::MoverView;
use crate::outbox::{Outbox, OutboxParts, OutboxStore};
use crate::store::LaneCount;
use crate::{Error, Inbox, Relay};

/// Builds an outbox. Start with [`Outbox::builder`].
#[must_use]
pub struct OutboxBuilder<S: OutboxStore> {
    store: S,
    lanes: LaneCount,
    max_body_bytes: usize,
    lease: Duration,
    relays: Vec<Relay>,
    metrics: bool,
}

impl<S: OutboxStore> OutboxBuilder<S> {
    pub(crate) fn new(store: S) -> Self {
        Self {
            store,
            lanes: LaneCount(None),
            max_body_bytes: MAX_BODY_BYTES,
            lease: Duration::from_secs(15),
            relays: Vec::new(),
            metrics: true,
        }
    }

    /// The number of lanes of the log. It is fixed when the log is created; another number is refused then. Default: the log's own
    /// number, or 8.
    pub fn lanes(mut self, lanes: u16) -> Self {
        self.lanes = LaneCount(Some(lanes));
        self
    }

    /// The maximum size of a body. Default: 1 MiB.
    pub fn max_body_bytes(mut self, bytes: usize) -> Self {
        self.max_body_bytes = bytes;
        self
    }

    /// Adds a relay, which sends published messages to its sink.
    pub fn relay(mut self, relay: Relay) -> Self {
        self.relays.push(relay);
        self
    }

    /// The time without a heartbeat after which other processes take over the lanes of this one's relays. A sink has a third of it
    /// for each wave. Default: 15 s.
    pub fn lease(mut self, time: Duration) -> Self {
        self.lease = time;
        self
    }

    /// Whether metrics are recorded through the `metrics` facade. Default: on.
    pub fn metrics(mut self, enabled: bool) -> Self {
        self.metrics = enabled;
        self
    }

    /// Builds the outbox. It checks the store's schema, which it never alters, registers the relays, and creates the lanes of the
    /// log if there are none.
    pub async fn build(self) -> Result<Outbox<S>, Error> {
        for relay in &self.relays {
            check_relay(relay)?;
        }
        let relays = self.relays().await?;
        let observer = Observer { enabled: self.metrics };
        observer.describe();
        let parts = OutboxParts {
            store: self.store,
            relays,
            max_body_bytes: self.max_body_bytes,
            observer,
            wake: Notify::new(),
            has_published: AtomicBool::new(false),
            moves: watch::Sender::new(0),
            error: Mutex::default(),
            view: tokio::sync::Mutex::new(MoverView::new()),
        };
        Ok(Outbox { parts: Arc::new(parts) })
    }

    /// The engine of the relays: an inbox whose handlers are relays.
    async fn relays(&self) -> Result<Inbox<S>, Error> {
        let mut relays =
            Inbox::builder(self.store.clone()).relays_only().lease(self.lease).metrics(self.metrics);
        if let LaneCount(Some(lanes)) = self.lanes {
            relays = relays.lanes(lanes);
        }
        for relay in &self.relays {
            relays = relays.relay(relay);
        }
        relays.build().await
    }
}

/// Checks the settings that only a relay has.
fn check_relay(relay: &Relay) -> Result<(), Error> {
    let problem = if relay.in_flight == 0 || relay.open_tasks == 0 {
        "has in_flight or max_open_tasks 0: nothing would ever be sent"
    } else if !relay.retry.is_possible() {
        "has max_attempts 0: nothing would ever be sent"
    } else if relay.kinds.is_empty() {
        "has no kinds: leave kinds() out to send all of them"
    } else if relay.kinds.iter().any(|kind| kind.trim_end_matches('*').contains('*') || kind.ends_with("**"))
    {
        "has a kind with a * that is not its last character: write the beginning of the kinds, such as order.*"
    } else {
        return Ok(());
    };
    Err(Error::configuration(format!("the relay {:?} {problem}", relay.name)))
}

impl<S: OutboxStore> fmt::Debug for OutboxBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxBuilder").field("store", &S::NAME).finish_non_exhaustive()
    }
}
