//! The builder of an outbox.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, watch};

use crate::Error;
use crate::limits::MAX_BODY_BYTES;
use crate::observe::Observer;
use crate::outbox::mover::MoverView;
use crate::outbox::{Outbox, OutboxParts, OutboxStore};
use crate::store::LaneCount;

/// Builds an outbox. Start with [`Outbox::builder`].
#[must_use]
pub struct OutboxBuilder<S: OutboxStore> {
    store: S,
    lanes: LaneCount,
    max_body_bytes: usize,
    metrics: bool,
}

impl<S: OutboxStore> OutboxBuilder<S> {
    pub(crate) fn new(store: S) -> Self {
        Self { store, lanes: LaneCount(None), max_body_bytes: MAX_BODY_BYTES, metrics: true }
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

    /// Whether metrics are recorded through the `metrics` facade. Default: on.
    pub fn metrics(mut self, enabled: bool) -> Self {
        self.metrics = enabled;
        self
    }

    /// Builds the outbox. It checks the store's schema, which it never alters, and creates the lanes of the log if there are none.
    pub async fn build(self) -> Result<Outbox<S>, Error> {
        self.lanes.check()?;
        self.store.check().await?;
        self.store.register(Some(self.lanes), &[]).await?;
        let observer = Observer { enabled: self.metrics };
        observer.describe();
        let parts = OutboxParts {
            store: self.store,
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
}

impl<S: OutboxStore> fmt::Debug for OutboxBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxBuilder").field("store", &S::NAME).finish_non_exhaustive()
    }
}
