//! A handler that calls its own inbox would wait for itself; this finds out first.

use crate::inbox::InboxStore;
use crate::inbox::engine::Engine;
use crate::{Error, ErrorKind};

tokio::task_local! {
    /// The inboxes whose handlers are running in this task, outermost first.
    static INSIDE: Vec<usize>;
}

impl<S: InboxStore> Engine<S> {
    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Runs a handler's future as inside this inbox.
    pub(crate) async fn inside<F: Future>(&self, future: F) -> F::Output {
        let mut inside = INSIDE.try_with(Clone::clone).unwrap_or_default();
        inside.push(self.identity());
        INSIDE.scope(inside, future).await
    }

    /// Refuses a call from inside one of this inbox's own handlers.
    pub(crate) fn refuse_nested(&self) -> Result<(), Error> {
        let nested = INSIDE.try_with(|inside| inside.contains(&self.identity())).unwrap_or(false);
        if nested {
            return Err(Error::new(
                ErrorKind::Nested,
                "a handler called its own inbox: it holds the transaction that the call would wait for. Use claim() on \
                 the connection that the handler was lent, or call after the handler has returned",
            ));
        }
        Ok(())
    }
}
