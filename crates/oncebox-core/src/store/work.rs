//! Work: reading a lane behind a handler's progress, and settling what was read.

use std::time::{Duration, SystemTime};

use crate::store::{HandlerId, MarkerState, Place, ProcessId, Store, Unit};
use crate::{DeadHead, Error, Headers, Key, Mode};

/// A message in the log, as a handler is to see it.
#[derive(Clone, Debug)]
pub struct StoredMessage {
    /// Where it sits.
    pub place: Place,
    /// Its kind.
    pub kind: String,
    /// What it is deduplicated by.
    pub key: Option<Key>,
    /// What it stays in order with.
    pub order_by: Option<Key>,
    /// What travels beside the body.
    pub headers: Headers,
    /// The encoded message; an operator's correction, if there is one.
    pub body: Vec<u8>,
    /// When the thing that it tells of happened.
    pub occurred_at: Option<SystemTime>,
    /// When it is to be handled, if that was said.
    pub due_at: Option<SystemTime>,
    /// How long it is still to wait for that.
    pub due_in: Duration,
    /// How long ago it was received.
    pub waited: Duration,
    /// The number of failed attempts of this handler.
    pub failures: u32,
    /// The failed attempts so far, as the store keeps them: of tasks only.
    pub attempts: Option<String>,
    /// Whether the body is an operator's correction.
    pub edited: bool,
    /// Whether an earlier message of its ordering key holds it back: a task, or a dead letter where these hold. Only where the
    /// handler is ordered, and only of messages taken from a lane; tasks that are held back are not taken.
    pub held: bool,
    /// Whether an operator has the handler run on it again.
    pub replay: bool,
    /// The number of processes that crashed while they ran it outside a transaction.
    pub crashes: u32,
    /// Whether the handler's own marker says that it is known and not done: of tasks only.
    pub spilled: bool,
}

/// Where there is work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// For this handler.
    pub handler: HandlerId,
    /// In this lane.
    pub lane: u16,
    /// Whether messages are ahead of its progress.
    pub messages: bool,
    /// Whether tasks are due that nothing holds back.
    pub tasks: bool,
    /// Whether a process has crashed there recently: messages run one by one, each with a note before it.
    pub careful: bool,
}

/// What a look at all lanes saw.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Where there is work.
    pub waiting: Vec<Waiting>,
    /// When the next task is due, if none is now.
    pub next_due: Option<Duration>,
}

/// Who takes messages, and from where.
#[derive(Clone, Copy, Debug)]
pub struct Taker<'a> {
    /// The handler.
    pub handler: HandlerId,
    /// Its kinds.
    pub kinds: &'a [String],
    /// Its mode.
    pub mode: Mode,
    /// Whether it is ordered, and how.
    pub ordered: Option<DeadHead>,
    /// The lane.
    pub lane: u16,
}

/// How much is taken at once.
#[derive(Clone, Copy, Debug)]
pub struct TakeLimits {
    /// The maximum number of messages.
    pub messages: u32,
    /// The maximum number of positions to read.
    pub positions: u32,
    /// Ending with the one that exceeds this, in bytes of bodies.
    pub bytes: u64,
    /// With this number of open tasks in the lane, no message is taken.
    pub open_tasks: Option<u32>,
}

impl TakeLimits {
    /// The handler's progress once these messages are settled, where positions up to `looked` were read for them.
    ///
    /// If a limit ended the batch, there may be more messages behind its last one. Otherwise there are none up to `looked`.
    pub fn reached(&self, messages: &[StoredMessage], looked: i64) -> i64 {
        let Some(last) = messages.last() else { return looked };
        let bytes: u64 = messages.iter().map(|message| message.body.len() as u64).sum();
        let is_cut = messages.len() >= self.messages as usize || bytes >= self.bytes;
        if is_cut { last.place.pos } else { looked }
    }
}

/// Which tasks are taken at once.
#[derive(Clone, Copy, Debug)]
pub struct TaskLimits {
    /// The maximum number of tasks.
    pub tasks: u32,
    /// Where the handler is ordered: only the first one of each ordering key, since those behind it could not run beside it.
    /// Otherwise those behind it may follow, in their order.
    pub heads_only: bool,
}

/// What was taken from a lane. The lane is locked until the transaction ends.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The handler's epoch in this lane.
    pub epoch: i32,
    /// Its progress so far.
    pub from: i64,
    /// Its progress when all of these are settled.
    pub reached: i64,
    /// The lane's newest position.
    pub head: i64,
    /// The messages in between, in order.
    pub messages: Vec<StoredMessage>,
}

/// How far a handler has come in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The handler.
    pub handler: HandlerId,
    /// The lane.
    pub lane: u16,
    /// The epoch; a replay begins a new one.
    pub epoch: i32,
    /// The position.
    pub pos: i64,
}

/// A message that is set apart for a later try, or for its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetApart {
    /// Where it sits.
    pub pos: i64,
    /// What it stays in order with.
    pub order_by: Option<Key>,
    /// The number of failed attempts.
    pub failures: u32,
    /// When it is to run.
    pub due_in: Duration,
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// The failed attempts before this one, as they were read.
    pub attempts: Option<String>,
    /// An operator's correction of the body.
    pub body: Option<Vec<u8>>,
    /// Whether it waits for the time that its sender set, before which it holds back no other message.
    pub scheduled: bool,
    /// The number of processes that crashed while they ran it outside a transaction.
    pub crashes: u32,
}

/// The account of a visit: everything that is written beside the progress, after all handlers of the transaction have run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Messages that are to run later: they become tasks.
    pub apart: Vec<SetApart>,
    /// Messages that used up their attempts: they become dead letters.
    pub dead: Vec<SetApart>,
    /// Markers of messages that are set apart: they say known and not done ([`MarkerState::Spilled`](crate::store::MarkerState)).
    /// A marker that is not there is not made.
    pub spilled: Vec<Unit>,
    /// Markers of messages that were set apart: they say done now, at this time. A marker that is not there is not made.
    pub done: Vec<Unit>,
    /// Handlers' results, kept beside their markers.
    pub results: Vec<(Unit, Vec<u8>)>,
    /// Markers that this transaction has claimed, of messages that did not run: they are deleted.
    pub unclaimed: Vec<Unit>,
    /// The message that ran with a note before it, see [`Care::note_attempt`](crate::store::Care::note_attempt): the note is deleted,
    /// and its lane needs care for one message less.
    pub noted: Option<Place>,
}

impl Account {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What a store writes, in this order; steps without content are left out.
    pub fn steps(&self) -> impl Iterator<Item = AccountStep<'_>> {
        let apart = (!self.apart.is_empty()).then_some(AccountStep::SetApart(&self.apart));
        let dead = (!self.dead.is_empty()).then_some(AccountStep::Bury(&self.dead));
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
        [noted, apart, dead, spilled, done, unclaimed, results].into_iter().flatten()
    }
}

/// One step of an [`Account`], never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountStep<'a> {
    /// Delete the note on this message, and count one message less that needs care in its lane.
    ForgetAttempt(Place),
    /// Insert tasks.
    SetApart(&'a [SetApart]),
    /// Insert dead letters.
    Bury(&'a [SetApart]),
    /// Set markers that are there to a state, as of now.
    SettleMarkers(MarkerState, &'a [Unit]),
    /// Delete markers that this transaction inserted.
    Unclaim(&'a [Unit]),
    /// Store results beside their markers.
    RecordResults(Vec<(&'a Unit, &'a [u8])>),
}

/// Who may end a task that runs outside of a transaction: the one with the newest fence. Fences only grow.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fence(pub i64);

/// How a task ended that ran outside of a transaction.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The handler.
    pub handler: HandlerId,
    /// Where the message sits.
    pub place: Place,
    /// Under which fence it ran.
    pub fence: Fence,
    /// How it ended.
    pub end: End,
}

/// How a task ended.
#[derive(Clone, Debug)]
pub enum End {
    /// It is done. Where the handler has a marker that is not done yet, it is now, with this result.
    Done {
        /// The marker.
        marker: Option<Unit>,
        /// The result.
        result: Option<Vec<u8>>,
    },
    /// It failed, and is to be tried again.
    Retry {
        /// How often it has failed by now.
        failures: u32,
        /// When it is to run.
        due_in: Duration,
        /// Why it failed; `None` if that was not its fault.
        error: Option<String>,
    },
    /// It used up its attempts.
    Dead {
        /// How often it has failed by now.
        failures: u32,
        /// Why it failed.
        error: String,
    },
}

/// Hands out the messages of the log, and keeps what became of them.
///
/// Everything that changes tasks or dead letters of an ordered handler does so under the lock of its lane.
pub trait Work: Store {
    /// Where there is work for these handlers, unless they are paused. One question for all of them, which writes nothing.
    ///
    /// A task is held back if its handler is ordered and an earlier one of its ordering key, in the same lane, is a task or a
    /// dead letter: any task but one that is scheduled and not due yet; any dead letter where those hold
    /// ([`DeadHead::Hold`](crate::DeadHead::Hold)). Tasks that a process runs are not waiting, but hold others back.
    fn look(&self, handlers: &[HandlerId]) -> impl Future<Output = Result<Look, Error>> + Send;

    /// Locks a lane for a handler, and by a later statement reads its progress and the messages behind it; `None` if another
    /// transaction has the lane, or the handler is gone, paused or not what the taker knows. Makes ready for handlers as
    /// [`arm`](Store::arm) does.
    fn take(
        &self,
        tx: &mut Self::Tx,
        taker: Taker<'_>,
        limits: TakeLimits,
    ) -> impl Future<Output = Result<Option<Batch>, Error>> + Send;

    /// Locks a lane for a handler, and by a later statement takes its tasks that are due and not held back out of the table:
    /// what is not put back by [`settle`](Work::settle) is done. Those of one ordering key are in the order of their positions.
    /// If there are none it may be `None` too. Otherwise as [`take`](Work::take).
    fn take_tasks(
        &self,
        tx: &mut Self::Tx,
        taker: Taker<'_>,
        limits: TaskLimits,
    ) -> impl Future<Output = Result<Option<Vec<StoredMessage>>, Error>> + Send;

    /// Writes the account of a visit.
    fn settle(
        &self,
        tx: &mut Self::Tx,
        taker: Taker<'_>,
        account: &Account,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Writes messages down as tasks that this process runs outside of a transaction, under a new fence. `None`, and nothing is
    /// written, if the process is not known any more; a process that removes it meanwhile finds these tasks too.
    fn lease(
        &self,
        tx: &mut Self::Tx,
        taker: Taker<'_>,
        process: ProcessId,
        messages: &[SetApart],
    ) -> impl Future<Output = Result<Option<Fence>, Error>> + Send;

    /// Commits as [`commit`](Store::commit) does, with the handler's progress appended behind the proof.
    fn finish(
        &self,
        tx: Self::Tx,
        progress: Option<Progress>,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Writes down how tasks ended, in one transaction; for each of them whether it was still under its fence. Of one that was
    /// not, nothing is written.
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
        let apart = |pos| SetApart {
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
            apart: vec![apart(1)],
            dead: vec![apart(2)],
            spilled: vec![unit("spilled")],
            done: vec![unit("done")],
            results: vec![(unit("result"), b"r".to_vec())],
            unclaimed: vec![unit("unclaimed")],
            noted: Some(place),
        };
        let expected = [
            AccountStep::ForgetAttempt(place),
            AccountStep::SetApart(&account.apart),
            AccountStep::Bury(&account.dead),
            AccountStep::SettleMarkers(MarkerState::Spilled, &account.spilled),
            AccountStep::SettleMarkers(MarkerState::Done, &account.done),
            AccountStep::Unclaim(&account.unclaimed),
            AccountStep::RecordResults(vec![(&account.results[0].0, b"r")]),
        ];
        assert!(account.steps().eq(expected));
    }
}
