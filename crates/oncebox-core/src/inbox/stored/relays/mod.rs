//! Relays: handlers outside of transactions that lease a lane, and send ranges of its messages to a sink.
//!
//! A range is read without a lock, sent, and settled under the fence of the lease. Refused messages become tasks, which
//! [detached runs](super::detached) send one by one.

mod handler;
mod range;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::future::join;
use futures_util::stream::{FuturesUnordered, StreamExt};
pub(crate) use handler::RelayHandler;
pub(super) use handler::unconfirmed;
use range::{LaneMemory, RangeRun, outgoing};
use tokio::sync::OwnedSemaphorePermit;

use crate::backoff::Retries;
use crate::error::chain;
use crate::inbox::InboxStore;
use crate::inbox::registered::Registered;
use crate::inbox::stored::detached::Bodies;
use crate::inbox::stored::lanes::LaneVisitor;
use crate::inbox::stored::presence::ThisProcess;
use crate::inbox::stored::visit::{TakenBatch, VisitResult, VisitTarget};
use crate::inbox::stored::work::BatchRun;
use crate::inbox::stored::worker::WorkReport;
use crate::inbox::stored::{LogStore, lock};
use crate::outbox::{RelayLink, unknown};
use crate::store::{Account, Batch, Fence, Progress, StoredMessage, TakeLimits, Taker};
use crate::{Error, Outgoing, Verdict, observe};

/// The maximum number of positions that one range covers, and the maximum size of its bodies.
const POSITIONS: u32 = 1 << 16;
const BYTES: u64 = 4 * 1024 * 1024;
/// The time after which a lane is released, so that processes share the lanes.
const LANE_TIME: Duration = Duration::from_secs(1);
/// The share of the lease that a sink may take for one wave.
const SINK_SHARE: u32 = 3;

/// The time limit of a sink, with a lease of this length.
pub(crate) fn sink_limit(lease: Duration) -> Duration {
    lease / SINK_SHARE
}

/// Sends messages of leased lanes.
pub(super) struct RelayRuns<S: InboxStore> {
    lanes: Arc<LaneVisitor<S>>,
    bodies: Arc<Bodies>,
    /// The lanes of each relay, by its index.
    states: Mutex<HashMap<(usize, u16), LaneState>>,
}

/// What this process knows of a lane of a relay.
#[derive(Debug)]
struct LaneState {
    is_running: bool,
    /// The sink did not confirm: the next range begins then.
    not_before: Instant,
    retries: Retries,
    memory: LaneMemory,
}

impl LaneState {
    fn new() -> Self {
        Self {
            is_running: false,
            not_before: Instant::now(),
            retries: Retries::unlimited(),
            memory: LaneMemory::default(),
        }
    }
}

/// A lane under a lease of this process.
struct LeasedLane<S: InboxStore> {
    runs: Arc<RelayRuns<S>>,
    index: usize,
    lane: u16,
    fence: Fence,
    process: ThisProcess,
}

/// Why the work in a lane ended.
enum LaneEnd {
    /// Nothing was left, or the time was over.
    Released,
    /// The sink did not confirm everything, or too many messages wait for a retry.
    Waits,
    /// The lease has ended.
    LeaseLost,
}

/// The result of sending a range.
struct SentRange {
    taken: TakenBatch,
    ran: BatchRun,
    is_complete: bool,
}

impl<S: InboxStore> RelayRuns<S> {
    pub(super) fn new(lanes: Arc<LaneVisitor<S>>, bodies: Arc<Bodies>) -> Self {
        Self { lanes, bodies, states: Mutex::default() }
    }

    fn states(&self) -> MutexGuard<'_, HashMap<(usize, u16), LaneState>> {
        lock(&self.states)
    }

    /// Reserves a lane for one visit of this process.
    fn enter(&self, lane: (usize, u16)) -> bool {
        let mut states = self.states();
        let state = states.entry(lane).or_insert_with(LaneState::new);
        let may_enter = !state.is_running && state.not_before <= Instant::now();
        state.is_running |= may_enter;
        may_enter
    }

    fn leave(&self, lane: (usize, u16)) {
        if let Some(state) = self.states().get_mut(&lane) {
            state.is_running = false;
        }
    }
}

impl<S: LogStore> RelayRuns<S> {
    /// Leases a lane, and starts to send its messages. Does not wait for them.
    pub(super) async fn visit(
        self: &Arc<Self>,
        handler: &Registered<S>,
        target: VisitTarget,
    ) -> Result<VisitResult, Error> {
        let taker = self.lanes.taker(handler, target.lane);
        if target.careful {
            // A crash of this process says nothing about a message: no code of a handler runs.
            self.lanes.engine.store.end_care(taker.handler, taker.lane).await?;
        }
        let at = (handler.index, target.lane);
        if !self.enter(at) {
            return Ok(VisitResult::Idle);
        }
        let (Some(process), Some(present)) = (self.lanes.presence.process(), self.lanes.presence.stay())
        else {
            self.leave(at);
            return Ok(VisitResult::Idle);
        };
        let fence = match self.lanes.engine.store.lease_lane(taker, process.id).await {
            Ok(Some(fence)) => fence,
            Ok(None) => {
                self.leave(at);
                present.leave().await;
                return Ok(VisitResult::Busy);
            }
            Err(error) => {
                // It may hold the lease all the same, and no look finds a leased lane.
                let (runs, body) = (self.clone(), self.bodies.begin());
                tokio::spawn(async move {
                    runs.give_back(at, &process).await;
                    runs.leave(at);
                    present.leave().await;
                    drop(body);
                });
                return Err(error);
            }
        };
        let lane = LeasedLane { runs: self.clone(), index: handler.index, lane: target.lane, fence, process };
        let mut body = self.bodies.begin();
        tokio::spawn(async move {
            lane.work(&mut body.report).await;
            lane.runs.leave(at);
            present.leave().await;
            lane.runs.lanes.log.wake.notify_one();
            drop(body);
        });
        Ok(VisitResult::Worked { report: WorkReport::default(), more: false })
    }
}

impl<S: LogStore> RelayRuns<S> {
    /// Whether leases of this process can exist. They end with its registration, and only with that: after an outage that was longer
    /// than the lease its runs are cancelled, but it continues under the same id unless another process has removed it.
    fn may_have_lease(&self, process: &ThisProcess) -> bool {
        self.lanes.presence.process().is_some_and(|current| current.id == process.id)
    }

    /// Ends a lease of which it is unknown whether it exists.
    async fn give_back(&self, (index, lane): (usize, u16), process: &ThisProcess) {
        let taker = self.lanes.taker(&self.lanes.engine.handlers[index], lane);
        let mut retries = Retries::unlimited();
        while self.may_have_lease(process) {
            match self.lanes.engine.store.lease_lane(taker, process.id).await {
                Ok(Some(fence)) => return self.release(taker, fence, process).await,
                Ok(None) => return,
                Err(_) => retries.pause().await,
            }
        }
    }

    /// Ends a lease. Tries until the store responds: no look finds a leased lane.
    async fn release(&self, taker: Taker<'_>, fence: Fence, process: &ThisProcess) {
        let mut retries = Retries::unlimited();
        while self.may_have_lease(process) {
            match self.lanes.engine.store.release_lane(taker, fence).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::debug!(
                        error = chain(&error),
                        "could not release a lane: another attempt follows"
                    );
                    retries.pause().await;
                }
            }
        }
    }
}

impl<S: LogStore> LeasedLane<S> {
    fn lanes(&self) -> &LaneVisitor<S> {
        &self.runs.lanes
    }

    fn handler(&self) -> &Registered<S> {
        &self.lanes().engine.handlers[self.index]
    }

    /// Sends ranges until nothing is left, or the time is over, and releases the lane.
    async fn work(&self, report: &mut WorkReport) {
        let Some(link) = &self.handler().relay else { return };
        let ended = self.send_ranges(link, report).await;
        let lanes = self.lanes();
        let mut pause = None;
        {
            let mut states = self.runs.states();
            let Some(state) = states.get_mut(&(self.index, self.lane)) else { return };
            match ended {
                Ok(LaneEnd::Released | LaneEnd::LeaseLost) => state.retries.reset(),
                Ok(LaneEnd::Waits) | Err(_) => {
                    let next = state.retries.next_pause();
                    state.not_before = Instant::now() + next;
                    pause = Some(next);
                }
            }
        }
        if let Some(pause) = pause {
            let log = lanes.log.clone();
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                log.wake.notify_one();
            });
        }
        match ended {
            Ok(LaneEnd::LeaseLost) => {
                report.lease_lost += 1;
                lanes.engine.observer.count(observe::LEASES_LOST, &self.handler().name);
                tracing::warn!(
                    relay = &*self.handler().name,
                    lane = self.lane,
                    "LeaseLost: the lease of this lane ended while its messages were sent, and they are sent again"
                );
            }
            Ok(LaneEnd::Released | LaneEnd::Waits) => self.release().await,
            Err(error) => {
                lanes.log.note_error(Some(chain(&error)));
                if !mutant!("leased_lane_is_not_released_after_error") {
                    self.release().await;
                }
            }
        }
    }

    /// Ends the lease.
    async fn release(&self) {
        let taker = self.lanes().taker(self.handler(), self.lane);
        self.runs.release(taker, self.fence, &self.process).await;
    }

    async fn send_ranges(&self, link: &RelayLink, report: &mut WorkReport) -> Result<LaneEnd, Error> {
        let started = Instant::now();
        let Some(mut batch) = self.read(link, 0).await? else { return Ok(LaneEnd::LeaseLost) };
        loop {
            if batch.reached <= batch.from {
                // Messages that cannot be read yet: too many wait for a retry.
                return Ok(if batch.head > batch.from { LaneEnd::Waits } else { LaneEnd::Released });
            }
            let behind = batch.reached;
            let has_more = batch.head > behind;
            // The next range is read while the verdicts of this one are outstanding.
            let ahead = async {
                match has_more && started.elapsed() < LANE_TIME {
                    true => self.read(link, behind).await.map(Some),
                    false => Ok(None),
                }
            };
            let (sent, ahead) = join(self.send(link, batch), ahead).await;
            let (account, one) = {
                let handler = self.handler();
                self.lanes().rules(handler).account(&sent.taken, &sent.ran)
            };
            if !self.settle(sent.taken.progress, &account).await? {
                return Ok(LaneEnd::LeaseLost);
            }
            self.lanes().log.note_error(None);
            self.observe(&sent, &one, &account);
            *report += one;
            if !sent.is_complete {
                return Ok(LaneEnd::Waits);
            }
            if self.process.cancellation.is_cancelled() {
                return Ok(LaneEnd::Released);
            }
            batch = match ahead? {
                // What was read before exceptions were written does not know which keys they hold back.
                Some(_) if !account.is_empty() => match self.read(link, 0).await? {
                    Some(next) => next,
                    None => return Ok(LaneEnd::LeaseLost),
                },
                Some(Some(next)) => next,
                Some(None) => return Ok(LaneEnd::LeaseLost),
                None => return Ok(LaneEnd::Released),
            };
        }
    }

    /// Whether no other process can have leased the lane before the verdict of a message that is sent now.
    fn has_fresh_lease(&self) -> bool {
        self.lanes().presence.is_fresh() || mutant!("relay_keeps_sending_without_heartbeat")
    }

    async fn read(&self, link: &RelayLink, after: i64) -> Result<Option<Batch>, Error> {
        let limits = TakeLimits {
            messages: u32::try_from(link.in_flight).unwrap_or(u32::MAX),
            positions: POSITIONS,
            bytes: BYTES,
            open_tasks: Some(link.open_tasks),
        };
        let taker = self.lanes().taker(self.handler(), self.lane);
        self.lanes().engine.store.read_range(taker, self.fence, after, limits).await
    }

    /// Sends a range, and waits for its verdicts.
    async fn send(&self, link: &RelayLink, batch: Batch) -> SentRange {
        let handler = self.handler();
        let taker = self.lanes().taker(handler, self.lane);
        let (epoch, from) = (batch.epoch, batch.from);
        let mut taken = TakenBatch::messages(taker, batch);
        let mut memory = {
            let mut states = self.runs.states();
            let state = states.entry((self.index, self.lane)).or_insert_with(LaneState::new);
            state.memory.advance(epoch, from);
            std::mem::take(&mut state.memory)
        };
        let ordered = handler.settings.ordered.is_some();
        let mut run = RangeRun::new(&taken.messages, ordered, link.sink.keeps_order(), &memory);
        let started = Instant::now();
        let mut flights = FuturesUnordered::new();
        let (mut why, mut has_responded) = (None, false);
        loop {
            // Others may have leased the lane, if this process has not reached the store for long.
            if self.process.cancellation.is_cancelled() || !self.has_fresh_lease() {
                run.cut();
            }
            while run.ready() > 0 {
                let most = run.ready().min(link.sink.wave());
                let Some((permits, size)) = self.permits(link, most, flights.is_empty()).await else { break };
                let wave = run.next_wave(size);
                flights.push(self.fly(link, &mut taken.messages, wave, permits));
            }
            let Some((wave, sent, verdicts)) = flights.next().await else { break };
            for ((n, sent), verdict) in wave.into_iter().zip(sent).zip(verdicts) {
                // The body goes back, for the hook of dead letters.
                (taken.messages[n].body, taken.messages[n].headers) = (sent.body, sent.headers);
                let unknown = run.record(n, verdict);
                has_responded |= unknown.is_none();
                why = unknown.or(why);
            }
        }
        drop(flights);
        let end = run.end(&mut memory);
        match why {
            Some(why) => link.note(&handler.name, Some(why)),
            // A sink that refuses messages responds.
            None if has_responded => link.note(&handler.name, None),
            None => {}
        }
        let is_complete = end.ended.len() == taken.messages.len();
        if !is_complete {
            // The progress stops before the first message without an end.
            taken.messages.truncate(end.ended.len());
            let last = taken.messages.last().map(|message| message.place.pos);
            if !mutant!("relay_skips_past_unconfirmed") {
                taken.progress = taken.progress.zip(last).map(|(progress, pos)| Progress { pos, ..progress });
            }
        }
        if let Some(state) = self.runs.states().get_mut(&(self.index, self.lane)) {
            state.memory = memory;
        }
        let ran = BatchRun { ended: end.ended, bodies: end.confirmed, took: started.elapsed() };
        SentRange { taken, ran, is_complete }
    }

    /// Permits for a wave, and their number. Waits for one only if nothing of this lane is in flight.
    async fn permits(
        &self,
        link: &RelayLink,
        most: usize,
        may_wait: bool,
    ) -> Option<(OwnedSemaphorePermit, usize)> {
        let free = link.permits.available_permits().min(most);
        if let Ok(size @ 1..) = u32::try_from(free)
            && let Ok(permits) = link.permits.clone().try_acquire_many_owned(size)
        {
            return Some((permits, free));
        }
        match may_wait {
            true => link.permits.clone().acquire_owned().await.ok().map(|permit| (permit, 1)),
            false => None,
        }
    }

    /// Sends a wave. The future holds everything that it needs.
    fn fly(
        &self,
        link: &RelayLink,
        messages: &mut [StoredMessage],
        wave: Vec<usize>,
        permits: OwnedSemaphorePermit,
    ) -> impl Future<Output = (Vec<usize>, Vec<Outgoing>, Vec<Verdict>)> + Send + use<S> {
        let relay = &self.handler().name;
        // `read_range` returns published messages only; any other one would have no end, and stop the lane.
        let sent: Vec<Outgoing> = wave.iter().filter_map(|n| outgoing(&mut messages[*n], relay)).collect();
        let (sink, limit) = (link.sink.clone(), sink_limit(self.lanes().log.settings.lease));
        async move {
            let published = tokio::time::timeout(limit, sink.publish(&sent)).await;
            let verdicts =
                published.unwrap_or_else(|_elapsed| unknown(sent.len(), "the sink did not respond in time"));
            drop(permits);
            (wave, sent, verdicts)
        }
    }

    /// Writes exceptions and progress. Returns whether the lease still held.
    async fn settle(&self, progress: Option<Progress>, account: &Account) -> Result<bool, Error> {
        if progress.is_none() && account.is_empty() {
            return Ok(true);
        }
        let taker = self.lanes().taker(self.handler(), self.lane);
        let store = &self.lanes().engine.store;
        let mut retries = Retries::within(self.lanes().log.settings.lease);
        loop {
            match store.settle_range(taker, self.fence, account, progress).await {
                Ok(is_held) => return Ok(is_held),
                // Written twice, the same progress is one row, and the same task is refused: then nothing is written.
                Err(error) => retries.after::<S>(error).await?,
            }
        }
    }

    fn observe(&self, sent: &SentRange, report: &WorkReport, account: &Account) {
        let (lanes, handler) = (self.lanes(), self.handler());
        lanes.observe_visit(handler, &sent.taken, &sent.ran, report);
        lanes.report_dead_letters(handler, &sent.taken, account);
    }
}
