//! The builder options of a stored inbox.

use std::sync::Arc;
use std::time::Duration;

use crate::inbox::InboxBuilder;
use crate::inbox::stored::{LogAccess, LogStore};
use crate::store::{DeadLetter, LaneCount};
use crate::{Mode, Outbox, OutboxStore, Retry};

/// Options for stores with a log.
impl<S: LogStore> InboxBuilder<S> {
    /// Stores messages in the log and handles them later. Use [`accept`](crate::Inbox::accept) and [`run`](crate::Inbox::run) instead
    /// of [`process`](crate::Inbox::process).
    pub fn stored(self) -> Self {
        self.mode(Mode::stored())
    }

    /// Sets how messages reach the handlers:
    ///
    /// - [`Mode::stored`]: the same as [`stored`](Self::stored);
    /// - [`Mode::inline`]: as they are delivered; with [`spill`](Mode::spill), failed messages are retried from the log;
    /// - [`Mode::mixed`]: both, while you migrate from one to the other.
    ///
    /// Detached handlers run from the log in every mode.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        // Also for an inline mode: the messages of detached handlers and spilled ones need the log.
        self.log = Some(LogAccess::new());
        self
    }

    /// Runs the mover of an outbox in [`run`](crate::Inbox::run), beside the workers, which it wakes after each move. The messages
    /// of the outbox go to the handlers of this inbox that read the log.
    pub fn outbox(mut self, outbox: &Outbox<S>) -> Self
    where
        S: OutboxStore,
    {
        self.outbox = Some(Arc::new(outbox.clone()));
        self
    }

    /// Makes the engine of an outbox, whose handlers are relays. It leaves upkeep to others.
    pub(crate) fn relays_only(mut self) -> Self {
        self.has_upkeep = false;
        self.mode(Mode::Relay)
    }

    /// Makes an inbox for operators, on a log that other processes fill and handle. It has no handlers and takes no messages. It
    /// creates no lanes, sends no heartbeats, which would count as live time for retention, and sweeps only on request.
    pub fn for_operators(mut self) -> Self {
        self = self.stored();
        self.for_operators = true;
        self
    }

    /// The time without a heartbeat after which the lease of a process expires. Then other processes run its detached messages
    /// again, and treat its in-flight work with care. Default: 15 s.
    pub fn lease(mut self, time: Duration) -> Self {
        self.stored.lease = time;
        self
    }

    /// The number of lanes of the log. It limits how many transactions append at the same time, and how many each handler works
    /// in. It is fixed when the log is created. Default: 8.
    pub fn lanes(mut self, lanes: u16) -> Self {
        self.stored.lanes = LaneCount(Some(lanes));
        self
    }

    /// The number of concurrent transactions of [`run`](crate::Inbox::run). Default: 8, or half of the pool if that is less; 1
    /// on SQLite.
    pub fn workers(mut self, workers: usize) -> Self {
        self.stored.workers = Some(workers);
        self
    }

    /// The maximum number of messages that a worker takes at once. Default: 500.
    pub fn work_batch(mut self, messages: usize) -> Self {
        self.stored.work_batch = messages;
        self
    }

    /// The time after which a worker's transaction starts no further message. Default: 500 ms; 50 ms on SQLite.
    pub fn batch_time(mut self, time: Duration) -> Self {
        self.stored.batch_time = Some(time);
        self
    }

    /// The maximum time between two polls for work. Messages that this process accepts, or others announce, are found at once.
    /// Default: 1 s.
    pub fn poll_every(mut self, time: Duration) -> Self {
        self.stored.poll_every = time;
        self
    }

    /// The number of attempts for a message and the delay between them, for handlers without a retry option of their own.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.stored.retry = retry;
        self
    }

    /// How long messages stay in the log after all handlers of their kind have passed them. Default: 1 day.
    pub fn keep_messages(mut self, time: Duration) -> Self {
        self.stored.keep_messages = time;
        self
    }

    /// Notifies other processes of new messages, and receives their notifications, if the store supports it. Default: off.
    pub fn notify(mut self, enabled: bool) -> Self {
        self.stored.notify = enabled;
        self
    }

    /// Sets a function that is called for every new dead letter, after it is durable. Use it for alerts. It must not block.
    pub fn on_dead(mut self, hook: impl Fn(&DeadLetter) + Send + Sync + 'static) -> Self {
        self.stored.on_dead = Some(Arc::new(hook));
        self
    }
}
