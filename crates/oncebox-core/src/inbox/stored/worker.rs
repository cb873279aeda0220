//! Workers: look for lanes with work, visit them, sleep when there is none.
//!
//! There is no leader: every process looks by itself, and a lane that another one has in hand is left to it.

use std::collections::{HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::backoff::{backoff, spread};
use crate::error::chain;
use crate::inbox::Inbox;
use crate::inbox::stored::visit::{Spot, Visited};
use crate::inbox::stored::{LogStore, Stored};
use crate::inbox::unit::panic_text;
use crate::store::Fault;
use crate::{Error, ErrorKind};

/// The shortest pause between two looks that found nothing.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
/// Announcements to other processes are at least this far apart.
const ANNOUNCE_EVERY: Duration = Duration::from_millis(5);
/// After so many rounds of visits that found nothing to do, there is nothing.
const IDLE_ROUNDS: u32 = 3;
/// After so many rounds in which every lane was locked, the handlers may have changed: then no lane is free for this process again.
const CHANGED_ROUNDS: u32 = 5;
/// The same for visits of a process that goes on for ever.
const BUSY_VISITS: u32 = 200;
/// How often lag is measured, where metrics are on.
const MEASURE_EVERY: Duration = Duration::from_secs(10);

/// What workers did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkReport {
    /// Handler runs that were committed.
    pub done: u64,
    /// Handler runs that failed, and are to be tried again.
    pub failed: u64,
    /// Messages that became dead letters.
    pub dead: u64,
    /// Messages that were set apart until their time.
    pub scheduled: u64,
    /// Messages that were set apart behind another one of their ordering key.
    pub parked: u64,
    /// Runs of detached handlers whose process was taken for dead meanwhile: they do not count, and somebody else runs the
    /// message.
    pub lease_lost: u64,
}

impl WorkReport {
    /// Whether nothing was done at all.
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

/// What a round of visits found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Places {
    /// Nothing to visit.
    None,
    /// Nothing to do in any of them.
    Idle,
    /// Work, done here or in the hand of somebody else.
    InHand,
}

/// Where to go next, and where somebody is already.
#[derive(Default)]
struct Plan {
    queue: VecDeque<Spot>,
    /// Lanes of handlers that are being visited: messages and tasks of one take turns.
    visited: HashSet<(usize, u16)>,
}

impl Plan {
    fn add(&mut self, spots: impl IntoIterator<Item = Spot>) {
        for spot in spots {
            if !self.queue.contains(&spot) {
                self.queue.push_back(spot);
            }
        }
    }

    /// The next place that nobody visits.
    fn next(&mut self) -> Option<Spot> {
        let free = self.queue.iter().position(|spot| !self.visited.contains(&spot.lock()))?;
        let spot = self.queue.remove(free)?;
        self.visited.insert(spot.lock());
        Some(spot)
    }

    fn left(&mut self, spot: Spot) {
        self.visited.remove(&spot.lock());
    }
}

impl<S: LogStore> Inbox<S> {
    /// Works until `shutdown` is ready (or the inbox is closed), then finishes what is in hand. Run it in as many processes as
    /// there are: they share the work.
    ///
    /// While the store does not answer, be it at the very beginning, the workers wait for it; an error means that they can never
    /// begin.
    pub async fn run(&self, shutdown: impl Future<Output = ()> + Send) -> Result<WorkReport, Error> {
        let stored = self.stored()?;
        self.refuse_operators()?;
        let _visit = self.inner.doors.enter()?;
        let shutdown = async {
            tokio::select! {
                () = shutdown => {}
                () = self.inner.doors.closed() => {}
            }
        };
        let mut shutdown = std::pin::pin!(shutdown);
        let Some(present) = self.be_present_at_last(stored, &mut shutdown).await? else {
            return Ok(WorkReport::default());
        };
        let mut background = JoinSet::new();
        let inbox = self.clone();
        background.spawn(async move { inbox.listen().await });
        let inbox = self.clone();
        background.spawn(async move { inbox.measure_lag().await });

        let workers = self.workers(stored);
        let mut plan = Plan::default();
        let mut visits = JoinSet::new();
        let mut report = WorkReport::default();
        let mut pause = SHORTEST_PAUSE;
        let mut next_look = Instant::now();
        let mut looked_at = next_look;
        let mut troubles = 0;
        let mut busy = 0_u32;
        loop {
            while visits.len() < workers
                && let Some(spot) = plan.next()
            {
                let inbox = self.clone();
                visits.spawn(async move { (spot, inbox.visit_unharmed(spot).await) });
            }
            let has_room = visits.len() < workers;
            // Even those who have no time look up now and then: tasks are due, and other lanes fill.
            let look_at =
                if has_room { next_look } else { next_look.max(looked_at + stored.settings.poll_every) };
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(visited) = visits.join_next(), if !visits.is_empty() => match visited {
                    Ok((spot, visited)) => {
                        plan.left(spot);
                        match visited {
                            Ok(Visited::Worked { report: one, more }) => {
                                // Who has done nothing may only have learnt that the store does not answer.
                                if !one.is_empty() {
                                    stored.note_trouble(None);
                                    troubles = 0;
                                    busy = 0;
                                }
                                report += one;
                                pause = SHORTEST_PAUSE;
                                next_look = next_look.min(Instant::now() + pause);
                                if more {
                                    plan.add([spot]);
                                }
                            }
                            Ok(Visited::Idle) => {}
                            Ok(Visited::Busy) => {
                                busy += 1;
                                if busy == BUSY_VISITS
                                    && let Err(error) = self.check_unchanged().await
                                {
                                    tracing::error!(error = chain(&error), "a handler gets no more messages here");
                                }
                            }
                            Err(error) => {
                                troubles += 1;
                                stored.note_trouble(Some(chain(&error)));
                                next_look = Instant::now() + backoff(troubles, spread());
                            }
                        }
                    }
                    Err(stopped) => tracing::error!(error = %stopped, "a visit to a lane broke off"),
                },
                () = stored.wake.notified(), if has_room && troubles == 0 => {
                    pause = SHORTEST_PAUSE;
                    next_look = Instant::now();
                    // Those who come right behind share the look.
                    tokio::task::yield_now().await;
                    self.look_into(stored, &mut plan, &mut pause, &mut next_look, &mut troubles).await;
                }
                () = sleep_until(look_at) => {
                    looked_at = Instant::now();
                    self.look_into(stored, &mut plan, &mut pause, &mut next_look, &mut troubles).await;
                }
            }
        }
        while let Some(visited) = visits.join_next().await {
            if let Ok((_, Ok(Visited::Worked { report: one, .. }))) = visited {
                report += one;
            }
        }
        stored.bodies.idle().await;
        report += stored.bodies.report();
        present.leave().await;
        Ok(report)
    }

    /// Visits every lane that has work, once. For cron-like use.
    pub async fn work_once(&self) -> Result<WorkReport, Error> {
        self.work_round().await.map(|(report, _)| report)
    }

    /// Works until nothing is left that could run now. Tasks whose time has not come stay.
    pub async fn work_until_idle(&self) -> Result<WorkReport, Error> {
        let mut report = WorkReport::default();
        let (mut empty_rounds, mut idle_rounds) = (0, 0);
        loop {
            let (round, places) = self.work_round().await?;
            // Where a lane waits for its own tasks there are messages, and nothing to do. Once may be by chance: somebody else was
            // faster, and left something behind.
            idle_rounds = if places == Places::Idle && round.is_empty() { idle_rounds + 1 } else { 0 };
            if places == Places::None || idle_rounds == IDLE_ROUNDS {
                return Ok(report);
            }
            report += round;
            // Somebody else has it in hand, or a body has to be tried again.
            empty_rounds = if round.is_empty() { empty_rounds + 1 } else { 0 };
            if empty_rounds == CHANGED_ROUNDS {
                self.check_unchanged().await?;
            }
            if empty_rounds > 0 {
                sleep(backoff(empty_rounds.min(3), spread())).await;
            }
        }
    }

    /// Whether the handlers are still what this process knows. A store gives no messages to a process that knows them otherwise: it
    /// would pass over kinds that are new, or work without the markers of mixed mode.
    async fn check_unchanged(&self) -> Result<(), Error> {
        let stored = self.stored()?;
        let statuses = self.inner.store.handler_statuses().await?;
        for (handler, id) in self.inner.handlers.iter().zip(&stored.ids) {
            let Some(known) = statuses.iter().map(|status| &status.handler).find(|known| known.id == *id)
            else {
                continue;
            };
            let mode = handler.mode(self.inner.mode);
            let has_changed = known.mode != mode
                || known.kinds != handler.kinds
                || known.ordered != handler.settings.ordered;
            if has_changed {
                return Err(Error::configuration(format!(
                    "the handler {:?} was changed by another process (its mode is {} now, {} here): start this process again, with \
                     the same kinds, mode and order",
                    handler.name,
                    known.mode.name(),
                    mode.name()
                )));
            }
        }
        Ok(())
    }

    /// One look and one visit to each place where there is work; on another connection, where the session of one is out of date.
    async fn work_round(&self) -> Result<(WorkReport, Places), Error> {
        let mut sessions = 0;
        loop {
            match self.try_work_round().await {
                Err(error) if S::classify(&error) == Fault::Session && sessions < self.sessions_max() => {
                    sessions += 1;
                }
                round => return round,
            }
        }
    }

    async fn try_work_round(&self) -> Result<(WorkReport, Places), Error> {
        self.refuse_nested()?;
        let stored = self.stored()?;
        let _visit = self.inner.doors.enter()?;
        let look = self.inner.store.look(&stored.ids).await?;
        let spots: Vec<Spot> = look.waiting.iter().flat_map(|waiting| self.spots(stored, waiting)).collect();
        if spots.is_empty() {
            return Ok((WorkReport::default(), Places::None));
        }
        let present = self.be_present(stored).await?;
        let mut waiting = spots.into_iter();
        let mut trouble = None;
        let mut visits = JoinSet::new();
        let mut report = WorkReport::default();
        let mut places = Places::Idle;
        loop {
            while visits.len() < self.workers(stored)
                && let Some(spot) = waiting.next()
            {
                let inbox = self.clone();
                visits.spawn(async move { inbox.visit_unharmed(spot).await });
            }
            match visits.join_next().await {
                None => break,
                Some(Ok(Ok(Visited::Idle))) => {}
                Some(Ok(Ok(Visited::Busy))) => places = Places::InHand,
                Some(Ok(Ok(Visited::Worked { report: one, .. }))) => {
                    places = Places::InHand;
                    report += one;
                }
                // The next round has another connection.
                Some(Ok(Err(error))) if S::classify(&error) == Fault::Session => places = Places::InHand,
                // What the others do is not lost.
                Some(Ok(Err(error))) => trouble = Some(error),
                Some(Err(stopped)) => {
                    trouble = Some(Error::unavailable("a visit to a lane broke off", stopped));
                }
            }
        }
        stored.bodies.idle().await;
        report += stored.bodies.report();
        present.leave().await;
        trouble.map_or(Ok((report, places)), Err)
    }

    /// A visit that panics, which none should, leaves its place to the next one.
    async fn visit_unharmed(&self, spot: Spot) -> Result<Visited, Error> {
        AssertUnwindSafe(self.visit(spot)).catch_unwind().await.unwrap_or_else(|panic| {
            let text = format!("a visit to a lane panicked: {}", panic_text(&*panic));
            Err(Error::new(ErrorKind::Unavailable, text))
        })
    }

    async fn look_into(
        &self,
        stored: &Stored,
        plan: &mut Plan,
        pause: &mut Duration,
        next_look: &mut Instant,
        troubles: &mut u32,
    ) {
        match self.inner.store.look(&stored.ids).await {
            Ok(look) => {
                stored.note_trouble(None);
                *troubles = 0;
                let found = look.waiting.iter().flat_map(|waiting| self.spots(stored, waiting));
                plan.add(found);
                // Work that is done here makes it short again; lanes that others have in hand do not.
                *pause = (*pause * 2).min(stored.settings.poll_every);
                let due = look.next_due.unwrap_or(Duration::MAX).max(Duration::from_millis(1));
                let pause = if mutant!("notify_is_the_only_wake_up") { MEASURE_EVERY * 60 } else { *pause };
                *next_look = Instant::now() + pause.min(due);
            }
            Err(error) => {
                *troubles += 1;
                stored.note_trouble(Some(chain(&error)));
                *next_look = Instant::now() + backoff(*troubles, spread());
            }
        }
    }

    fn workers(&self, stored: &Stored) -> usize {
        stored.settings.workers_of(self.inner.store.capacity())
    }

    /// Hears of other processes' messages, as long as there is a connection; without one there is the look.
    async fn listen(&self) {
        let Ok(stored) = self.stored() else { return };
        if !stored.settings.notify {
            return;
        }
        loop {
            if let Err(error) = self.inner.store.listen(|| stored.wake.notify_one()).await {
                tracing::debug!(
                    error = chain(&error),
                    "not listening: messages of others are found by looking"
                );
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Tells other processes in the background, not more often than they can hear.
    pub(crate) fn announce(&self) {
        let Ok(stored) = self.stored() else { return };
        if stored.announcing.swap(true, Ordering::AcqRel) {
            return;
        }
        let inbox = self.clone();
        tokio::spawn(async move {
            sleep(ANNOUNCE_EVERY).await;
            if let Ok(stored) = inbox.stored() {
                stored.announcing.store(false, Ordering::Release);
            }
            if let Err(error) = inbox.inner.store.announce().await {
                tracing::debug!(error = chain(&error), "not announced: messages are found by looking");
            }
        });
    }

    async fn measure_lag(&self) {
        let observer = self.inner.observer;
        if !observer.enabled {
            return;
        }
        loop {
            if let Ok(statuses) = self.inner.store.handler_statuses().await {
                for status in statuses {
                    observer.lag(&status.handler.name, status.lag + status.tasks, status.oldest_waiting);
                }
            }
            sleep(MEASURE_EVERY).await;
        }
    }
}
