//! A registered handler and what the inbox has learned about it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Mode;
use crate::handler::{Erased, Requirement, Settings};
use crate::inbox::InboxStore;
use crate::inbox::stored::{DetachedSlots, Lessons};
use crate::inbox::units::Batches;
use crate::outbox::RelayLink;
use crate::store::Guarantee;

/// A registered handler.
pub(crate) struct Registered<S: InboxStore> {
    pub(crate) index: usize,
    pub(crate) name: Arc<str>,
    /// The name of its first registration. Markers and effect ids use it, so a renamed handler keeps them.
    pub(crate) origin: Arc<str>,
    pub(crate) kinds: Vec<String>,
    pub(crate) settings: Settings,
    pub(crate) handler: Box<dyn Erased<S>>,
    /// The states that its parameters need.
    pub(crate) requirements: Vec<Requirement>,
    /// Whether it takes undecoded envelopes. Such a handler names its kinds; a typed one has the kind of its message.
    pub(crate) takes_envelope: bool,
    /// Its units that wait for a transaction, or run in one.
    pub(crate) batches: Batches,
    pub(crate) lessons: Mutex<Lessons>,
    /// The concurrency limit of a detached handler; `None` for a handler that runs in transactions.
    pub(crate) detached: Option<DetachedSlots>,
    /// The sink of a relay; `None` for a handler.
    pub(crate) relay: Option<RelayLink>,
}

impl<S: InboxStore> Registered<S> {
    /// How its messages reach it in an inbox of this mode. Messages of a detached handler always go through the log.
    pub(crate) fn mode(&self, of_inbox: Mode) -> Mode {
        if self.detached.is_some() { of_inbox.spill() } else { of_inbox }
    }

    /// Whether its units never share a transaction. Where effects are outside of the transaction, the failure of one unit would
    /// run the effects of the others twice.
    pub(crate) fn runs_alone(&self) -> bool {
        self.settings.isolated || S::GUARANTEE != Guarantee::Exactly
    }

    /// What visits to its lanes have learned.
    pub(crate) fn lessons(&self) -> MutexGuard<'_, Lessons> {
        // Lessons only affect speed, so they are used even after a panic under the lock.
        self.lessons.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
