//! Workers: look for lanes with work, visit them, and sleep when there is none.
//!
//! There is no leader: every process looks by itself, and skips lanes that another process has locked.

use std::collections::{HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::backoff::Retries;
use crate::error::chain;
use crate::inbox::InboxStore;
use crate::inbox::body::panic_text;
use crate::inbox::engine::Engine;
use crate::inbox::faults::Judgement;
use crate::inbox::sessions::StaleSessions;
use crate::inbox::stored::detached::DetachedRuns;
use crate::inbox::stored::lanes::LaneVisitor;
use crate::inbox::stored::relays::RelayRuns;
use crate::inbox::stored::visit::{VisitResult, VisitTarget, WorkKind};
use crate::inbox::stored::{LogShared, LogStore};
use crate::store::Waiting;
use crate::{Error, ErrorKind};

/// The minimum pause between two polls without work.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
/// The time of listening after which the connection counts as healthy, so that the next pause is short again.
const LISTENED: Duration = Duration::from_secs(10);
/// The maximum pause between two rounds without work.
const LONGEST_IDLE_PAUSE: Duration = Duration::from_millis(80);
/// The number of idle rounds after which no work is left.
const IDLE_ROUNDS: u32 = 3;
/// The number of rounds with all lanes locked after which the handlers are checked for changes. A store gives no lane to a process
/// with outdated handlers.
const CHANGED_ROUNDS: u32 = 5;
/// The same number for the visits of [`Workers::run`].
const BUSY_VISITS: u32 = 200;
/// How often lag is measured, where metrics are on.
const MEASURE_EVERY: Duration = Duration::from_secs(10);

/// The work of a run of workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkReport {
    /// The number of committed handler runs.
    pub done: u64,
    /// The number of failed handler runs that are scheduled for retry.
    pub failed: u64,
    /// The number of messages that became dead letters.
    pub dead: u64,
    /// The number of messages that were scheduled for their due time.
    pub scheduled: u64,
    /// The number of messages that wait behind another one of their ordering key.
    pub parked: u64,
    /// The number of detached handler runs whose lease expired. They do not count, and another process runs the message.
    pub lease_lost: u64,
}

impl WorkReport {
    /// Whether no work was done.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl std::ops::AddAssign for WorkReport {
    fn add_assign(&mut self, other: Self) {
        self.done += other.done;
        self.failed += other.failed;
        self.dead += other.dead;
        self.scheduled += other.scheduled;
        self.parked += other.parked;
        self.lease_lost += other.lease_lost;
    }
}

/// The result of a round of visits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RoundResult {
    /// No lane had work.
    NoWork,
    /// Lanes were visited, but no message could run.
    Idle,
    /// Work was done here, or is in flight in another process.
    InFlight,
}

/// The queue of lanes to visit, and the lanes that are being visited.
#[derive(Default)]
struct VisitQueue {
    queue: VecDeque<VisitTarget>,
    /// Handlers and lanes that are being visited. Messages and tasks of one lane take turns.
    visited: HashSet<(usize, u16)>,
}

impl VisitQueue {
    fn add(&mut self, targets: impl IntoIterator<Item = VisitTarget>) {
        for target in targets {
            if !self.queue.contains(&target) {
                self.queue.push_back(target);
            }
        }
    }

    /// Takes the next lane that is not being visited.
    fn next(&mut self) -> Option<VisitTarget> {
        let free = self.queue.iter().position(|target| !self.visited.contains(&target.lock()))?;
        let target = self.queue.remove(free)?;
        self.visited.insert(target.lock());
        Some(target)
    }

    fn left(&mut self, target: VisitTarget) {
        self.visited.remove(&target.lock());
    }
}

/// Looks for lanes with work and visits them.
pub(crate) struct Workers<S: InboxStore> {
    lanes: Arc<LaneVisitor<S>>,
    detached: Arc<DetachedRuns<S>>,
    relays: Arc<RelayRuns<S>>,
}

impl<S: InboxStore> Workers<S> {
    pub(super) fn new(
        lanes: Arc<LaneVisitor<S>>,
        detached: Arc<DetachedRuns<S>>,
        relays: Arc<RelayRuns<S>>,
    ) -> Self {
        Self { lanes, detached, relays }
    }

    fn engine(&self) -> &Engine<S> {
        &self.lanes.engine
    }

    fn log(&self) -> &LogShared {
        &self.lanes.log
    }

    /// The number of concurrent transactions.
    fn workers(&self) -> usize {
        self.log().settings.workers_of(self.engine().store.capacity())
    }
}

impl<S: LogStore> Workers<S> {
    /// Works until `shutdown` is ready or the inbox is closed, then finishes its in-flight work.
    pub(crate) async fn run(&self, shutdown: impl Future<Output = ()> + Send) -> Result<WorkReport, Error> {
        let log = self.log();
        let shutdown = async {
            tokio::select! {
                () = shutdown => {}
                () = self.engine().doors.closed() => {}
            }
        };
        let mut shutdown = std::pin::pin!(shutdown);
        let Some(present) = self.lanes.presence.join_with_retry(&mut shutdown).await? else {
            return Ok(WorkReport::default());
        };
        let mut background = JoinSet::new();
        background.spawn(listen(self.lanes.clone()));
        background.spawn(measure_lag(self.lanes.clone()));

        let workers = self.workers();
        let mut queue = VisitQueue::default();
        let mut visits = JoinSet::new();
        let mut report = WorkReport::default();
        let mut pause = SHORTEST_PAUSE;
        let mut next_look = Instant::now();
        let mut looked_at = next_look;
        let mut retries = Retries::unlimited();
        let mut busy = 0_u32;
        loop {
            while visits.len() < workers
                && let Some(target) = queue.next()
            {
                let visit = self.visit(target);
                visits.spawn(async move { (target, visit.await) });
            }
            let has_room = visits.len() < workers;
            // Busy workers still look for work at every polling interval: tasks become due, and other lanes fill.
            let look_at =
                if has_room { next_look } else { next_look.max(looked_at + log.settings.poll_every) };
            tokio::select! {
                // Shutdown first, even if visits are always ready.
                biased;
                () = &mut shutdown => break,
                Some(visited) = visits.join_next(), if !visits.is_empty() => match visited {
                    Ok((target, visited)) => {
                        queue.left(target);
                        match visited {
                            Ok(VisitResult::Worked { report: one, more }) => {
                                // A visit without any work may have failed because the store does not respond.
                                if !one.is_empty() {
                                    log.note_error(None);
                                    retries.reset();
                                    busy = 0;
                                }
                                report += one;
                                pause = SHORTEST_PAUSE;
                                next_look = next_look.min(Instant::now() + pause);
                                if more {
                                    queue.add([target]);
                                }
                            }
                            Ok(VisitResult::Idle) => {}
                            Ok(VisitResult::Busy) => {
                                busy += 1;
                                // Equal, not greater, so that a permanent change is logged once.
                                if busy == BUSY_VISITS
                                    && let Err(error) = self.check_unchanged().await
                                {
                                    tracing::error!(error = chain(&error), "a handler receives no more messages in this process");
                                }
                            }
                            Err(error) => {
                                log.note_error(Some(chain(&error)));
                                next_look = Instant::now() + retries.next_pause();
                            }
                        }
                    }
                    Err(stopped) => tracing::error!(error = %stopped, "a visit to a lane broke off"),
                },
                () = log.wake.notified(), if has_room && retries.is_clean() => {
                    pause = SHORTEST_PAUSE;
                    next_look = Instant::now();
                    // Messages that arrive right now share this look at the store.
                    tokio::task::yield_now().await;
                    self.look_into(&mut queue, &mut pause, &mut next_look, &mut retries).await;
                }
                () = sleep_until(look_at) => {
                    looked_at = Instant::now();
                    self.look_into(&mut queue, &mut pause, &mut next_look, &mut retries).await;
                }
            }
        }
        while let Some(visited) = visits.join_next().await {
            if let Ok((_, Ok(VisitResult::Worked { report: one, .. }))) = visited {
                report += one;
            }
        }
        report += self.detached.idle().await;
        present.leave().await;
        Ok(report)
    }

    /// Keeps this process present while `other` runs. The store may respond later: `other` does not wait for it.
    pub(crate) async fn present_while<T: Send>(&self, other: impl Future<Output = T> + Send) -> T {
        let (ended, has_ended) = oneshot::channel::<()>();
        let other = async move {
            let ended_with = other.await;
            drop(ended);
            ended_with
        };
        let presence = async {
            let mut has_ended = has_ended.map(drop);
            match self.lanes.presence.join_with_retry(&mut has_ended).await {
                Ok(Some(present)) => {
                    has_ended.await;
                    present.leave().await;
                }
                Ok(None) => {}
                // It runs all the same: only operators do not see it.
                Err(error) => tracing::warn!(error = chain(&error), "could not register this process"),
            }
        };
        join(other, presence).await.0
    }

    /// Visits every lane that has work, once.
    pub(crate) async fn work_once(&self) -> Result<WorkReport, Error> {
        self.work_round().await.map(|(report, _)| report)
    }

    /// Works until nothing is left that could run now.
    pub(crate) async fn work_until_idle(&self) -> Result<WorkReport, Error> {
        let mut report = WorkReport::default();
        let (mut empty_rounds, mut idle_rounds) = (0, 0);
        let mut retries = Retries::unlimited().with_longest_pause(LONGEST_IDLE_PAUSE);
        loop {
            let (round, round_result) = self.work_round().await?;
            // A lane that waits for its own tasks has messages, but none that can run. One idle round may be a coincidence: another
            // process was faster, and left some work.
            idle_rounds =
                if round_result == RoundResult::Idle && round.is_empty() { idle_rounds + 1 } else { 0 };
            if round_result == RoundResult::NoWork || idle_rounds == IDLE_ROUNDS {
                return Ok(report);
            }
            report += round;
            // An empty round means that another process has the work in flight, or that a body must run again.
            empty_rounds = if round.is_empty() { empty_rounds + 1 } else { 0 };
            if empty_rounds == CHANGED_ROUNDS {
                self.check_unchanged().await?;
            }
            match round.is_empty() {
                true => retries.pause().await,
                false => retries.reset(),
            }
        }
    }

    /// Checks that no other process has changed the handlers. A store gives no messages to a process with outdated handlers: it
    /// would skip new kinds, or work without the markers of mixed mode.
    async fn check_unchanged(&self) -> Result<(), Error> {
        let engine = self.engine();
        let statuses = engine.store.handler_statuses().await?;
        for (handler, id) in engine.handlers.iter().zip(&self.log().ids) {
            let Some(known) = statuses.iter().map(|status| &status.handler).find(|known| known.id == *id)
            else {
                continue;
            };
            let mode = handler.mode(engine.mode);
            let has_changed = known.mode != mode
                || known.kinds != handler.kinds
                || known.ordered != handler.settings.ordered;
            if has_changed {
                return Err(Error::configuration(format!(
                    "the handler {:?} was changed by another process (its mode is {} now, {} here): start this process again, with \
                     the same kinds, mode and held_keys",
                    handler.name,
                    known.mode.name(),
                    mode.name()
                )));
            }
        }
        Ok(())
    }

    /// Looks for work once, and visits each lane with work once. If a session is out of date, it uses another connection.
    async fn work_round(&self) -> Result<(WorkReport, RoundResult), Error> {
        let mut sessions = StaleSessions::default();
        loop {
            match self.try_work_round().await {
                Err(error)
                    if Judgement::of::<S>(&error).is_session()
                        && sessions.replace(self.engine().store.capacity(), &error) => {}
                round => return round,
            }
        }
    }

    async fn try_work_round(&self) -> Result<(WorkReport, RoundResult), Error> {
        self.engine().refuse_nested()?;
        let _visit = self.engine().doors.enter()?;
        let look = self.engine().store.look(&self.log().ids).await?;
        let targets: Vec<VisitTarget> =
            look.waiting.iter().flat_map(|waiting| self.targets(waiting)).collect();
        if targets.is_empty() {
            return Ok((WorkReport::default(), RoundResult::NoWork));
        }
        let present = self.lanes.presence.join().await?;
        let mut waiting = targets.into_iter();
        let mut last_error = None;
        let mut visits = JoinSet::new();
        let mut report = WorkReport::default();
        let mut round_result = RoundResult::Idle;
        loop {
            while visits.len() < self.workers()
                && let Some(target) = waiting.next()
            {
                visits.spawn(self.visit(target));
            }
            match visits.join_next().await {
                None => break,
                Some(Ok(Ok(VisitResult::Idle))) => {}
                Some(Ok(Ok(VisitResult::Busy))) => round_result = RoundResult::InFlight,
                Some(Ok(Ok(VisitResult::Worked { report: one, .. }))) => {
                    round_result = RoundResult::InFlight;
                    report += one;
                }
                // The session is out of date: the next round uses another connection.
                Some(Ok(Err(error))) if Judgement::of::<S>(&error).is_session() => {
                    round_result = RoundResult::InFlight;
                }
                // One failed visit does not cancel the others; its error is returned at the end.
                Some(Ok(Err(error))) => last_error = Some(error),
                Some(Err(stopped)) => {
                    last_error = Some(Error::unavailable("a visit to a lane broke off", stopped));
                }
            }
        }
        report += self.detached.idle().await;
        present.leave().await;
        last_error.map_or(Ok((report, round_result)), Err)
    }

    /// The visits that a look at the store suggests. Tasks come first, because they have waited longer.
    fn targets(&self, waiting: &Waiting) -> impl Iterator<Item = VisitTarget> + use<S> {
        let handler = self.log().ids.iter().position(|id| *id == waiting.handler);
        let Waiting { lane, careful, tasks, messages, .. } = *waiting;
        let target = move |what| handler.map(|handler| VisitTarget { handler, lane, what, careful });
        let tasks = tasks.then(|| target(WorkKind::Tasks)).flatten();
        tasks.into_iter().chain(messages.then(|| target(WorkKind::Messages)).flatten())
    }

    /// Visits a lane once. A panic, which would be a bug, becomes an error, so that the lane can be visited again.
    fn visit(&self, target: VisitTarget) -> impl Future<Output = Result<VisitResult, Error>> + Send + use<S> {
        let (lanes, detached, relays) = (self.lanes.clone(), self.detached.clone(), self.relays.clone());
        let visit = async move {
            let handler = &lanes.engine.handlers[target.handler];
            match &handler.detached {
                Some(_) if handler.relay.is_some() && target.what == WorkKind::Messages => {
                    relays.visit(handler, target).await
                }
                Some(slots) => {
                    detached.visit(handler, slots, lanes.taker(handler, target.lane), target).await
                }
                None => lanes.visit(target).await,
            }
        };
        AssertUnwindSafe(visit).catch_unwind().map(|visited| {
            visited.unwrap_or_else(|panic| {
                let text = format!("a visit to a lane panicked: {}", panic_text(&*panic));
                Err(Error::new(ErrorKind::Unavailable, text))
            })
        })
    }

    async fn look_into(
        &self,
        queue: &mut VisitQueue,
        pause: &mut Duration,
        next_look: &mut Instant,
        retries: &mut Retries,
    ) {
        let log = self.log();
        match self.engine().store.look(&log.ids).await {
            Ok(look) => {
                log.note_error(None);
                retries.reset();
                let found = look.waiting.iter().flat_map(|waiting| self.targets(waiting));
                queue.add(found);
                // The pause grows until this process does some work. Lanes that other processes work in do not shorten it.
                *pause = (*pause * 2).min(log.settings.poll_every);
                // At least 1 ms: a task that is due but locked would cause a tight loop.
                let due = look.next_due.unwrap_or(Duration::MAX).max(Duration::from_millis(1));
                let pause = if mutant!("notify_is_the_only_wake_up") { MEASURE_EVERY * 60 } else { *pause };
                *next_look = Instant::now() + pause.min(due);
            }
            Err(error) => {
                log.note_error(Some(chain(&error)));
                *next_look = Instant::now() + retries.next_pause();
            }
        }
    }
}

/// Receives notifications of new messages from other processes. While there is no connection, polling finds the messages.
async fn listen<S: LogStore>(lanes: Arc<LaneVisitor<S>>) {
    if !lanes.log.settings.notify {
        return;
    }
    let mut retries = Retries::unlimited();
    loop {
        let started = Instant::now();
        if let Err(error) = lanes.engine.store.listen(|| lanes.log.wake.notify_one()).await {
            tracing::debug!(
                error = chain(&error),
                "not listening: messages of other processes are found by polling"
            );
        }
        if started.elapsed() >= LISTENED {
            retries.reset();
        }
        retries.pause().await;
    }
}

async fn measure_lag<S: LogStore>(lanes: Arc<LaneVisitor<S>>) {
    let engine = &lanes.engine;
    if !engine.observer.enabled {
        return;
    }
    loop {
        if let Ok(statuses) = engine.store.handler_statuses().await {
            for status in statuses {
                let waiting = status.lag + status.tasks;
                engine.observer.lag(&status.handler.name, waiting, status.oldest_waiting);
            }
        }
        sleep(MEASURE_EVERY).await;
    }
}
