//! The shared state of all parts of an inbox. After `build` only the statistics of the handlers change.

use std::collections::HashMap;
use std::sync::Arc;

use crate::handler::{Returned, Selectors, States};
use crate::inbox::InboxStore;
use crate::inbox::builder::InboxSettings;
use crate::inbox::doors::Doors;
use crate::inbox::permits::Permits;
use crate::inbox::registered::Registered;
use crate::observe::Observer;
use crate::outbox::AnyOutbox;
use crate::store::Captured;
use crate::{Error, Mode};

/// The store, the handlers and the settings of an inbox.
pub(crate) struct Engine<S: InboxStore> {
    pub(crate) store: S,
    pub(crate) handlers: Vec<Registered<S>>,
    pub(crate) by_kind: HashMap<String, Vec<usize>>,
    pub(crate) states: Arc<States>,
    pub(crate) selectors: Selectors,
    pub(crate) settings: InboxSettings,
    pub(crate) observer: Observer,
    pub(crate) mode: Mode,
    pub(crate) doors: Doors,
    pub(crate) permits: Permits,
    /// The outbox through which handlers publish, if there is one.
    pub(crate) outbox: Option<Arc<dyn AnyOutbox<S>>>,
}

impl<S: InboxStore> Engine<S> {
    /// The names of the handlers in registration order, each with its kinds.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.handlers.iter().map(|handler| (&*handler.name, &handler.kinds[..]))
    }

    pub(crate) fn registered(&self, name: &str) -> Result<&Registered<S>, Error> {
        self.handlers.iter().find(|registered| &*registered.name == name).ok_or_else(|| {
            let names: Vec<_> = self.names().map(|(name, _)| name).collect();
            Error::configuration(format!(
                "no handler is registered as {name:?}; there are: {}",
                names.join(", ")
            ))
        })
    }

    /// The name that a handler's markers use.
    pub(crate) fn origin_of<'n>(&'n self, handler: &'n str) -> &'n str {
        self.registered(handler).map_or(handler, |registered| &*registered.origin)
    }

    /// Checks the messages that handlers returned, and gives them their ids.
    pub(crate) fn to_capture(&self, returned: &mut [Returned]) -> Result<Vec<Captured>, Error> {
        let published = returned.iter_mut().flat_map(|one| std::mem::take(&mut one.published));
        match &self.outbox {
            Some(outbox) => published.map(|envelope| outbox.to_capture(envelope)).collect(),
            // `build()` refuses such a handler.
            None => Ok(Vec::new()),
        }
    }

    /// Wakes the mover of the outbox after a commit, if handlers have published.
    pub(crate) fn committed(&self) {
        if let Some(outbox) = &self.outbox {
            outbox.committed();
        }
    }

    /// Counts the messages of a detached run, and wakes the mover of the outbox.
    pub(crate) fn captured(&self, messages: &[Captured]) {
        if let Some(outbox) = &self.outbox
            && !messages.is_empty()
        {
            outbox.captured(messages);
        }
    }
}
