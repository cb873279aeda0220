//! Work: takes messages of a lane behind a handler's progress, and records their outcomes.

use std::time::{Duration, SystemTime};

use crate::store::{Captured, HandlerId, MarkerState, Place, ProcessId, Store, Unit};
use crate::{DeadHead, Error, Headers, Key, MessageId, Mode};

/// A message in the log, as its handler receives it.
#[derive(Clone, Debug)]
pub struct StoredMessage {
    /// Its place in the log.
    pub place: Place,
    /// Its kind.
    pub kind: String,
    /// The key that deduplicates it, together with the kind.
    pub key: Option<Key>,
    /// Its ordering key.
    pub order_by: Option<Key>,
    /// Its headers.
    pub headers: Headers,
    /// The encoded message, or an operator's correction of it.
    pub body: Vec<u8>,
    /// The time of the event that it reports.
    pub occurred_at: Option<SystemTime>,
    /// Its due time, if the sender set one.
    pub due_at: Option<SystemTime>,
    /// The time until it is due.
    pub due_in: Duration,
    /// The time since it was received.
    pub waited: Duration,
    /// The number of failed attempts of this handler.
    pub failures: u32,
    /// The failed attempts so far, as the store keeps them; for tasks only.
    pub attempts: Option<String>,
    /// Whether the body is an operator's correction.
    pub edited: bool,
    /// Whether an earlier message of its ordering key holds it back: a task, or a dead letter under
    /// [`DeadHead::Hold`](crate::DeadHead::Hold). Only ordered handlers have it, and only messages taken from a lane: tasks that
    /// are held back are not taken.
    pub held: bool,
    /// Whether this run belongs to a replay that an operator requested.
    pub replay: bool,
    /// The number of processes that crashed while they ran it outside a transaction.
    pub crashes: u32,
    /// Whether the handler's own marker says known and not done; for tasks only.
    pub spilled: bool,
    /// Its id, if it was published; for relays only.
    pub message_id: Option<MessageId>,
}

/// A lane in which a handler has work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// The handler.
    pub handler: HandlerId,
    /// The lane.
    pub lane: u16,
    /// Whether messages are ahead of its progress.
    pub messages: bool,
    /// Whether there are due tasks that no earlier message holds back.
    pub tasks: bool,
    /// Whether the lane needs crash care: messages run one at a time, each with a note before it.
    pub careful: bool,
}

/// The result of looking for work in all lanes.
#[derive(Clone, Debug, Default)]
pub struct DueLanes {
    /// The lanes with work.
    pub waiting: Vec<Waiting>,
    /// The time until the next task is due, if none is due now.
    pub next_due: Option<Duration>,
}

/// The handler that takes messages, and the lane from which it takes them.
#[derive(Clone, Copy, Debug)]
pub struct Taker<'a> {
    /// The handler.
    pub handler: HandlerId,
    /// Its kinds.
    pub kinds: &'a [String],
    /// Its mode.
    // The store compares mode and order with the handler's row: a program with other settings takes nothing.
    pub mode: Mode,
    /// The policy for dead letters if it is ordered; `None` if it is not.
    pub ordered: Option<DeadHead>,
    /// The lane.
    pub lane: u16,
}

/// The limits of one batch of messages.
#[derive(Clone, Copy, Debug)]
pub struct TakeLimits {
    /// The maximum number of messages.
    pub messages: u32,
    /// The maximum number of positions to read.
    // Without this limit, one statement could read a whole lane of messages of other kinds.
    pub positions: u32,
    /// The number of bytes in bodies; the message that reaches it is the last one.
    // The last message may exceed it: otherwise a body above the limit would never run.
    pub bytes: u64,
    /// The maximum number of open tasks in the lane. At the maximum, no message is taken.
    pub open_tasks: Option<u32>,
}

impl TakeLimits {
    /// The handler's progress after these messages are settled, if positions up to `looked` were read.
    ///
    /// If a limit ended the batch, there may be more messages behind its last one. Otherwise there are none up to `looked`.
    pub fn reached(&self, messages: &[StoredMessage], looked: i64) -> i64 {
        let Some(last) = messages.last() else { return looked };
        let bytes: u64 = messages.iter().map(|message| message.body.len() as u64).sum();
        let is_cut = messages.len() >= self.messages as usize || bytes >= self.bytes;
        // Without a cut the remaining positions hold no messages for this handler, and are passed too.
        if is_cut { last.place.pos } else { looked }
    }
}

/// The limits of one batch of tasks.
#[derive(Clone, Copy, Debug)]
pub struct TaskLimits {
    /// The maximum number of tasks.
    pub tasks: u32,
    /// For ordered handlers: whether only the first task of each ordering key is taken, because later ones cannot run at the same
    /// time. Otherwise later ones may follow in their order.
    pub heads_only: bool,
}

/// The messages that were taken from a lane. The lane is locked until the transaction ends.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The handler's epoch in this lane.
    pub epoch: i32,
    /// Its progress before this batch.
    pub from: i64,
    /// Its progress after all of these messages are settled.
    pub reached: i64,
    /// The lane's newest position.
    pub head: i64,
    /// The messages between the two, in order.
    pub messages: Vec<StoredMessage>,
}

/// The progress of a handler in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The handler.
    pub handler: HandlerId,
    /// The lane.
    pub lane: u16,
    /// The epoch; a replay begins a new one.
    pub epoch: i32,
    /// The position up to which it has passed the lane.
    pub pos: i64,
}

/// A message that becomes a task or a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Its position in the lane.
    pub pos: i64,
    /// Its ordering key.
    pub order_by: Option<Key>,
    /// The number of failed attempts.
    pub failures: u32,
    /// The time until it is due.
    // A duration, not a time: the store's clock decides when the task is due, not this process's.
    pub due_in: Duration,
    /// The error of the last attempt, if there was one.
    pub error: Option<String>,
    /// The failed attempts before this one, as the store returned them.
    pub attempts: Option<String>,
    /// An operator's correction of the body.
    pub body: Option<Vec<u8>>,
    /// Whether it waits for the due time that its sender set. Until then it holds back no other message.
    pub scheduled: bool,
    /// The number of processes that crashed while they ran it outside a transaction.
    pub crashes: u32,
}

/// The account of a worker's visit to a lane: all outcomes except the progress, written after the handlers have run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Messages that run later and become tasks.
    pub tasks: Vec<Unfinished>,
    /// Messages without attempts left, which become dead letters.
    pub dead: Vec<Unfinished>,
    /// Markers of messages that become tasks or dead letters. Their state becomes known and not done
    /// ([`MarkerState::Spilled`](crate::store::MarkerState)). A missing marker is not inserted.
    pub spilled: Vec<Unit>,
    /// Markers that say known and not done, of messages that succeeded. Their state becomes done, as of now. A missing marker is
    /// not inserted.
    pub done: Vec<Unit>,
    /// Handlers' results, stored with their markers.
    pub results: Vec<(Unit, Vec<u8>)>,
    /// Markers that this transaction claimed for messages that did not run after all. They are deleted.
    pub unclaimed: Vec<Unit>,
    /// The message that ran with a note before it, see [`Care::note_attempt`](crate::store::Care::note_attempt). The note is
    /// deleted, and its lane needs crash care for one message less.
    pub noted: Option<Place>,
}

impl Account {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The steps that a store carries out, in this order. Steps without content are omitted.
    pub fn steps(&self) -> impl Iterator<Item = AccountStep<'_>> {
        let tasks = (!self.tasks.is_empty()).then_some(AccountStep::WriteTasks(&self.tasks));
        let dead = (!self.dead.is_empty()).then_some(AccountStep::WriteDeadLetters(&self.dead));
        let spilled = (!self.spilled.is_empty())
            .then_some(AccountStep::SettleMarkers(MarkerState::Spilled, &self.spilled));
        let done =
            (!self.done.is_empty()).then_some(AccountStep::SettleMarkers(MarkerState::Done, &self.done));
        let unclaimed = (!self.unclaimed.is_empty()).then_some(AccountStep::Unclaim(&self.unclaimed));
        let results = (!self.results.is_empty()).then(|| {
            AccountStep::RecordResults(
                self.results.iter().map(|(unit, result)| (unit, &result[..])).collect(),
            )
        });
        let noted = self.noted.map(AccountStep::ForgetAttempt);
        [noted, tasks, dead, spilled, done, unclaimed, results].into_iter().flatten()
    }
}

/// One step of an [`Account`], never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountStep<'a> {
    /// Delete the note of this message, and count one message less that needs crash care in its lane.
    ForgetAttempt(Place),
    /// Insert tasks.
    WriteTasks(&'a [Unfinished]),
    /// Insert dead letters.
    WriteDeadLetters(&'a [Unfinished]),
    /// Set existing markers to a state, as of now.
    SettleMarkers(MarkerState, &'a [Unit]),
    /// Delete markers that this transaction inserted.
    Unclaim(&'a [Unit]),
    /// Store results with their markers.
    RecordResults(Vec<(&'a Unit, &'a [u8])>),
}

/// The number of a lease of tasks that run outside a transaction. Only the newest fence of a task may end it. Fences only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
// A process whose lease expired may still run: its older fence keeps it from recording an outcome.
pub struct Fence(pub i64);

/// The outcome of a task that ran outside a transaction.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The handler.
    pub handler: HandlerId,
    /// The message's place in the log.
    pub place: Place,
    /// The fence under which it ran.
    pub fence: Fence,
    /// Its outcome.
    pub end: End,
}

/// The outcome of a task.
#[derive(Clone, Debug)]
pub enum End {
    /// It succeeded. If the handler has a marker that is not done yet, it becomes done, with this result.
    Done {
        /// The marker.
        marker: Option<Unit>,
        /// The result.
        result: Option<Vec<u8>>,
        /// The messages that it publishes. They are written to the outbox if the run still has its fence.
        published: Vec<Captured>,
    },
    /// It failed, and has another attempt.
    Retry {
        /// The number of failed attempts, this one included.
        failures: u32,
        /// The time until the next attempt.
        due_in: Duration,
        /// The error; `None` if the failure was not the handler's fault.
        error: Option<String>,
    },
    /// It has no attempts left.
    Dead {
        /// The number of failed attempts, this one included.
        failures: u32,
        /// The last error.
        error: String,
    },
}

impl End {
    /// The messages that the run publishes.
    pub fn published(&self) -> &[Captured] {
        match self {
            Self::Done { published, .. } => published,
            Self::Retry { .. } | Self::Dead { .. } => &[],
        }
    }
}

/// Hands out the messages of the log, and records their outcomes.
///
/// Every change to tasks or dead letters of an ordered handler holds the lock of its lane.
pub trait Work: Store {
    /// Looks for lanes in which these handlers have work, unless they are paused. It is one query for all handlers, and writes
    /// nothing.
    ///
    /// A task of an ordered handler is held back by an earlier message of its ordering key in the same lane that is
    ///
    /// - a task, unless it is scheduled and not due yet. A running task does not wait, but holds others back.
    /// - a dead letter, under [`DeadHead::Hold`](crate::DeadHead::Hold).
    fn look(&self, handlers: &[HandlerId]) -> impl Future<Output = Result<DueLanes, Error>> + Send;

    /// Locks a lane for a handler. A later statement reads its progress and the messages behind it. Prepares the transaction for
    /// handlers as [`arm`](Store::arm) does.
    ///
    /// `None` if another transaction holds the lane, or if the handler is removed, paused or registered differently from the
    /// taker.
    // Not the locking statement: its snapshot is older than the lock, and could miss progress committed meanwhile.
    fn take(
        &self,
        tx: &mut Self::Tx,
        taker: Taker<'_>,
        limits: TakeLimits,
    ) -> impl Future<Output = Result<Option<Batch>, Error>> + Send;

    /// Locks a lane for a handler. A later statement removes its tasks that are due and not held back from the table. A task that
    /// [`settle`](Work::settle) does not insert again is done. Tasks of one ordering key are in the order of their positions. If
    /// there are none, the result may be `None` too. In all else it equals [`take`](Work::take).
    fn take_tasks(
        &self,
        tx: &mut Self::Tx,
        taker: Taker<'_>,
        limits: TaskLimits,
    ) -> impl Future<Output = Result<Option<Vec<StoredMessage>>, Error>> + Send;

    /// Carries out the steps of an account.
    fn settle(
        &self,
        tx: &mut Self::Tx,
        taker: Taker<'_>,
        account: &Account,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Writes messages as tasks that this process runs outside a transaction, under a new fence. If the process is no longer
    /// registered, it writes nothing and returns `None`. A process that removes it meanwhile finds these tasks too.
    fn lease(
        &self,
        tx: &mut Self::Tx,
        taker: Taker<'_>,
        process: ProcessId,
        messages: &[Unfinished],
    ) -> impl Future<Output = Result<Option<Fence>, Error>> + Send;

    /// Commits as [`commit`](Store::commit) does, and appends the handler's progress after the check of the transaction.
    fn finish(
        &self,
        tx: Self::Tx,
        progress: Option<Progress>,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Records the outcomes of tasks in one transaction. Returns for each whether its fence was still the newest. For a task with
    /// a newer fence it writes nothing.
    fn complete(&self, completions: &[Completion]) -> impl Future<Output = Result<Vec<bool>, Error>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(pos: i64, bytes: usize) -> StoredMessage {
        StoredMessage {
            place: Place { lane: 0, pos },
            kind: "k".into(),
            key: None,
            order_by: None,
            headers: Headers::default(),
            body: vec![0; bytes],
            occurred_at: None,
            due_at: None,
            due_in: Duration::ZERO,
            waited: Duration::ZERO,
            failures: 0,
            attempts: None,
            edited: false,
            held: false,
            replay: false,
            crashes: 0,
            spilled: false,
            message_id: None,
        }
    }

    #[test]
    fn a_batch_reaches_its_last_message_where_a_limit_ended_it() {
        const LOOKED: i64 = 50;
        for (messages, max_messages, max_bytes, expected) in [
            (vec![], 10, 100, LOOKED),
            (vec![(3, 1)], 10, 100, LOOKED),
            (vec![(3, 1), (7, 1)], 2, 100, 7),
            (vec![(3, 1), (7, 1)], 3, 100, LOOKED),
            (vec![(3, 60), (7, 40)], 10, 100, 7),
            (vec![(3, 60), (7, 39)], 10, 100, LOOKED),
            (vec![(3, 200)], 10, 100, 3),
            (vec![(3, 0)], 10, 0, 3),
        ] {
            let limits =
                TakeLimits { messages: max_messages, positions: 50, bytes: max_bytes, open_tasks: None };
            let taken: Vec<_> = messages.iter().map(|&(pos, bytes)| message(pos, bytes)).collect();
            assert_eq!(limits.reached(&taken, LOOKED), expected, "{messages:?} {limits:?}");
        }
    }

    #[test]
    fn an_account_is_written_in_one_order_and_without_empty_steps() {
        assert_eq!(Account::default().steps().next(), None);
        let unit = |handler: &str| Unit {
            handler: handler.into(),
            kind: "k".into(),
            key: Key::new("1").stored(),
            fingerprint: None,
            waited: Duration::ZERO,
        };
        let unfinished = |pos| Unfinished {
            pos,
            order_by: None,
            failures: 1,
            due_in: Duration::ZERO,
            error: None,
            attempts: None,
            body: None,
            scheduled: false,
            crashes: 0,
        };
        let place = Place { lane: 1, pos: 2 };
        let account = Account {
            tasks: vec![unfinished(1)],
            dead: vec![unfinished(2)],
            spilled: vec![unit("spilled")],
            done: vec![unit("done")],
            results: vec![(unit("result"), b"r".to_vec())],
            unclaimed: vec![unit("unclaimed")],
            noted: Some(place),
        };
        let expected = [
            AccountStep::ForgetAttempt(place),
            AccountStep::WriteTasks(&account.tasks),
            AccountStep::WriteDeadLetters(&account.dead),
            AccountStep::SettleMarkers(MarkerState::Spilled, &account.spilled),
            AccountStep::SettleMarkers(MarkerState::Done, &account.done),
            AccountStep::Unclaim(&account.unclaimed),
            AccountStep::RecordResults(vec![(&account.results[0].0, b"r")]),
        ];
        assert!(account.steps().eq(expected));
    }
}
