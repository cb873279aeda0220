//! What can be set for one handler.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{DeadHead, Failure, Headers, Key, Retry, Start};

/// Turns a failure into another one.
type Judge = Arc<dyn Fn(Failure) -> Failure + Send + Sync>;

/// Finds a key in a message and its headers.
pub(crate) type Selector<M> = Arc<dyn Fn(&M, &Headers) -> Option<Key> + Send + Sync>;

/// The inbox's own selectors, one per type of message.
#[derive(Default)]
pub(crate) struct Selectors(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl Selectors {
    pub(crate) fn insert<M: 'static>(&mut self, selector: Selector<M>) {
        self.0.insert(TypeId::of::<M>(), Box::new(selector));
    }

    pub(crate) fn get<M: 'static>(&self) -> Option<&Selector<M>> {
        self.0.get(&TypeId::of::<M>())?.downcast_ref()
    }
}

/// What can be set for one handler of messages `M`; see
/// [`InboxBuilder::on_with`](crate::InboxBuilder::on_with).
#[must_use]
pub struct HandlerOptions<M> {
    pub(crate) selector: Option<Selector<M>>,
    pub(crate) settings: Settings,
}

/// The part of the options that does not depend on the type of message.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    pub(crate) dedup_off: bool,
    pub(crate) isolated: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry: Option<Retry>,
    pub(crate) start: Start,
    pub(crate) revive: bool,
    pub(crate) ordered: Option<DeadHead>,
    pub(crate) detached: Option<Detachment>,
    judges: Vec<Judge>,
}

/// How a handler runs outside of any transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detachment {
    pub(crate) at_most_once: bool,
    /// Bodies of this process at the same time.
    pub(crate) concurrency: usize,
    /// Tasks in one lane, before its messages wait.
    pub(crate) open_tasks: u32,
    /// Its bodies cannot bring the process down.
    pub(crate) out_of_process: bool,
}

impl Default for Detachment {
    fn default() -> Self {
        Self { at_most_once: false, concurrency: 16, open_tasks: 1_000, out_of_process: false }
    }
}

impl<M> HandlerOptions<M> {
    pub(crate) fn new() -> Self {
        Self { selector: None, settings: Settings::default() }
    }

    /// Finds the key of a message for this handler, from the message and its headers. `None` leaves it to the
    /// next in line.
    pub fn key(mut self, selector: impl Fn(&M, &Headers) -> Option<Key> + Send + Sync + 'static) -> Self {
        self.selector = Some(Arc::new(selector));
        self
    }

    /// Runs on every delivery, with no marker: for handlers that are naturally idempotent.
    pub fn without_dedup(mut self) -> Self {
        self.settings.dedup_off = true;
        self
    }

    /// Always runs alone in its transaction, however many messages wait: for handlers that change the transaction itself
    /// (`SET LOCAL`, row-level security, advisory locks), which neighbours would share.
    pub fn isolated(mut self) -> Self {
        self.settings.isolated = true;
        self
    }

    /// The longest that one run may take; the inbox's `handler_timeout` if not set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = Some(timeout);
        self
    }

    /// How often a stored message is tried, and how long it waits in between; the inbox's `retry` if not set.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.settings.retry = Some(retry);
        self
    }

    /// Where the handler begins in the log when it is registered for the first time: with the oldest message, unless set
    /// otherwise.
    pub fn start(mut self, start: Start) -> Self {
        self.settings.start = start;
        self
    }

    /// Lets a handler of this name come back that was removed; it begins as a new one does.
    pub fn revive(mut self) -> Self {
        self.settings.revive = true;
        self
    }

    /// Takes the messages of one ordering key in the order in which they were accepted. While one of them waits for another try,
    /// those behind it wait; other keys go on. Behind a dead letter too, until an operator has dealt with it: see
    /// [`dead_head`](Self::dead_head). For stored inboxes.
    pub fn ordered(self) -> Self {
        self.dead_head(DeadHead::default())
    }

    /// [`ordered`](Self::ordered), with what a dead letter means for those behind it.
    pub fn dead_head(mut self, policy: DeadHead) -> Self {
        self.settings.ordered = Some(policy);
        self
    }

    /// Runs outside of any transaction, for calls to other systems: the handler takes no connection. A run that its process did not
    /// survive is repeated when the process's lease is over, so the effect can happen twice; pass the
    /// [`EffectId`](crate::EffectId) on as idempotency key.
    pub fn detached(mut self) -> Self {
        self.settings.detached.get_or_insert_default();
        self
    }

    /// [`detached`](Self::detached), and never repeated: a message counts as handled before the handler runs. One that fails is a
    /// dead letter; one whose process dies is lost.
    pub fn at_most_once(mut self) -> Self {
        self.settings.detached.get_or_insert_default().at_most_once = true;
        self
    }

    /// How many messages a [`detached`](Self::detached) handler runs on at the same time, in each process. 16.
    pub fn concurrency(mut self, bodies: usize) -> Self {
        self.settings.detached.get_or_insert_default().concurrency = bodies;
        self
    }

    /// A [`detached`](Self::detached) handler that has so many tasks in a lane, because they wait for another try, takes no further
    /// messages there. 1,000.
    pub fn max_open_tasks(mut self, tasks: u32) -> Self {
        self.settings.detached.get_or_insert_default().open_tasks = tasks;
        self
    }

    /// The bodies of a [`detached`](Self::detached) handler run elsewhere, as a request to another service or as a process of their own, and
    /// cannot bring this process down. So its death is never blamed on their messages: these are neither run alone after it, nor dead
    /// letters after the third one.
    pub fn out_of_process(mut self) -> Self {
        self.settings.detached.get_or_insert_default().out_of_process = true;
        self
    }

    /// Errors of type `E` for which this is true reject the message instead of asking for another delivery.
    /// `E` is looked for in the whole chain of causes.
    pub fn permanent_if<E: StdError + 'static>(
        mut self,
        is_permanent: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.judges.push(Arc::new(move |failure: Failure| failure.permanent_if(&is_permanent)));
        self
    }
}

impl Settings {
    /// What the handler's own rules make of a failure. They are anybody's code: one that panics judges nothing.
    pub(crate) fn judge(&self, failure: Failure) -> Failure {
        if self.judges.is_empty() {
            return failure;
        }
        let judge = || self.judges.iter().fold(failure, |failure, judge| judge(failure));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(judge))
            .unwrap_or_else(|_| "the handler failed, and permanent_if panicked".into())
    }
}

impl<M> fmt::Debug for HandlerOptions<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerOptions")
            .field("selector", &self.selector.is_some())
            .field("settings", &self.settings)
            .finish()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("dedup_off", &self.dedup_off)
            .field("isolated", &self.isolated)
            .field("timeout", &self.timeout)
            .field("retry", &self.retry)
            .field("start", &self.start)
            .field("revive", &self.revive)
            .field("judges", &self.judges.len())
            .finish()
    }
}
