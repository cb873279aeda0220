//! The outbox: publishes messages in the caller's own transaction, and moves them to the log after its commit.
//!
//! [`Outbox::publish`] writes the message beside the caller's other rows. The [mover](mover) takes committed messages to the
//! log, where the handlers of their kind receive them.

mod builder;
mod mover;
mod relay;
mod sink;
mod upkeep;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use futures_util::future::join;
use tokio::sync::{Notify, oneshot, watch};

pub use builder::OutboxBuilder;
use mover::{Mover, MoverView};
pub use relay::Relay;
pub(crate) use relay::RelayLink;
pub(crate) use sink::{ErasedSink, unknown};
pub use sink::{Outgoing, Sink, Verdict};
use upkeep::UpkeepScope;

use crate::inbox::LogStore;
use crate::limits::{check_envelope, check_order_by};
use crate::observe::Observer;
use crate::store::{
    Capture, Captured, OutboxSize, OutboxStatus, Place, Store, StoredMessage, WaitingMessage,
};
use crate::{Envelope, Error, ErrorKind, Inbox, Message, MessageId, Mode, Operators, WorkReport, name};

/// A store with an outbox. Every type that implements the roles implements it.
pub trait OutboxStore: LogStore + Capture {}

impl<S: LogStore + Capture> OutboxStore for S {}

/// The outbox. Clones are cheap and share one outbox.
pub struct Outbox<S: OutboxStore> {
    parts: Arc<OutboxParts<S>>,
}

/// The shared state of an outbox and its mover.
pub(crate) struct OutboxParts<S: OutboxStore> {
    store: S,
    /// The engine of the relays: an inbox whose handlers are the relays.
    relays: Inbox<S>,
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

    /// Moves messages to the log, and sends them by the relays, until `shutdown` is ready. Run it in any number of processes: one of
    /// them moves at a time, and they share the lanes of the relays.
    ///
    /// An inbox that has this outbox ([`InboxBuilder::outbox`](crate::InboxBuilder::outbox)) runs it in its own
    /// [`run`](crate::Inbox::run). An error means that the relays can never start.
    pub async fn run(&self, shutdown: impl Future<Output = ()> + Send) -> Result<WorkReport, Error> {
        match self.has_relays() {
            true => self.run_relays(shutdown, UpkeepScope::Database).await,
            // Without relays nothing else shows that this process moves.
            false => self.parts.relays.present_while(self.run_mover(shutdown, UpkeepScope::Database)).await,
        }
    }

    fn has_relays(&self) -> bool {
        self.parts.relays.handlers().next().is_some()
    }

    async fn run_mover(&self, shutdown: impl Future<Output = ()> + Send, scope: UpkeepScope) -> WorkReport {
        upkeep::beside(&self.parts, scope, Mover::new(&self.parts).run(shutdown)).await;
        WorkReport::default()
    }

    async fn run_relays(
        &self,
        shutdown: impl Future<Output = ()> + Send,
        scope: UpkeepScope,
    ) -> Result<WorkReport, Error> {
        let relays = &self.parts.relays;
        let (ended, has_ended) = oneshot::channel::<()>();
        let work = async move {
            let report = relays.run(shutdown).await;
            // The mover ends last, as in an inbox.
            drop(ended);
            report
        };
        let mover = Mover::new(&self.parts).run(async move {
            let _ = has_ended.await;
        });
        let wake = async {
            let mut moves = self.parts.moves.subscribe();
            while moves.changed().await.is_ok() {
                relays.wake();
            }
            std::future::pending::<()>().await;
        };
        let both = async { join(work, mover).await.0 };
        tokio::select! {
            report = upkeep::beside(&self.parts, scope, both) => report,
            () = wake => Ok(WorkReport::default()),
        }
    }

    /// Moves all committed messages to the log now, and returns their number. The relays send what they can send now. For use from
    /// a scheduler such as cron, and in tests.
    pub async fn flush(&self) -> Result<u64, Error> {
        Ok(self.move_and_send().await?.0)
    }

    /// Moves and sends what can be moved and sent now. Returns the number of moved messages, and what the relays have done.
    async fn move_and_send(&self) -> Result<(u64, WorkReport), Error> {
        let moved = Mover::new(&self.parts).flush().await?;
        Ok((moved, self.parts.relays.work_until_idle().await?))
    }

    /// What operators read and do, for the relays as for handlers.
    pub fn operators(&self) -> Operators {
        self.parts.relays.operators()
    }

    /// Reads how many messages wait for the mover.
    pub async fn status(&self) -> Result<OutboxStatus, Error> {
        self.parts.store.outbox_status().await
    }

    /// Reads how much disk space the outbox and the log use.
    pub async fn size(&self) -> Result<OutboxSize, Error> {
        self.parts.store.outbox_size().await
    }

    /// The messages that wait for the mover, oldest first.
    pub async fn waiting_messages(&self, limit: u32) -> Result<Vec<WaitingMessage>, Error> {
        self.parts.store.waiting_messages(limit).await
    }

    /// The message with this id, if it waits for the mover. Later it is in the log: [`find`](Self::find).
    pub async fn waiting_message(&self, id: MessageId) -> Result<Option<WaitingMessage>, Error> {
        self.parts.store.waiting_message(id).await
    }

    /// The place in the log of the published message with this id, if it is still there. [`Operators::message`] reads it, with its
    /// state for each relay and handler.
    pub async fn find(&self, id: MessageId) -> Result<Option<Place>, Error> {
        self.parts.store.find_published(id).await
    }

    /// The oldest messages in the log that a relay has not sent, of this outbox or another one on the same log. Dead letters are not
    /// among them.
    pub async fn unsent(&self, relay: &str, limit: u32) -> Result<Vec<StoredMessage>, Error> {
        let statuses = self.parts.store.handler_statuses().await?;
        let mut relays =
            statuses.into_iter().map(|status| status.handler).filter(|known| known.mode == Mode::Relay);
        match relays.find(|known| known.name == relay) {
            Some(known) => self.parts.store.unsent_messages(known.id, limit).await,
            None => Err(Error::configuration(format!("no relay is registered as {relay:?}"))),
        }
    }

    /// Checks that the mover works, and that the sinks confirm. The error says what waits, and why.
    pub fn health(&self) -> Result<(), Error> {
        let waits =
            |what: String, error: &str| Error::new(ErrorKind::Unavailable, format!("{what} waits: {error}"));
        if let Some(error) = &*self.parts.last_error() {
            return Err(waits("the mover of the outbox".to_owned(), error));
        }
        let waiting = self.parts.relays.waiting_relay();
        waiting.map_or(Ok(()), |(relay, why)| Err(waits(format!("the relay {relay:?}"), &why)))
    }

    /// The store underneath.
    pub fn store(&self) -> &S {
        &self.parts.store
    }
}

impl<S: OutboxStore> OutboxParts<S> {
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

    /// Moves and sends messages until `shutdown` is ready.
    fn run<'a>(&'a self, shutdown: BoxFuture<'a, ()>) -> BoxFuture<'a, Result<WorkReport, Error>>;

    /// Moves all committed messages now, and sends what can be sent. Returns the number of moved messages, and what the relays have
    /// done.
    fn flush(&self) -> BoxFuture<'_, Result<(u64, WorkReport), Error>>;

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

    fn run<'a>(&'a self, shutdown: BoxFuture<'a, ()>) -> BoxFuture<'a, Result<WorkReport, Error>> {
        Box::pin(async move {
            match self.has_relays() {
                true => self.run_relays(shutdown, UpkeepScope::SentMessages).await,
                // The inbox that runs this shows that the process moves.
                false => Ok(self.run_mover(shutdown, UpkeepScope::SentMessages).await),
            }
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(u64, WorkReport), Error>> {
        Box::pin(self.move_and_send())
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
