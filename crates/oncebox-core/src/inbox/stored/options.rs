//! What can be set for a stored inbox, beside what every inbox has.

use std::sync::Arc;
use std::time::Duration;

use crate::inbox::InboxBuilder;
use crate::inbox::stored::{LogAccess, LogStore};
use crate::store::{DeadLetter, LaneCount};
use crate::{Mode, Retry};

/// What can be set for stores with a log.
impl<S: LogStore> InboxBuilder<S> {
    /// Takes messages into the log and handles them later: [`accept`](crate::Inbox::accept) and [`run`](crate::Inbox::run) in place of
    /// [`process`](crate::Inbox::process).
    pub fn stored(self) -> Self {
        self.mode(Mode::stored())
    }

    /// How messages reach the handlers: [`Mode::stored`] as with [`stored`](Self::stored); [`Mode::inline`], with
    /// [`spill`](Mode::spill) so that what fails is tried again from the log; [`Mode::mixed`] on the way from one to the other.
    /// Detached handlers run from the log in every mode.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self.log = Some(LogAccess::new());
        self
    }

    /// An inbox for operators, on a log that others fill and work on: it looks and acts, without any handlers. It makes no lanes,
    /// sends no heartbeats, which would count as retention, and sweeps only when it is asked to. It takes no messages.
    pub fn for_operators(mut self) -> Self {
        self = self.stored();
        self.for_operators = true;
        self
    }

    /// How long a process may go without a heartbeat before its lease expires. Then other processes run again what it ran outside
    /// of transactions, and are careful with its in-flight work. 15 s.
    pub fn lease(mut self, time: Duration) -> Self {
        self.stored.lease = time;
        self
    }

    /// How many lanes the log has: that many transactions can append, and each handler work, at the same time. Fixed when the
    /// log is made; 8 unless set then.
    pub fn lanes(mut self, lanes: u16) -> Self {
        self.stored.lanes = LaneCount(Some(lanes));
        self
    }

    /// How many transactions [`run`](crate::Inbox::run) works in at the same time. 8, or half of what the
    /// pool has if that is less; on SQLite 1.
    pub fn workers(mut self, workers: usize) -> Self {
        self.stored.workers = Some(workers);
        self
    }

    /// The most messages that a worker takes at once. 500.
    pub fn work_batch(mut self, messages: usize) -> Self {
        self.stored.work_batch = messages;
        self
    }

    /// A worker's transaction takes no further message after this time. 500 ms; on SQLite 50 ms.
    pub fn batch_time(mut self, time: Duration) -> Self {
        self.stored.batch_time = Some(time);
        self
    }

    /// The longest time between two looks for work. 1 s; what this process accepts, and what others announce, is found at
    /// once.
    pub fn poll_every(mut self, time: Duration) -> Self {
        self.stored.poll_every = time;
        self
    }

    /// How often a message is tried and how long it waits in between, for handlers that do not say otherwise.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.stored.retry = retry;
        self
    }

    /// How long messages stay in the log after all handlers of their kind have passed them. 1 day.
    pub fn keep_messages(mut self, time: Duration) -> Self {
        self.stored.keep_messages = time;
        self
    }

    /// Announces messages to other processes, and listens to theirs, where the store can. Off.
    pub fn notify(mut self, enabled: bool) -> Self {
        self.stored.notify = enabled;
        self
    }

    /// Called for every message that becomes a dead letter, after that is durable: for alerts. It must not block.
    pub fn on_dead(mut self, hook: impl Fn(&DeadLetter) + Send + Sync + 'static) -> Self {
        self.stored.on_dead = Some(Arc::new(hook));
        self
    }
}
