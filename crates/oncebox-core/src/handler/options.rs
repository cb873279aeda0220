//! Options of a handler.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{DeadHead, Failure, Headers, Key, Retry, Start};

/// A rule that may turn a failure into a permanent one.
type Judge = Arc<dyn Fn(Failure) -> Failure + Send + Sync>;

/// Finds a key in a message and its headers.
pub(crate) type Selector<M> = Arc<dyn Fn(&M, &Headers) -> Option<Key> + Send + Sync>;

/// The inbox's key selectors, one per type of message.
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

/// The options of a handler of messages `M`, as set in [`InboxBuilder::on_with`](crate::InboxBuilder::on_with).
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
    pub(crate) judges: Vec<Judge>,
}

/// The options of a detached handler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detachment {
    pub(crate) at_most_once: bool,
    /// The maximum number of concurrent runs in this process.
    pub(crate) concurrency: usize,
    /// The maximum number of open tasks in a lane; further messages there wait.
    pub(crate) open_tasks: u32,
    /// The handler's runs cannot crash this process.
    pub(crate) out_of_process: bool,
}

impl Default for Detachment {
    fn default() -> Self {
        // The limit of open tasks keeps their number small while the called service is down.
        Self { at_most_once: false, concurrency: 16, open_tasks: 1_000, out_of_process: false }
    }
}

impl<M> HandlerOptions<M> {
    pub(crate) fn new() -> Self {
        Self { selector: None, settings: Settings::default() }
    }

    /// Sets a selector for this handler's key, from the message and its headers.
    ///
    /// If it returns `None`, the inbox's selector for this type of message is tried, then the other sources of a key.
    pub fn key(mut self, selector: impl Fn(&M, &Headers) -> Option<Key> + Send + Sync + 'static) -> Self {
        self.selector = Some(Arc::new(selector));
        self
    }

    /// Runs the handler on every delivery, without a marker; for idempotent handlers.
    pub fn without_dedup(mut self) -> Self {
        self.settings.dedup_off = true;
        self
    }

    /// Runs each message in a transaction of its own.
    ///
    /// Use it for handlers that change the transaction itself (`SET LOCAL`, row-level security, advisory locks). Other messages
    /// in a shared transaction would be affected too.
    pub fn isolated(mut self) -> Self {
        self.settings.isolated = true;
        self
    }

    /// Sets the maximum duration of one run. The default is the inbox's `handler_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = Some(timeout);
        self
    }

    /// Sets the retries of messages from the log. The default is the inbox's `retry`.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.settings.retry = Some(retry);
        self
    }

    /// Sets the position where a new handler begins in the log. The default is the oldest message.
    ///
    /// It counts when the handler is registered for the first time.
    pub fn start(mut self, start: Start) -> Self {
        self.settings.start = start;
        self
    }

    /// Allows a removed handler of this name to register again; it begins like a new handler.
    pub fn revive(mut self) -> Self {
        self.settings.revive = true;
        self
    }

    /// Runs the messages of each ordering key in the order in which they were accepted; for stored inboxes.
    ///
    /// While a message waits for a retry, later messages of its key wait too; other keys continue. A dead letter also holds them
    /// back, until an operator has retried, resolved or discarded it: see [`dead_head`](Self::dead_head).
    pub fn ordered(self) -> Self {
        self.dead_head(DeadHead::default())
    }

    /// Like [`ordered`](Self::ordered), with a policy for messages behind a dead letter.
    pub fn dead_head(mut self, policy: DeadHead) -> Self {
        self.settings.ordered = Some(policy);
        self
    }

    /// Runs the handler outside any transaction, for calls to other systems; it takes no connection.
    ///
    /// If the process crashes during a run, the run is repeated after the process's lease has expired. The effect can then happen
    /// twice: pass the [`EffectId`](crate::EffectId) as the idempotency key.
    pub fn detached(mut self) -> Self {
        // Not a new value: the options of detached handlers may come in any order.
        self.settings.detached.get_or_insert_default();
        self
    }

    /// Like [`detached`](Self::detached), but a run is never repeated: the message counts as handled before the handler runs.
    ///
    /// A failed message becomes a dead letter. A message whose process crashes is lost.
    pub fn at_most_once(mut self) -> Self {
        self.settings.detached.get_or_insert_default().at_most_once = true;
        self
    }

    /// Sets the maximum number of concurrent runs of a [`detached`](Self::detached) handler per process. The default is 16.
    pub fn concurrency(mut self, bodies: usize) -> Self {
        self.settings.detached.get_or_insert_default().concurrency = bodies;
        self
    }

    /// Sets the maximum number of running and failed tasks of a [`detached`](Self::detached) handler per lane.
    ///
    /// At the maximum, the handler takes no further messages from that lane. The default is 1,000.
    pub fn max_open_tasks(mut self, tasks: u32) -> Self {
        self.settings.detached.get_or_insert_default().open_tasks = tasks;
        self
    }

    /// Declares that runs of this [`detached`](Self::detached) handler cannot crash this process.
    ///
    /// Use it for handlers whose work happens elsewhere, as a request to another service or in a process of its own. A crash of
    /// this process then does not count against their messages: they do not run alone afterwards, and do not become dead letters
    /// after the fifth crash.
    pub fn out_of_process(mut self) -> Self {
        self.settings.detached.get_or_insert_default().out_of_process = true;
        self
    }

    /// Makes failures permanent whose error of type `E` meets this condition: the message is rejected, not retried.
    ///
    /// The whole chain of causes is searched for an `E`.
    pub fn permanent_if<E: StdError + 'static>(
        mut self,
        is_permanent: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.judges.push(Arc::new(move |failure: Failure| failure.permanent_if(&is_permanent)));
        self
    }
}

impl Settings {
    /// Applies the handler's own rules to a failure.
    ///
    /// The rules are application code. If one panics, the failure is retried.
    pub(crate) fn judge(&self, failure: Failure) -> Failure {
        if self.judges.is_empty() {
            return failure;
        }
        let judge = || self.judges.iter().fold(failure, |failure, judge| judge(failure));
        // Unwind safe: the failure is moved in, so a panic leaves no half-changed value of ours.
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(judge)).unwrap_or_else(|_| {
            // The original failure is lost in the panic. A retry keeps the message, a rejection would drop it.
            "the handler failed, and its `permanent_if` rule panicked: mend the rule".into()
        })
    }
}

// By hand: closures have no `Debug`, and `derive` would require it of `M`.
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
            .field("ordered", &self.ordered)
            .field("detached", &self.detached)
            .field("judges", &self.judges.len())
            .finish()
    }
}
