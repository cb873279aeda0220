//! The outbox: publishes messages in the caller's own transaction, and moves them to the log after its commit.
//!
//! [`Outbox::publish`] writes the message beside the caller's other rows. The [mover](mover) takes committed messages to the
//! log, where the handlers of their kind receive them.

mod builder;
mod mover;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};

pub use builder::OutboxBuilder;
use mover::{Mover, MoverView};

use crate::inbox::LogStore;
use crate::limits::{check_envelope, check_order_by};
use crate::observe::Observer;
use crate::store::{Capture, Captured, OutboxStatus, Store};
use crate::{Envelope, Error, ErrorKind, Message, MessageId, name};

/// A store with an outbox. Every type that implements the roles implements it.
pub trait OutboxStore: LogStore + Capture {}

impl<S: LogStore + Capture> OutboxStore for S {}

/// The outbox. Clones are cheap and share one outbox.
pub struct Outbox<S: OutboxStore> {
    parts: Arc<OutboxParts<S>>,
}

/// The shared state of an outbox and its mover.
pub(crate) struct OutboxParts<S> {
    store: S,
    max_body_bytes: usize,
    observer: Observer,
    /// Notified when a transaction has published messages.
    wake: Notify,
    /// Whether messages were published since the mover was woken last.
    has_published: AtomicBool,
    /// The number of moves that took messages to the log.
    moves: watch::Sender<u64>,
    /// The error that stops the mover, if there is one.
    error: Mutex<Option<String>>,
    /// What the mover of this process knows. Locked while it moves: two moves of one process only wait for each other.
    view: tokio::sync::Mutex<MoverView>,
}

impl<S: OutboxStore> Outbox<S> {
    /// Starts building an outbox on a store.
    pub fn builder(store: S) -> OutboxBuilder<S> {
        OutboxBuilder::new(store)
    }

    /// Publishes a message in the caller's transaction. It is delivered if that transaction commits, and never if it rolls back.
    ///
    /// `conn` is the connection of the transaction: `&mut *tx`. Messages with equal ordering keys are delivered in the order of
    /// these calls. If several transactions publish under one ordering key, each must lock the row that the key stands for before
    /// it publishes.
    pub async fn publish<M: Message>(&self, conn: &mut S::Conn, message: &M) -> Result<MessageId, Error> {
        self.publish_envelope(conn, Envelope::of(message)?).await
    }

    /// Publishes several messages of one type with one statement, in their order.
    pub async fn publish_all<'m, M: Message>(
        &self,
        conn: &mut S::Conn,
        messages: impl IntoIterator<Item = &'m M> + Send,
    ) -> Result<Vec<MessageId>, Error> {
        let envelopes = messages.into_iter().map(Envelope::of).collect::<Result<Vec<_>, _>>()?;
        self.publish_envelopes(conn, envelopes).await
    }

    /// Publishes an encoded message, with its headers, ordering key and due time.
    pub async fn publish_envelope(&self, conn: &mut S::Conn, envelope: Envelope) -> Result<MessageId, Error> {
        let captured = [self.parts.to_capture(envelope)?];
        self.parts.capture(conn, &captured).await?;
        Ok(captured[0].id)
    }

    /// Publishes encoded messages with one statement, in their order.
    pub async fn publish_envelopes(
        &self,
        conn: &mut S::Conn,
        envelopes: impl IntoIterator<Item = Envelope> + Send,
    ) -> Result<Vec<MessageId>, Error> {
        let captured = envelopes
            .into_iter()
            .map(|envelope| self.parts.to_capture(envelope))
            .collect::<Result<Vec<_>, _>>()?;
        if captured.is_empty() {
            return Ok(Vec::new());
        }
        self.parts.capture(conn, &captured).await?;
        Ok(captured.iter().map(|message| message.id).collect())
    }

    /// Wakes the mover. Call it after the commit of a transaction that has published: otherwise its messages wait until the mover
    /// looks again, up to 100 ms.
    pub fn wake(&self) {
        self.parts.wake.notify_one();
    }

    /// Moves messages until `shutdown` is ready. Run it in any number of processes: one of them moves at a time.
    ///
    /// An inbox that has this outbox ([`InboxBuilder::outbox`](crate::InboxBuilder::outbox)) runs it in its own
    /// [`run`](crate::Inbox::run).
    pub async fn run(&self, shutdown: impl Future<Output = ()> + Send) {
        Mover::new(&self.parts).run(shutdown).await;
    }

    /// Moves all committed messages to the log now, and returns their number. For use from a scheduler such as cron, and in tests.
    pub async fn flush(&self) -> Result<u64, Error> {
        Mover::new(&self.parts).flush().await
    }

    /// Reads how many messages wait for the mover.
    pub async fn status(&self) -> Result<OutboxStatus, Error> {
        self.parts.store.outbox_status().await
    }

    /// Checks that the mover works. The error says why it does not.
    pub fn health(&self) -> Result<(), Error> {
        match &*self.parts.last_error() {
            Some(error) => {
                Err(Error::new(ErrorKind::Unavailable, format!("the mover of the outbox waits: {error}")))
            }
            None => Ok(()),
        }
    }

    /// The store underneath.
    pub fn store(&self) -> &S {
        &self.parts.store
    }
}

impl<S> OutboxParts<S> {
    /// Checks a message and gives it an id.
    fn to_capture(&self, envelope: Envelope) -> Result<Captured, Error> {
        name::check("kind", &envelope.kind)?;
        check_envelope(&envelope, self.max_body_bytes).map_err(|refused| refused.to_error())?;
        check_order_by(envelope.order_by.as_ref()).map_err(|refused| refused.to_error())?;
        envelope.key.as_ref().map_or(Ok(()), name::check_key)?;
        Ok(Captured {
            id: MessageId::new(),
            fingerprint: envelope.fingerprint(),
            kind: envelope.kind,
            key: envelope.key,
            order_by: envelope.order_by,
            headers: envelope.headers,
            body: envelope.body,
            occurred_at: envelope.occurred_at,
            due_at: envelope.due_at,
        })
    }

    /// Counts published messages. A handler's commit wakes the mover.
    fn captured(&self, messages: &[Captured]) {
        self.observer.published(messages);
        self.has_published.store(true, Ordering::Release);
    }

    fn last_error(&self) -> MutexGuard<'_, Option<String>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: OutboxStore> OutboxParts<S> {
    async fn capture(&self, conn: &mut S::Conn, messages: &[Captured]) -> Result<(), Error> {
        self.store.capture(conn, messages).await?;
        self.captured(messages);
        Ok(())
    }
}

/// An outbox without the type of its operations, for an inbox whose store may have none.
pub(crate) trait AnyOutbox<S: Store>: Send + Sync {
    /// Checks a message, and gives it an id.
    fn to_capture(&self, envelope: Envelope) -> Result<Captured, Error>;

    /// Writes messages to the outbox, in the transaction of a handler.
    fn capture_in<'a>(
        &'a self,
        tx: &'a mut S::Tx,
        messages: &'a [Captured],
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Wakes the mover after a commit, if messages were published since it was woken last.
    fn committed(&self);

    /// Counts messages that the store wrote to the outbox by itself, and wakes the mover.
    fn captured(&self, messages: &[Captured]);

    /// Notified after each move.
    fn moves(&self) -> watch::Receiver<u64>;

    /// Moves messages until `shutdown` is ready.
    fn run<'a>(&'a self, shutdown: BoxFuture<'a, ()>) -> BoxFuture<'a, ()>;

    /// Moves all committed messages now.
    fn flush(&self) -> BoxFuture<'_, Result<u64, Error>>;

    /// The error that stops the mover, if there is one.
    fn health(&self) -> Result<(), Error>;
}

impl<S: OutboxStore> AnyOutbox<S> for Outbox<S> {
    fn to_capture(&self, envelope: Envelope) -> Result<Captured, Error> {
        self.parts.to_capture(envelope)
    }

    fn capture_in<'a>(
        &'a self,
        tx: &'a mut S::Tx,
        messages: &'a [Captured],
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.parts.store.capture_in(tx, messages).await?;
            self.parts.captured(messages);
            Ok(())
        })
    }

    // Another transaction may have published, and commit later. The mover looks again within milliseconds after it was woken.
    fn committed(&self) {
        if self.parts.has_published.swap(false, Ordering::AcqRel) {
            self.wake();
        }
    }

    fn captured(&self, messages: &[Captured]) {
        self.parts.observer.published(messages);
        self.wake();
    }

    fn moves(&self) -> watch::Receiver<u64> {
        self.parts.moves.subscribe()
    }

    fn run<'a>(&'a self, shutdown: BoxFuture<'a, ()>) -> BoxFuture<'a, ()> {
        Box::pin(self.run(shutdown))
    }

    fn flush(&self) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(self.flush())
    }

    fn health(&self) -> Result<(), Error> {
        self.health()
    }
}

impl<S: OutboxStore> Clone for Outbox<S> {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone() }
    }
}

impl<S: OutboxStore> fmt::Debug for Outbox<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("store", &S::NAME).finish_non_exhaustive()
    }
}
