//! A store with faults: a real store, with faults at named points.

use std::error::Error as StdError;
use std::future::Future;
use std::time::Duration;

use oncebox_core::store::{
    Account, Acted, Action, Affected, Appended, AuditEntry, Batch, Capture, Captured, Care, Claimed, Claims,
    Completion, DeadLetter, DeadLetters, DueLanes, Fault, Fence, Guarantee, HandlerId, HandlerStatus,
    Inspect, LaneChoice, LaneCount, Layout, Limits, LiveTime, Log, Marker, MessageStatus, MoveLimits,
    MoveWindow, Moved, NewMessage, NewProcess, Operate, Operation, OutboxSize, OutboxStatus, Peer, Place,
    ProcessId, Processes, Progress, PruneRange, Pruned, Ranges, Registration, Registry, Select, Spill,
    Spilled, Store, StoredMessage, Survey, TakeLimits, Taker, Task, TaskLimits, TestTime, Unfinished,
    UnhandledKind, Unit, Upkeep, WaitingMessage, Work, find_cause,
};
use oncebox_core::{Error, ErrorKind, Key, MessageId, StoredKey};

/// A point at which a fault can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// The transaction is open; the marker is not inserted yet.
    BeforeClaim,
    /// The marker is inserted, the handler about to run.
    AfterClaim,
    /// The handler has run; nothing is committed.
    BeforeCommit,
    /// Everything is committed; the caller has no result yet.
    AfterCommit,
}

/// The faults, by their points.
pub trait Faults: Clone + Send + Sync + 'static {
    /// Whether the store counts crashes. With `false` it is like one that keeps the defaults of [`Care`].
    const COUNTS_CRASHES: bool = true;

    /// Called at each point. May wait, may kill the process; an error (see [`crash`]) ends the transaction as the
    /// crash of the process would.
    fn at(&self, point: Point) -> impl Future<Output = Result<(), Error>> + Send;

    /// Called at each heartbeat of a process. With an error the store does not get it.
    fn at_heartbeat(&self) -> impl Future<Output = Result<(), Error>> + Send {
        async { Ok(()) }
    }
}

/// A store in which faults happen.
#[derive(Clone, Debug)]
pub struct Faulty<S, F> {
    store: S,
    faults: F,
}

impl<S: Store, F: Faults> Faulty<S, F> {
    /// Puts faults into a store.
    pub fn new(store: S, faults: F) -> Self {
        Self { store, faults }
    }

    /// The store without faults.
    pub fn inner(&self) -> &S {
        &self.store
    }
}

/// An error that stands for a crash of the process.
pub fn crash() -> Error {
    Error::new(ErrorKind::Unavailable, "the process crashed").with_source(Crash)
}

/// Whether an error stands for a crash of the process.
pub fn is_crash(error: &(dyn StdError + 'static)) -> bool {
    find_cause(error, |cause| cause.is::<Crash>().then_some(())).is_some()
}

/// An error of a lost connection. What was sent on it may have happened.
pub(crate) fn cut() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection was cut").with_source(Cut)
}

#[derive(Debug)]
struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a cut for the sake of the test")
    }
}

impl StdError for Cut {}

#[derive(Debug)]
struct Crash;

impl std::fmt::Display for Crash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a crash for the sake of the test")
    }
}

impl StdError for Crash {}

impl<S: Store, F: Faults> Store for Faulty<S, F> {
    const NAME: &'static str = S::NAME;
    const GUARANTEE: Guarantee = S::GUARANTEE;
    type Conn = S::Conn;
    type Tx = S::Tx;

    fn capacity(&self) -> usize {
        self.store.capacity()
    }

    fn check(&self) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.check()
    }

    fn begin(&self, limits: Limits) -> impl Future<Output = Result<S::Tx, Error>> + Send {
        self.store.begin(limits)
    }

    fn connection(tx: &mut S::Tx) -> &mut S::Conn {
        S::connection(tx)
    }

    fn arm(&self, tx: &mut S::Tx) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.arm(tx)
    }

    fn guard(&self, tx: &mut S::Tx) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.guard(tx)
    }

    async fn commit(&self, tx: S::Tx) -> Result<(), Error> {
        // A process that crashes here leaves an open transaction, which the database rolls back.
        if let Err(crash) = self.faults.at(Point::BeforeCommit).await {
            self.store.rollback(tx).await;
            return Err(crash);
        }
        // Committed, and then an error: the caller cannot know the outcome, as after a crash.
        self.store.commit(tx).await?;
        self.faults.at(Point::AfterCommit).await
    }

    fn rollback(&self, tx: S::Tx) -> impl Future<Output = ()> + Send {
        self.store.rollback(tx)
    }

    fn abandon(&self, tx: S::Tx) -> impl Future<Output = ()> + Send {
        self.store.abandon(tx)
    }

    fn body_ended(&self, tx: &mut S::Tx, ended: Result<(), &(dyn StdError + 'static)>) {
        self.store.body_ended(tx, ended);
    }

    fn is_lent(conn: &mut S::Conn) -> bool {
        S::is_lent(conn)
    }

    fn is_about_data(error: &(dyn StdError + 'static)) -> bool {
        S::is_about_data(error)
    }

    fn classify(error: &(dyn StdError + 'static)) -> Fault {
        // A crashed process does not retry: its source delivers again.
        let own = find_cause(error, |cause| {
            if cause.is::<Crash>() {
                Some(Fault::Other)
            } else {
                cause.is::<Cut>().then_some(Fault::Connection)
            }
        });
        own.unwrap_or_else(|| S::classify(error))
    }
}

impl<S: TestTime, F> TestTime for Faulty<S, F> {
    fn travel(&self, time: Duration) {
        self.store.travel(time);
    }
}

impl<S: Claims, F: Faults> Claims for Faulty<S, F> {
    async fn claim(&self, tx: &mut S::Tx, units: &[Unit]) -> Result<Vec<Claimed>, Error> {
        self.faults.at(Point::BeforeClaim).await?;
        let claimed = self.store.claim(tx, units).await?;
        // Behind a duplicate no handler runs, so there is nothing to fail after it.
        if claimed.iter().any(Claimed::is_fresh) {
            self.faults.at(Point::AfterClaim).await?;
        }
        Ok(claimed)
    }

    fn claim_in(
        &self,
        conn: &mut S::Conn,
        unit: &Unit,
    ) -> impl Future<Output = Result<Claimed, Error>> + Send {
        self.store.claim_in(conn, unit)
    }

    fn isolate(&self, tx: &mut S::Tx) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.isolate(tx)
    }

    fn keep(&self, tx: &mut S::Tx, next: bool) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.keep(tx, next)
    }

    fn undo(
        &self,
        tx: &mut S::Tx,
        unit: Option<&Unit>,
        next: bool,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.undo(tx, unit, next)
    }

    fn record_results(
        &self,
        tx: &mut S::Tx,
        results: &[(&Unit, &[u8])],
    ) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.record_results(tx, results)
    }

    fn import_processed(
        &self,
        handler: &str,
        kind: &str,
        keys: &[StoredKey],
    ) -> impl Future<Output = Result<u64, Error>> + Send {
        self.store.import_processed(handler, kind, keys)
    }
}

impl<S: Inspect, F: Faults> Inspect for Faulty<S, F> {
    fn marker(&self, unit: &Unit) -> impl Future<Output = Result<Option<Marker>, Error>> + Send {
        self.store.marker(unit)
    }

    fn markers(&self, units: &[Unit]) -> impl Future<Output = Result<Vec<Option<Marker>>, Error>> + Send {
        self.store.markers(units)
    }
}

impl<S: Registry, F: Faults> Registry for Faulty<S, F> {
    fn register(
        &self,
        log: Option<LaneCount>,
        handlers: &[Registration],
    ) -> impl Future<Output = Result<Layout, Error>> + Send {
        self.store.register(log, handlers)
    }
}

impl<S: Upkeep, F: Faults> Upkeep for Faulty<S, F> {
    fn beat(&self, tolerance: Duration) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.beat(tolerance)
    }

    fn live_time(&self) -> impl Future<Output = Result<(Vec<LiveTime>, i64), Error>> + Send {
        self.store.live_time()
    }

    fn sweep(&self, before_ms: i64, limit: u32) -> impl Future<Output = Result<u64, Error>> + Send {
        self.store.sweep(before_ms, limit)
    }

    fn forget_live_time(&self, before_ms: i64) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.forget_live_time(before_ms)
    }
}

impl<S: Log, F: Faults> Log for Faulty<S, F> {
    async fn append(&self, lane: LaneChoice, messages: &[NewMessage]) -> Result<Vec<Appended>, Error> {
        // An append is a whole transaction of the store, so both points of its commit are around it.
        self.faults.at(Point::BeforeCommit).await?;
        let appended = self.store.append(lane, messages).await?;
        self.faults.at(Point::AfterCommit).await.map(|()| appended)
    }

    fn spill(
        &self,
        spill: &Spill,
        lock_timeout: Duration,
    ) -> impl Future<Output = Result<Spilled, Error>> + Send {
        self.store.spill(spill, lock_timeout)
    }

    fn import_accepted(
        &self,
        kind: &str,
        keys: &[StoredKey],
    ) -> impl Future<Output = Result<u64, Error>> + Send {
        self.store.import_accepted(kind, keys)
    }

    fn prune(&self, lane: u16, range: PruneRange) -> impl Future<Output = Result<Pruned, Error>> + Send {
        self.store.prune(lane, range)
    }

    fn sweep_accepted(&self, before_ms: i64, limit: u32) -> impl Future<Output = Result<u64, Error>> + Send {
        self.store.sweep_accepted(before_ms, limit)
    }

    fn announce(&self) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.announce()
    }

    fn listen(&self, heard: impl Fn() + Send) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.listen(heard)
    }
}

impl<S: Capture, F: Faults> Capture for Faulty<S, F> {
    fn capture(
        &self,
        conn: &mut S::Conn,
        messages: &[Captured],
    ) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.capture(conn, messages)
    }

    fn capture_in(
        &self,
        tx: &mut S::Tx,
        messages: &[Captured],
    ) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.capture_in(tx, messages)
    }

    async fn move_captured(&self, window: &MoveWindow, limits: MoveLimits) -> Result<Option<Moved>, Error> {
        // A move is a whole transaction of the store, as an append is.
        self.faults.at(Point::BeforeCommit).await?;
        let moved = self.store.move_captured(window, limits).await?;
        self.faults.at(Point::AfterCommit).await.map(|()| moved)
    }

    fn outbox_status(&self) -> impl Future<Output = Result<OutboxStatus, Error>> + Send {
        self.store.outbox_status()
    }

    fn outbox_size(&self) -> impl Future<Output = Result<OutboxSize, Error>> + Send {
        self.store.outbox_size()
    }

    fn waiting_messages(
        &self,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<WaitingMessage>, Error>> + Send {
        self.store.waiting_messages(limit)
    }

    fn waiting_message(
        &self,
        id: MessageId,
    ) -> impl Future<Output = Result<Option<WaitingMessage>, Error>> + Send {
        self.store.waiting_message(id)
    }

    fn find_published(&self, id: MessageId) -> impl Future<Output = Result<Option<Place>, Error>> + Send {
        self.store.find_published(id)
    }

    fn unsent_messages(
        &self,
        relay: HandlerId,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StoredMessage>, Error>> + Send {
        self.store.unsent_messages(relay, limit)
    }
}

impl<S: Work, F: Faults> Work for Faulty<S, F> {
    async fn look(&self, handlers: &[HandlerId]) -> Result<DueLanes, Error> {
        let mut look = self.store.look(handlers).await?;
        // A store that counts no crashes never asks for care.
        look.waiting.iter_mut().for_each(|waiting| waiting.careful &= F::COUNTS_CRASHES);
        Ok(look)
    }

    async fn take(
        &self,
        tx: &mut S::Tx,
        taker: Taker<'_>,
        limits: TakeLimits,
    ) -> Result<Option<Batch>, Error> {
        self.faults.at(Point::BeforeClaim).await?;
        let taken = self.store.take(tx, taker, limits).await?;
        self.faults.at(Point::AfterClaim).await.map(|()| taken)
    }

    async fn take_tasks(
        &self,
        tx: &mut S::Tx,
        taker: Taker<'_>,
        limits: TaskLimits,
    ) -> Result<Option<Vec<StoredMessage>>, Error> {
        self.faults.at(Point::BeforeClaim).await?;
        let taken = self.store.take_tasks(tx, taker, limits).await?;
        self.faults.at(Point::AfterClaim).await.map(|()| taken)
    }

    fn settle(
        &self,
        tx: &mut S::Tx,
        taker: Taker<'_>,
        account: &Account,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.settle(tx, taker, account)
    }

    fn lease(
        &self,
        tx: &mut S::Tx,
        taker: Taker<'_>,
        process: ProcessId,
        messages: &[Unfinished],
    ) -> impl Future<Output = Result<Option<Fence>, Error>> + Send {
        self.store.lease(tx, taker, process, messages)
    }

    fn complete(&self, completions: &[Completion]) -> impl Future<Output = Result<Vec<bool>, Error>> + Send {
        self.store.complete(completions)
    }

    async fn finish(&self, tx: S::Tx, progress: Option<Progress>) -> Result<(), Error> {
        if let Err(crash) = self.faults.at(Point::BeforeCommit).await {
            self.store.rollback(tx).await;
            return Err(crash);
        }
        self.store.finish(tx, progress).await?;
        self.faults.at(Point::AfterCommit).await
    }
}

impl<S: Care, F: Faults> Care for Faulty<S, F> {
    async fn note_attempt(
        &self,
        handler: HandlerId,
        place: Place,
        process: ProcessId,
    ) -> Result<Option<u32>, Error> {
        if !F::COUNTS_CRASHES {
            // The default of `Care`: the first crash, each time.
            return Ok(Some(1));
        }
        self.store.note_attempt(handler, place, process).await
    }

    async fn give_back_attempt(
        &self,
        handler: HandlerId,
        place: Place,
        process: ProcessId,
    ) -> Result<(), Error> {
        if !F::COUNTS_CRASHES {
            return Ok(());
        }
        self.store.give_back_attempt(handler, place, process).await
    }

    async fn end_care(&self, handler: HandlerId, lane: u16) -> Result<(), Error> {
        if !F::COUNTS_CRASHES {
            return Ok(());
        }
        self.store.end_care(handler, lane).await
    }
}

impl<S: Processes, F: Faults> Processes for Faulty<S, F> {
    fn enter(&self, process: &NewProcess) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.enter(process)
    }

    async fn beat_process(&self, id: ProcessId) -> Result<bool, Error> {
        self.faults.at_heartbeat().await?;
        self.store.beat_process(id).await
    }

    fn leave(&self, id: ProcessId) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.leave(id)
    }

    fn peers(&self, id: ProcessId) -> impl Future<Output = Result<Vec<Peer>, Error>> + Send {
        self.store.peers(id)
    }

    fn remove_crashed(
        &self,
        id: ProcessId,
        is_seen: bool,
    ) -> impl Future<Output = Result<Option<u64>, Error>> + Send {
        self.store.remove_crashed(id, is_seen)
    }
}

impl<S: Ranges, F: Faults> Ranges for Faulty<S, F> {
    fn lease_lane(
        &self,
        taker: Taker<'_>,
        process: ProcessId,
    ) -> impl Future<Output = Result<Option<Fence>, Error>> + Send {
        self.store.lease_lane(taker, process)
    }

    fn read_range(
        &self,
        taker: Taker<'_>,
        fence: Fence,
        after: i64,
        limits: TakeLimits,
    ) -> impl Future<Output = Result<Option<Batch>, Error>> + Send {
        self.store.read_range(taker, fence, after, limits)
    }

    async fn settle_range(
        &self,
        taker: Taker<'_>,
        fence: Fence,
        account: &Account,
        progress: Option<Progress>,
    ) -> Result<bool, Error> {
        // A settlement is a whole transaction of the store, as an append is.
        self.faults.at(Point::BeforeCommit).await?;
        let settled = self.store.settle_range(taker, fence, account, progress).await?;
        self.faults.at(Point::AfterCommit).await.map(|()| settled)
    }

    fn release_lane(&self, taker: Taker<'_>, fence: Fence) -> impl Future<Output = Result<(), Error>> + Send {
        self.store.release_lane(taker, fence)
    }
}

impl<S: Operate, F: Faults> Operate for Faulty<S, F> {
    fn operate(
        &self,
        handler: &str,
        operation: &Operation,
        operator: &str,
    ) -> impl Future<Output = Result<Option<Affected>, Error>> + Send {
        self.store.operate(handler, operation, operator)
    }
}

impl<S: DeadLetters, F: Faults> DeadLetters for Faulty<S, F> {
    fn dead_letters(
        &self,
        select: &Select,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<DeadLetter>, Error>> + Send {
        self.store.dead_letters(select, limit)
    }

    fn act(
        &self,
        select: &Select,
        action: &Action,
        operator: &str,
        after: Option<(HandlerId, Place)>,
        limit: u32,
    ) -> impl Future<Output = Result<Acted, Error>> + Send {
        self.store.act(select, action, operator, after, limit)
    }

    fn audit(&self, limit: u32) -> impl Future<Output = Result<Vec<AuditEntry>, Error>> + Send {
        self.store.audit(limit)
    }
}

impl<S: Survey, F: Faults> Survey for Faulty<S, F> {
    fn handler_statuses(&self) -> impl Future<Output = Result<Vec<HandlerStatus>, Error>> + Send {
        self.store.handler_statuses()
    }

    fn pending(
        &self,
        handler: HandlerId,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StoredMessage>, Error>> + Send {
        self.store.pending(handler, limit)
    }

    fn messages(
        &self,
        lane: u16,
        behind: i64,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<MessageStatus>, Error>> + Send {
        self.store.messages(lane, behind, limit)
    }

    fn find_message(
        &self,
        kind: &str,
        key: &Key,
    ) -> impl Future<Output = Result<Option<Place>, Error>> + Send {
        self.store.find_message(kind, key)
    }

    fn tasks(
        &self,
        handler: Option<&str>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Task>, Error>> + Send {
        self.store.tasks(handler, limit)
    }

    fn unhandled_kinds(&self) -> impl Future<Output = Result<Vec<UnhandledKind>, Error>> + Send {
        self.store.unhandled_kinds()
    }
}
