//! What can be seen of the log. Nothing here counts messages: it answers at any size.

use crate::inbox::Inbox;
use crate::inbox::stored::LogStore;
use crate::store::{HandlerStatus, MessageStatus, Place, StoredMessage, Task, UnhandledKind};
use crate::{Error, Key};

impl<S: LogStore> Inbox<S> {
    /// All handlers that the database knows, by name, and how they are doing.
    pub async fn handler_statuses(&self) -> Result<Vec<HandlerStatus>, Error> {
        self.stored()?;
        self.inner.store.handler_statuses().await
    }

    /// The next messages that wait for a handler of this inbox.
    pub async fn pending(&self, handler: &str, limit: u32) -> Result<Vec<StoredMessage>, Error> {
        let stored = self.stored()?;
        let handler = self.registered(handler)?;
        self.inner.store.pending(stored.ids[handler.index], limit).await
    }

    /// Messages of a lane behind a position, each with what became of it. From the beginning: behind position 0.
    pub async fn messages(&self, lane: u16, behind: i64, limit: u32) -> Result<Vec<MessageStatus>, Error> {
        let stored = self.stored()?;
        if lane >= stored.lanes {
            return Err(Error::configuration(format!(
                "there is no lane {lane}: the log has lanes 0 to {}",
                stored.lanes.saturating_sub(1)
            )));
        }
        self.inner.store.messages(lane, behind, limit).await
    }

    /// The message that sits in a place, with what became of it; `None` where there is none any more.
    pub async fn message(&self, place: Place) -> Result<Option<MessageStatus>, Error> {
        let found = self.messages(place.lane, place.pos - 1, 1).await?;
        Ok(found.into_iter().find(|found| found.message.place == place))
    }

    /// Where the message of that kind and key sits, if it was accepted and is still there.
    pub async fn find_message(&self, kind: &str, key: impl Into<Key>) -> Result<Option<Place>, Error> {
        self.stored()?;
        self.inner.store.find_message(kind, &key.into()).await
    }

    /// Messages set apart, for one handler or all, the next first.
    pub async fn tasks(&self, handler: Option<&str>, limit: u32) -> Result<Vec<Task>, Error> {
        self.stored()?;
        self.inner.store.tasks(handler, limit).await
    }

    /// Kinds of which messages were accepted, and that no handler takes. They wait, and are never pruned.
    pub async fn unhandled_kinds(&self) -> Result<Vec<UnhandledKind>, Error> {
        self.stored()?;
        self.inner.store.unhandled_kinds().await
    }
}
