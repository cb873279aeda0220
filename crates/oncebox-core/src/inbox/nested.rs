//! Refuses calls of a handler to its own inbox, which would wait for itself.

use crate::inbox::InboxStore;
use crate::inbox::engine::Engine;
use crate::{Error, ErrorKind};

tokio::task_local! {
    /// The inboxes whose handlers are running in this task, outermost first.
    static INSIDE: Vec<usize>;
}

impl<S: InboxStore> Engine<S> {
    // The address is unique: an engine lives in an `Arc` and never moves.
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
                 the connection that the handler received, or call after the handler has returned",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::inbox::engine::Engine;
    use crate::lease::{Lease, MemoryStore};
    use crate::{Envelope, ErrorKind, Inbox};

    async fn nothing(_message: Envelope, _lease: &mut Lease) {}

    async fn inbox() -> Inbox<MemoryStore> {
        Inbox::builder(MemoryStore::in_memory()).on_raw("h", ["k"], nothing).build().await.unwrap()
    }

    fn refused(engine: &Engine<MemoryStore>) -> bool {
        engine.refuse_nested().is_err_and(|error| error.kind() == ErrorKind::Nested)
    }

    #[tokio::test]
    async fn only_the_inboxes_around_a_call_refuse_it() {
        let (outer, inner, other) = (inbox().await, inbox().await, inbox().await);
        let engine = |inbox: &Inbox<MemoryStore>| inbox.parts.engine.clone();
        let (outer, inner, other) = (engine(&outer), engine(&inner), engine(&other));
        assert!(!refused(&outer), "no handler runs");
        outer
            .inside(async {
                assert!(refused(&outer) && !refused(&inner));
                inner.inside(async { assert!(refused(&outer) && refused(&inner) && !refused(&other)) }).await;
                assert!(!refused(&inner), "its handler has ended");
                assert!(
                    !tokio::spawn({
                        let outer = outer.clone();
                        async move { refused(&outer) }
                    })
                    .await
                    .unwrap(),
                    "a task of its own"
                );
            })
            .await;
        assert!(!refused(&outer));
    }
}
