//! A handler under its name, with what the inbox has learnt about it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Mode;
use crate::handler::{Erased, Requirement, Settings};
use crate::inbox::InboxStore;
use crate::inbox::stored::{DetachedSlots, Lessons};
use crate::inbox::units::Batches;
use crate::store::Guarantee;

/// A handler under its name.
pub(crate) struct Registered<S: InboxStore> {
    pub(crate) index: usize,
    pub(crate) name: Arc<str>,
    /// The name under which it was registered first: markers and effect ids are made with it.
    pub(crate) origin: Arc<str>,
    pub(crate) kinds: Vec<String>,
    pub(crate) settings: Settings,
    pub(crate) handler: Box<dyn Erased<S>>,
    /// The states that its parameters ask for.
    pub(crate) requirements: Vec<Requirement>,
    /// A handler of envelopes names its kinds; a typed one has the kind of its message.
    pub(crate) takes_envelope: bool,
    /// Its units that wait for a transaction.
    pub(crate) batches: Batches,
    pub(crate) lessons: Mutex<Lessons>,
    /// Where it runs outside of transactions.
    pub(crate) detached: Option<DetachedSlots>,
}

impl<S: InboxStore> Registered<S> {
    /// How its messages reach it in an inbox of that mode. Messages of a detached handler wait in the log in any case.
    pub(crate) fn mode(&self, of_inbox: Mode) -> Mode {
        if self.detached.is_some() { of_inbox.spill() } else { of_inbox }
    }

    /// Whether its units never share a transaction. Where effects are outside of the transaction, a failure of one unit would run the
    /// effects of the others twice.
    pub(crate) fn runs_alone(&self) -> bool {
        self.settings.isolated || S::GUARANTEE != Guarantee::Exactly
    }

    /// What its visits to lanes have taught.
    pub(crate) fn lessons(&self) -> MutexGuard<'_, Lessons> {
        self.lessons.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
