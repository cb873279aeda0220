//! The operator's side of an inbox. It has no type parameter for the store, so that programs, APIs and pages work with any store.
//!
//! No call counts messages, so each responds quickly at any size of the log. Each action is recorded in the audit under the
//! operator's name.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use uuid::Uuid;

use crate::inbox::Inbox;
use crate::inbox::stored::{LogShared, LogStore, PruneReport, Pruning, not_stored, prune};
use crate::inbox::sweeper::sweep;
use crate::observe::Observer;
use crate::retention::{Retention, SweepReport};
use crate::store::{
    Acted, Action, Affected, AuditEntry, DeadLetter, Guarantee, HandlerId, HandlerStatus, MessageStatus,
    Operation, Peer, Place, ProcessId, ReplayFrom, Replayed, Select, StoredMessage, Task, UnhandledKind,
};
use crate::{Error, ErrorKind, Key, Operator, name};

/// The maximum number of dead letters that are moved in one transaction.
const STEP: u32 = 500;

/// The operator's side of an inbox with a log: inspection, and actions on dead letters and handlers. Clones are cheap.
#[derive(Clone)]
pub struct Operators {
    store: Arc<dyn ErasedLog>,
    /// `None` for an inbox without a log.
    log: Option<Arc<LogShared>>,
    /// The handlers of this inbox, with their ids.
    handlers: Arc<[(Arc<str>, HandlerId)]>,
    max_body_bytes: usize,
    retention: Retention,
    observer: Observer,
}

impl<S: LogStore> Inbox<S> {
    /// Returns the operator's side: inspection of the log, and actions on dead letters and handlers.
    pub fn operators(&self) -> Operators {
        let engine = &self.parts.engine;
        let log = self.parts.log.as_ref().map(|log| log.shared.clone());
        let ids = log.iter().flat_map(|log| log.ids.iter().copied());
        Operators {
            store: Arc::new(engine.store.clone()),
            handlers: engine.handlers.iter().map(|handler| handler.name.clone()).zip(ids).collect(),
            log,
            max_body_bytes: engine.settings.max_body_bytes,
            retention: engine.settings.retention,
            observer: engine.observer,
        }
    }
}

impl Operators {
    fn log(&self) -> Result<&LogShared, Error> {
        self.log.as_deref().ok_or_else(not_stored)
    }

    /// The name of the store, as in logs.
    pub fn store_name(&self) -> &'static str {
        self.store.name()
    }

    /// The guarantee of the store.
    pub fn guarantee(&self) -> Guarantee {
        self.store.guarantee()
    }

    /// The time of the database, which decides when retries are due and leases expire.
    pub async fn database_time(&self) -> Result<SystemTime, Error> {
        self.log()?;
        let since_1970 = Duration::from_millis(self.store.now_ms().await?.try_into().unwrap_or(0));
        Ok(SystemTime::UNIX_EPOCH + since_1970)
    }

    /// The number of lanes of the log; 0 until a program has created it.
    pub async fn lanes(&self) -> Result<u16, Error> {
        match self.log()?.lanes {
            // An inbox for operators may have been built before the log. The number never changes once it is set.
            0 => self.store.lanes().await,
            lanes => Ok(lanes),
        }
    }

    /// Processes that run handlers from the log, each with its last heartbeat. Processes whose lease has just expired are included.
    pub async fn processes(&self) -> Result<Vec<Peer>, Error> {
        self.log()?;
        self.store.processes().await
    }

    /// The selected dead letters, oldest first.
    pub async fn dead_letters(&self, select: Select, limit: u32) -> Result<Vec<DeadLetter>, Error> {
        self.log()?;
        self.store.dead_letters(&select, limit).await
    }

    /// Runs dead letters again with a new set of attempts. Returns their number. Messages that are done already do not run.
    pub async fn retry_dead(&self, select: Select, operator: &Operator) -> Result<u64, Error> {
        self.act(select, &Action::Retry, operator).await
    }

    /// Runs one dead letter again with a corrected body. The message in the log stays unchanged.
    pub async fn edit_dead(
        &self,
        select: Select,
        body: impl Into<Vec<u8>>,
        operator: &Operator,
    ) -> Result<u64, Error> {
        let body = body.into();
        let (bytes, max) = (body.len(), self.max_body_bytes);
        if bytes > max {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("the body has {bytes} bytes, the limit is {max}"),
            ));
        }
        // Two are enough to see that the selection is not a single one.
        match &self.dead_letters(select, 2).await?[..] {
            [] => Ok(0),
            // Select exactly this one: another message may become a dead letter meanwhile.
            [one] => {
                let select = Select::all().handler(&*one.handler).at(one.place);
                self.act(select, &Action::Edit(body), operator).await
            }
            _ => Err(Error::configuration(
                "several dead letters are selected: a corrected body is for one. Select it by handler and place",
            )),
        }
    }

    /// Drops dead letters, so that their handlers never run for them. Returns their number.
    pub async fn discard_dead(&self, select: Select, operator: &Operator) -> Result<u64, Error> {
        self.act(select, &Action::Discard, operator).await
    }

    /// Marks dead letters as done, because they were handled by other means. Returns their number.
    pub async fn resolve_dead(&self, select: Select, operator: &Operator) -> Result<u64, Error> {
        self.act(select, &Action::Resolve, operator).await
    }

    async fn act(&self, select: Select, action: &Action, operator: &Operator) -> Result<u64, Error> {
        let log = self.log()?;
        // One pass in the order of places: a message that becomes a dead letter again meanwhile is skipped, so the loop ends.
        let (mut acted, mut after) = (0, None);
        loop {
            let step = self.store.act(&select, action, operator.as_str(), after, STEP).await?;
            acted += step.letters;
            if step.next.is_none() {
                break;
            }
            after = step.next;
        }
        log.wake.notify_one();
        Ok(acted)
    }

    /// Removes an unused handler. Messages that it has not handled are dropped for it, and new ones no longer wait for it. Its name
    /// stays reserved. Returns whether the handler existed.
    pub async fn remove_handler(&self, handler: &str, operator: &Operator) -> Result<bool, Error> {
        Ok(self.operate(handler, &Operation::Remove, operator).await?.is_some())
    }

    /// Pauses a handler after its transactions in flight. Its messages wait. Returns whether it was active.
    pub async fn pause_handler(&self, handler: &str, operator: &Operator) -> Result<bool, Error> {
        Ok(self.operate(handler, &Operation::Pause, operator).await?.is_some())
    }

    /// Resumes a paused handler. Returns whether it was paused.
    pub async fn resume_handler(&self, handler: &str, operator: &Operator) -> Result<bool, Error> {
        Ok(self.operate(handler, &Operation::Resume, operator).await?.is_some())
    }

    /// Runs a handler again on messages that are still in the log, also where it ran before. The handler sees this by
    /// [`Replay`](crate::Replay). Its tasks and dead letters from this place on become waiting messages again.
    pub async fn replay(
        &self,
        handler: &str,
        from: ReplayFrom,
        operator: &Operator,
    ) -> Result<Replayed, Error> {
        let replayed = self.operate(handler, &Operation::Replay(from), operator).await?;
        let missing = || Error::configuration(format!("there is no handler {handler:?}"));
        replayed.map(Replayed::from).ok_or_else(missing)
    }

    /// Renames a handler, with its progress, tasks and markers. The old name stays reserved: programs that use it continue to run,
    /// and get an error with the new name at their next start. Returns whether the handler existed.
    pub async fn rename_handler(
        &self,
        handler: &str,
        new_name: &str,
        operator: &Operator,
    ) -> Result<bool, Error> {
        name::check("handler name", new_name)?;
        let rename = Operation::Rename { to: new_name.to_owned() };
        Ok(self.operate(handler, &rename, operator).await?.is_some())
    }

    async fn operate(
        &self,
        handler: &str,
        operation: &Operation,
        operator: &Operator,
    ) -> Result<Option<Affected>, Error> {
        let log = self.log()?;
        let affected = self.store.operate(handler, operation, operator.as_str()).await?;
        // A resumed or replayed handler has work at once.
        log.wake.notify_one();
        Ok(affected)
    }

    /// The recorded actions of operators, newest first.
    pub async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>, Error> {
        self.log()?;
        self.store.audit(limit).await
    }

    /// The status of all handlers in the database, sorted by name.
    pub async fn handler_statuses(&self) -> Result<Vec<HandlerStatus>, Error> {
        self.log()?;
        self.store.handler_statuses().await
    }

    /// The next messages that wait for a handler, of this inbox or another one on the same log.
    pub async fn pending(&self, handler: &str, limit: u32) -> Result<Vec<StoredMessage>, Error> {
        self.log()?;
        let handler = self.handler_id(handler).await?;
        self.store.pending(handler, limit).await
    }

    async fn handler_id(&self, handler: &str) -> Result<HandlerId, Error> {
        if let Some((_, id)) = self.handlers.iter().find(|(name, _)| &**name == handler) {
            return Ok(*id);
        }
        let statuses = self.store.handler_statuses().await?;
        let mut known = statuses.into_iter().map(|status| status.handler);
        match known.find(|known| known.name == handler) {
            Some(known) => Ok(known.id),
            None => Err(Error::configuration(format!("no handler is registered as {handler:?}"))),
        }
    }

    /// Messages of a lane after a position, each with its state for every handler. Position 0 is before the first message.
    pub async fn messages(&self, lane: u16, behind: i64, limit: u32) -> Result<Vec<MessageStatus>, Error> {
        let lanes = self.lanes().await?;
        if lane >= lanes {
            return Err(Error::configuration(format!(
                "there is no lane {lane}: the log has lanes 0 to {}",
                lanes.saturating_sub(1)
            )));
        }
        self.store.messages(lane, behind, limit).await
    }

    /// The message at a place, with its state for every handler; `None` if it was pruned or never existed.
    pub async fn message(&self, place: Place) -> Result<Option<MessageStatus>, Error> {
        self.log()?;
        let found = self.store.messages(place.lane, place.pos.saturating_sub(1), 1).await?;
        Ok(found.into_iter().find(|found| found.message.place == place))
    }

    /// The place of the message with this kind and key; `None` if it was not accepted or no longer exists.
    pub async fn find_message(&self, kind: &str, key: impl Into<Key>) -> Result<Option<Place>, Error> {
        self.log()?;
        self.store.find_message(kind, &key.into()).await
    }

    /// Tasks: scheduled retries and other scheduled messages, for one handler or all, next due first.
    pub async fn tasks(&self, handler: Option<&str>, limit: u32) -> Result<Vec<Task>, Error> {
        self.log()?;
        self.store.tasks(handler, limit).await
    }

    /// Unhandled kinds: kinds of accepted messages without a handler. Their messages wait, and are never pruned.
    pub async fn unhandled_kinds(&self) -> Result<Vec<UnhandledKind>, Error> {
        self.log()?;
        self.store.unhandled_kinds().await
    }

    /// Deletes expired markers now, independently of the timer: [`Inbox::sweep`].
    pub async fn sweep(&self) -> Result<SweepReport, Error> {
        let keep_messages = self.log()?.settings.keep_messages;
        self.store.sweep(self.retention, keep_messages, self.observer).await
    }

    /// Deletes expired messages and accept markers now, independently of the timer: [`Inbox::prune`].
    pub async fn prune(&self) -> Result<PruneReport, Error> {
        let keep_messages = self.log()?.settings.keep_messages;
        let pruning = Pruning { lanes: self.lanes().await?, keep_messages, retention: self.retention };
        self.store.prune(pruning, self.observer).await
    }
}

impl fmt::Debug for Operators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operators").field("handlers", &self.handlers).finish_non_exhaustive()
    }
}

type StoreFuture<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// A store with a log, as a trait object.
trait ErasedLog: Send + Sync {
    fn name(&self) -> &'static str;
    fn guarantee(&self) -> Guarantee;
    fn now_ms(&self) -> StoreFuture<'_, i64>;
    fn lanes(&self) -> StoreFuture<'_, u16>;
    fn processes(&self) -> StoreFuture<'_, Vec<Peer>>;
    fn dead_letters<'a>(&'a self, select: &'a Select, limit: u32) -> StoreFuture<'a, Vec<DeadLetter>>;
    fn act<'a>(
        &'a self,
        select: &'a Select,
        action: &'a Action,
        operator: &'a str,
        after: Option<(HandlerId, Place)>,
        limit: u32,
    ) -> StoreFuture<'a, Acted>;
    fn operate<'a>(
        &'a self,
        handler: &'a str,
        operation: &'a Operation,
        operator: &'a str,
    ) -> StoreFuture<'a, Option<Affected>>;
    fn audit(&self, limit: u32) -> StoreFuture<'_, Vec<AuditEntry>>;
    fn handler_statuses(&self) -> StoreFuture<'_, Vec<HandlerStatus>>;
    fn pending(&self, handler: HandlerId, limit: u32) -> StoreFuture<'_, Vec<StoredMessage>>;
    fn messages(&self, lane: u16, behind: i64, limit: u32) -> StoreFuture<'_, Vec<MessageStatus>>;
    fn find_message<'a>(&'a self, kind: &'a str, key: &'a Key) -> StoreFuture<'a, Option<Place>>;
    fn tasks<'a>(&'a self, handler: Option<&'a str>, limit: u32) -> StoreFuture<'a, Vec<Task>>;
    fn unhandled_kinds(&self) -> StoreFuture<'_, Vec<UnhandledKind>>;
    fn sweep(
        &self,
        retention: Retention,
        keep_messages: Duration,
        observer: Observer,
    ) -> StoreFuture<'_, SweepReport>;
    fn prune(&self, pruning: Pruning, observer: Observer) -> StoreFuture<'_, PruneReport>;
}

impl<S: LogStore> ErasedLog for S {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn guarantee(&self) -> Guarantee {
        S::GUARANTEE
    }

    fn now_ms(&self) -> StoreFuture<'_, i64> {
        Box::pin(async {
            let (_live, now_ms) = self.live_time().await?;
            Ok(now_ms)
        })
    }

    fn lanes(&self) -> StoreFuture<'_, u16> {
        // A registration without lanes and handlers writes nothing.
        Box::pin(async { Ok(self.register(None, &[]).await?.lanes) })
    }

    fn processes(&self) -> StoreFuture<'_, Vec<Peer>> {
        // No process has the nil id, so all processes are its peers.
        Box::pin(self.peers(ProcessId(Uuid::nil())))
    }

    fn dead_letters<'a>(&'a self, select: &'a Select, limit: u32) -> StoreFuture<'a, Vec<DeadLetter>> {
        Box::pin(S::dead_letters(self, select, limit))
    }

    fn act<'a>(
        &'a self,
        select: &'a Select,
        action: &'a Action,
        operator: &'a str,
        after: Option<(HandlerId, Place)>,
        limit: u32,
    ) -> StoreFuture<'a, Acted> {
        Box::pin(S::act(self, select, action, operator, after, limit))
    }

    fn operate<'a>(
        &'a self,
        handler: &'a str,
        operation: &'a Operation,
        operator: &'a str,
    ) -> StoreFuture<'a, Option<Affected>> {
        Box::pin(S::operate(self, handler, operation, operator))
    }

    fn audit(&self, limit: u32) -> StoreFuture<'_, Vec<AuditEntry>> {
        Box::pin(S::audit(self, limit))
    }

    fn handler_statuses(&self) -> StoreFuture<'_, Vec<HandlerStatus>> {
        Box::pin(S::handler_statuses(self))
    }

    fn pending(&self, handler: HandlerId, limit: u32) -> StoreFuture<'_, Vec<StoredMessage>> {
        Box::pin(S::pending(self, handler, limit))
    }

    fn messages(&self, lane: u16, behind: i64, limit: u32) -> StoreFuture<'_, Vec<MessageStatus>> {
        Box::pin(S::messages(self, lane, behind, limit))
    }

    fn find_message<'a>(&'a self, kind: &'a str, key: &'a Key) -> StoreFuture<'a, Option<Place>> {
        Box::pin(S::find_message(self, kind, key))
    }

    fn tasks<'a>(&'a self, handler: Option<&'a str>, limit: u32) -> StoreFuture<'a, Vec<Task>> {
        Box::pin(S::tasks(self, handler, limit))
    }

    fn unhandled_kinds(&self) -> StoreFuture<'_, Vec<UnhandledKind>> {
        Box::pin(S::unhandled_kinds(self))
    }

    fn sweep(
        &self,
        retention: Retention,
        keep_messages: Duration,
        observer: Observer,
    ) -> StoreFuture<'_, SweepReport> {
        Box::pin(sweep(self, retention, keep_messages, observer))
    }

    fn prune(&self, pruning: Pruning, observer: Observer) -> StoreFuture<'_, PruneReport> {
        Box::pin(prune(self, pruning, observer))
    }
}
