//! Detached handlers: messages are leased in a short transaction, and run outside of any.
//!
//! A task that runs belongs to its process, which says again and again that it is alive; how it ended is written under the fence
//! that it was leased with. If the process dies, somebody else leases the task under a newer fence, and what the first one
//! still has to say does not count.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures_util::FutureExt;
use tokio::sync::{Notify, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, OwnedSemaphorePermit, Semaphore};
use tracing::Instrument;

use crate::backoff::{backoff, spread};
use crate::handler::{Detachment, Returned};
use crate::inbox::Inbox;
use crate::inbox::builder::Registered;
use crate::inbox::stored::care::{CRASHES_MAX, died};
use crate::inbox::stored::presence::Process;
use crate::inbox::stored::settle::{Account, Fate, apart, unit_of_message};
use crate::inbox::stored::visit::{Behind, Course, Spot, Taken, Visited, What};
use crate::inbox::stored::work::{Ended, Order, Ran};
use crate::inbox::stored::worker::WorkReport;
use crate::inbox::stored::{LogStore, Stored};
use crate::inbox::unit::{failed, panicked};
use crate::outcome::Outcome;
use crate::store::{
    Batch, Completion, End, Fault, Fence, MarkerState, Progress, SetApart, StoredMessage, TakeLimits, Taker,
    TaskLimits,
};
use crate::{Error, Failure, observe};

/// Positions that are looked at for messages to lease, and bytes of bodies.
const POSITIONS: u32 = 1 << 16;
const BYTES: u64 = 8 * 1024 * 1024;

/// What a detached handler has beside the rest.
#[derive(Debug)]
pub(crate) struct Slots {
    settings: Detachment,
    free: Arc<Semaphore>,
}

impl Slots {
    pub(crate) fn new(settings: Detachment) -> Self {
        Self { settings, free: Arc::new(Semaphore::new(settings.concurrency.min(Semaphore::MAX_PERMITS))) }
    }
}

/// The bodies that run now, and what those came to that have ended.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    state: Mutex<(usize, WorkReport)>,
    ended: Notify,
}

impl Bodies {
    fn begin(self: &Arc<Self>) -> Body {
        self.lock().0 += 1;
        Body { bodies: self.clone(), report: WorkReport::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (usize, WorkReport)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What bodies came to since the last time this was asked.
    pub(super) fn report(&self) -> WorkReport {
        std::mem::take(&mut self.lock().1)
    }

    /// Waits until none runs.
    pub(super) async fn idle(&self) {
        loop {
            let ended = self.ended.notified();
            if self.lock().0 == 0 {
                return;
            }
            ended.await;
        }
    }
}

/// One that runs; however it ends, it is counted out.
struct Body {
    bodies: Arc<Bodies>,
    report: WorkReport,
}

impl Drop for Body {
    fn drop(&mut self) {
        let mut state = self.bodies.lock();
        state.0 -= 1;
        state.1 += self.report;
        drop(state);
        self.bodies.ended.notify_waiters();
    }
}

/// Beside whom messages run, from before they are leased until it is written how they ended: whoever dies with a process is
/// blamed for it, so those of which one may have died already have the process to themselves.
#[derive(Clone)]
enum Company {
    Others(#[allow(dead_code, reason = "held")] Arc<OwnedRwLockReadGuard<()>>),
    Nobody(#[allow(dead_code, reason = "held")] Arc<OwnedRwLockWriteGuard<()>>),
}

impl Company {
    /// Whether a message may run in it.
    fn suits(&self, message: &StoredMessage) -> bool {
        match self {
            Self::Others(_) => message.crashes == 0,
            Self::Nobody(_) => message.crashes > 0,
        }
    }
}

/// A message of which a process may have died waits, or runs; however it ends, the next one may.
struct Suspect<S: LogStore>(Inbox<S>);

impl<S: LogStore> Drop for Suspect<S> {
    fn drop(&mut self) {
        if let Ok(stored) = self.0.stored() {
            stored.has_suspect.store(false, Ordering::Release);
            stored.wake.notify_one();
        }
    }
}

/// A transaction that is about to lease messages.
struct Landing {
    index: usize,
    lane: u16,
    taken: Taken,
    ran: Ran,
    account: Account,
    leases: Vec<SetApart>,
    fence: Option<Fence>,
}

/// What was leased in one transaction.
struct Leased {
    messages: Vec<StoredMessage>,
    /// `None` where a message counts as handled before it runs.
    fence: Option<Fence>,
}

impl<S: LogStore> Inbox<S> {
    /// Leases what there is room for, and starts it.
    pub(super) async fn visit_detached(
        &self,
        stored: &Stored,
        handler: &Registered<S>,
        slots: &Slots,
        taker: Taker<'_>,
        spot: Spot,
    ) -> Result<Visited, Error> {
        if spot.careful {
            // Their tasks count crashes themselves.
            self.inner.store.end_care(taker.handler, taker.lane).await?;
        }
        // Somebody has the process to himself, or waits for that.
        let Ok(others) = stored.alone.clone().try_read_owned() else { return Ok(Visited::Idle) };
        let company = Company::Others(Arc::new(others));
        self.lease_beside(stored, handler, slots, taker, spot, company).await
    }

    /// Leases one message of which a process may have died, as soon as nothing else runs here, and starts it.
    fn lease_suspect(&self, stored: &Stored, handler: &Registered<S>, taker: Taker<'_>, spot: Spot) {
        if stored.has_suspect.swap(true, Ordering::AcqRel) {
            return;
        }
        let suspect = Suspect(self.clone());
        let (index, lane) = (handler.index, taker.lane);
        let (alone, body) = (stored.alone.clone(), stored.bodies.begin());
        tokio::spawn(async move {
            let company = Company::Nobody(Arc::new(alone.write_owned().await));
            let inbox = &suspect.0;
            let handler = &inbox.inner.handlers[index];
            if let (Ok(stored), Some(slots)) = (inbox.stored(), &handler.detached) {
                let taker = inbox.taker(stored, handler, lane);
                let leased = inbox.lease_beside(stored, handler, slots, taker, spot, company).await;
                if let Err(error) = leased {
                    tracing::debug!(
                        error = crate::error::chain(&error),
                        "not leased: the store did not answer"
                    );
                }
            }
            drop(body);
        });
    }

    async fn lease_beside(
        &self,
        stored: &Stored,
        handler: &Registered<S>,
        slots: &Slots,
        taker: Taker<'_>,
        spot: Spot,
        company: Company,
    ) -> Result<Visited, Error> {
        // Whoever started this may be gone: nothing is leased to a process that has signed off.
        let Some(present) = self.stay_present(stored) else { return Ok(Visited::Idle) };
        let visited = self.lease_and_start(stored, handler, slots, taker, spot, company).await;
        present.leave().await;
        visited
    }

    async fn lease_and_start(
        &self,
        stored: &Stored,
        handler: &Registered<S>,
        slots: &Slots,
        taker: Taker<'_>,
        spot: Spot,
        company: Company,
    ) -> Result<Visited, Error> {
        let Some(process) = stored.presence.process() else { return Ok(Visited::Idle) };
        let mut permits = Vec::new();
        while let Ok(permit) = slots.free.clone().try_acquire_owned() {
            permits.push(permit);
        }
        if permits.is_empty() || process.cancellation.is_cancelled() {
            return Ok(Visited::Idle);
        }
        let room = u32::try_from(permits.len()).unwrap_or(u32::MAX);
        let course = self.course(stored, handler, spot);
        let Some(mut tx) = self.begin_visit(&course).await? else { return Ok(Visited::Busy) };
        let mut taken = match self.take_to_lease(&mut tx, slots, taker, spot.what, room).await {
            Ok(Some(taken)) if !taken.is_empty() => taken,
            other => {
                self.inner.store.rollback(tx).await;
                return Ok(if other?.is_some() { Visited::Idle } else { Visited::Busy });
            }
        };
        if slots.settings.blameless {
            taken.messages.iter_mut().for_each(|message| message.crashes = 0);
        }
        let (ran, leases) = self.sort_out(handler, &taken, &company);
        let is_suspect = |message: &StoredMessage| (1..CRASHES_MAX).contains(&message.crashes);
        if matches!(company, Company::Others(_)) && taken.messages.iter().any(is_suspect) {
            self.lease_suspect(stored, handler, taker, spot);
        }
        if ran.ended.iter().all(|ended| matches!(ended, Ended::Again)) && taken.progress.is_none() {
            self.inner.store.rollback(tx).await;
            return Ok(Visited::Idle);
        }
        let mut account = self.settle_up(stored, handler, &taken, &ran);
        // Those that go back because of their company have not been tried.
        for (message, _) in
            taken.messages.iter().zip(&ran.ended).filter(|(_, ended)| matches!(ended, Ended::Again))
        {
            let back = account.settled.apart.iter_mut().find(|back| back.pos == message.place.pos);
            if let Some(back) = back {
                back.due_in = std::time::Duration::ZERO;
            }
        }
        // What is to run is not done yet, unless it is never to run again.
        account.report.done = 0;
        if !slots.settings.at_most_once {
            account.done.clear();
        }
        let written = async {
            self.write_account(&mut tx, taker, &account, &course).await?;
            match slots.settings.at_most_once || leases.is_empty() {
                true => Ok(Some(None)),
                false => Ok(self.inner.store.lease(&mut tx, taker, process.id, &leases).await?.map(Some)),
            }
        };
        let fence = match written.await {
            Ok(Some(fence)) => fence,
            // Taken for dead; the next beat will tell.
            Ok(None) => {
                self.inner.store.rollback(tx).await;
                return Ok(Visited::Idle);
            }
            Err(error) => {
                self.inner.store.rollback(tx).await;
                return Err(error);
            }
        };
        // From here on it takes its course, whoever waits for it: what is leased must run.
        let landing = Landing { index: handler.index, lane: taker.lane, taken, ran, account, leases, fence };
        let (inbox, present) = (self.clone(), self.stay_present(stored));
        let landed = tokio::spawn(async move {
            let landed = inbox.land(tx, landing, &process, permits, &company).await;
            if let Some(present) = present {
                present.leave().await;
            }
            landed
        });
        landed.await.unwrap_or_else(|stopped| Err(Error::unavailable("leasing broke off", stopped)))
    }

    /// Commits what was leased, and starts it.
    async fn land(
        &self,
        tx: S::Tx,
        landing: Landing,
        process: &Process,
        permits: Vec<OwnedSemaphorePermit>,
        company: &Company,
    ) -> Result<Visited, Error> {
        let stored = self.stored()?;
        let Landing { index, lane, taken, ran, account, leases, fence } = landing;
        let handler = &self.inner.handlers[index];
        if let Err(error) = self.finish_visit(tx, taken.progress).await {
            if let (Fault::Connection, Some(fence)) = (S::classify(&error), fence) {
                self.let_go(self.taker(stored, handler, lane), &leases, fence);
            }
            return Err(error);
        }
        self.tell_of_dead(stored, handler, &taken, &account.settled);
        let more = taken.has_more();
        let is_leased = |ended: &Ended| matches!(ended, Ended::Done(_));
        let messages: Vec<StoredMessage> = taken
            .messages
            .into_iter()
            .zip(&ran.ended)
            .filter_map(|(message, ended)| is_leased(ended).then_some(message))
            .collect();
        self.start(stored, handler, process, Leased { messages, fence }, permits, company);
        Ok(Visited::Worked { report: account.report, more })
    }

    async fn take_to_lease(
        &self,
        tx: &mut S::Tx,
        slots: &Slots,
        taker: Taker<'_>,
        what: What,
        room: u32,
    ) -> Result<Option<Taken>, Error> {
        let store = &self.inner.store;
        if what == What::Tasks {
            let limits = TaskLimits { tasks: room, heads_only: true };
            let messages = store.take_tasks(tx, taker, limits).await?;
            return Ok(messages.map(|messages| {
                let behind = Behind::Tasks(messages.len() >= room as usize);
                Taken { messages, busy: Vec::new(), progress: None, behind }
            }));
        }
        let limits = TakeLimits {
            messages: room,
            positions: POSITIONS,
            bytes: BYTES,
            open_tasks: (!slots.settings.at_most_once).then_some(slots.settings.open_tasks),
        };
        let batch = store.take(tx, taker, limits).await?;
        Ok(batch.map(|batch| {
            let Batch { epoch, from, reached: pos, head, messages } = batch;
            let progress = Progress { handler: taker.handler, lane: taker.lane, epoch, pos };
            let progress = (pos > from).then_some(progress);
            Taken { messages, busy: Vec::new(), progress, behind: Behind::Head(head) }
        }))
    }

    /// Which messages are to run now, and which have to wait: only one of each ordering key runs at a time.
    fn sort_out(&self, handler: &Registered<S>, taken: &Taken, company: &Company) -> (Ran, Vec<SetApart>) {
        let mut order = Order::of(handler);
        let mut ran = Ran::default();
        let mut leases = Vec::new();
        for message in &taken.messages {
            ran.ended.push(if !message.due_in.is_zero() {
                Ended::Scheduled
            } else if order.holds(message) {
                Ended::Parked
            } else if message.crashes >= CRASHES_MAX {
                order.hold(message);
                Ended::Failed(died(message.crashes))
            } else if !company.suits(message) || (message.crashes > 0 && !leases.is_empty()) {
                order.hold(message);
                Ended::Again
            } else {
                order.hold(message);
                leases.push(apart(message, std::time::Duration::ZERO));
                Ended::Done(None)
            });
        }
        (ran, leases)
    }

    /// Starts bodies, which end by themselves.
    fn start(
        &self,
        stored: &Stored,
        handler: &Registered<S>,
        process: &Process,
        leased: Leased,
        permits: Vec<OwnedSemaphorePermit>,
        company: &Company,
    ) {
        for (message, permit) in leased.messages.into_iter().zip(permits) {
            let (inbox, index, fence) = (self.clone(), handler.index, leased.fence);
            let (cancellation, company) = (process.cancellation.clone(), company.clone());
            let mut body = stored.bodies.begin();
            let present = self.stay_present(stored);
            tokio::spawn(async move {
                let Ok(stored) = inbox.stored() else { return };
                let handler = &inbox.inner.handlers[index];
                let ended = inbox.run_detached(handler, &message, cancellation).await;
                let report = inbox.end_detached(stored, handler, message, fence, ended).await;
                body.report += report;
                drop((permit, company));
                if let Some(present) = present {
                    present.leave().await;
                }
                // There is room again, and perhaps somebody waited behind this one.
                stored.wake.notify_one();
                drop(body);
            });
        }
    }

    async fn run_detached(
        &self,
        handler: &Registered<S>,
        message: &StoredMessage,
        cancellation: crate::Cancellation,
    ) -> Result<Option<Vec<u8>>, Outcome> {
        let ready = self.decode(handler, message, cancellation).map_err(Outcome::Rejected)?;
        let span = tracing::info_span!(
            "oncebox.unit",
            handler = &*handler.name,
            kind = message.kind,
            traceparent = ready.delivery.envelope.headers().get(crate::Headers::TRACEPARENT),
        );
        let limit = handler.settings.timeout.unwrap_or(self.inner.settings.handler_timeout);
        let deliveries = [ready.delivery];
        let started = Instant::now();
        let body = handler.handler.call(vec![ready.message], &deliveries, None);
        let body = self.inside(AssertUnwindSafe(body).catch_unwind()).instrument(span);
        let ran = tokio::time::timeout(limit, body).await;
        self.inner.observer.time(observe::HANDLE_SECONDS, &handler.name, started.elapsed());
        match ran {
            Ok(Ok(Ok(returned))) => Ok(returned.into_iter().next().and_then(|one: Returned| one.result)),
            Ok(Ok(Err(failure))) => Err(failed(handler.settings.judge(failure))),
            Ok(Err(panic)) => Err(failed(panicked(&*panic))),
            Err(_elapsed) => Err(failed(Failure::from(format!("the handler ran longer than {limit:?}")))),
        }
    }

    /// Writes down how a body ended, and tells whoever is to know.
    async fn end_detached(
        &self,
        stored: &Stored,
        handler: &Registered<S>,
        message: StoredMessage,
        fence: Option<Fence>,
        ended: Result<Option<Vec<u8>>, Outcome>,
    ) -> WorkReport {
        let mut report = WorkReport::default();
        let observer = self.inner.observer;
        let name = &*handler.name;
        let failures = message.failures + 1;
        let mut dead = None;
        let end = match ended {
            Ok(result) => {
                report.done = 1;
                let marker = message.key.as_ref().filter(|_| message.spilled);
                End::Done { marker: marker.map(|key| unit_of_message(handler, &message, key)), result }
            }
            Err(outcome) => {
                observer.count(observe::FAILED, name);
                let fate = match (fence, self.fate(stored, handler, failures, &outcome)) {
                    // There is no second time.
                    (None, Fate::Retry { error, .. }) => Fate::Dead { error },
                    (_, fate) => fate,
                };
                match fate {
                    Fate::Retry { due_in, error } => {
                        report.failed = 1;
                        End::Retry { failures, due_in, error: Some(error) }
                    }
                    Fate::Dead { error } => {
                        report.dead = 1;
                        dead = Some(error.clone());
                        End::Dead { failures, error }
                    }
                }
            }
        };
        let handler_id = stored.ids[handler.index];
        let is_written = match fence {
            Some(fence) => {
                let completion = Completion { handler: handler_id, place: message.place, fence, end };
                self.complete(completion).await
            }
            None => match &dead {
                Some(error) => self.bury_until_answered(stored, handler, &message, failures, error).await,
                None => Ok(true),
            },
        };
        match is_written {
            Ok(true) => {}
            Ok(false) => {
                observer.count(observe::LEASES_LOST, name);
                tracing::warn!(
                    handler = name,
                    lane = message.place.lane,
                    pos = message.place.pos,
                    "LeaseLost: this process was taken for dead while it ran a message, and somebody else runs it"
                );
                return WorkReport { lease_lost: 1, ..WorkReport::default() };
            }
            Err(error) => {
                tracing::error!(
                    handler = name,
                    error = crate::error::chain(&error),
                    "how a message ended could not be written down: one that is leased will run again when this process is gone"
                );
                return WorkReport::default();
            }
        }
        if report.done > 0 {
            observer.count(observe::PROCESSED, name);
            observer.time(observe::WAIT_SECONDS, name, message.waited);
        }
        if let Some(error) = dead {
            observer.count(observe::DEAD, name);
            self.tell_of_one_dead(stored, handler, &message, failures, Some(error));
        }
        report
    }

    /// A dead letter, as often as it takes, or until patience is at its end.
    async fn bury_until_answered(
        &self,
        stored: &Stored,
        handler: &Registered<S>,
        message: &StoredMessage,
        failures: u32,
        error: &str,
    ) -> Result<bool, Error> {
        let started = Instant::now();
        let mut troubles = 0;
        loop {
            match self.bury_unleased(stored, handler, message, failures, error).await {
                Err(error)
                    if S::classify(&error) != Fault::Other
                        && started.elapsed() < self.inner.settings.patience.max(stored.settings.lease) =>
                {
                    troubles += 1;
                    tokio::time::sleep(backoff(troubles, spread())).await;
                }
                buried => return buried,
            }
        }
    }

    /// A message that has failed and is not to run again: its dead letter, as far as the store answers.
    async fn bury_unleased(
        &self,
        stored: &Stored,
        handler: &Registered<S>,
        message: &StoredMessage,
        failures: u32,
        error: &str,
    ) -> Result<bool, Error> {
        let what = What::Tasks;
        let spot = Spot { handler: handler.index, lane: message.place.lane, what, careful: false };
        let course: Course = self.course(stored, handler, spot);
        let taker = self.taker(stored, handler, message.place.lane);
        let store = &self.inner.store;
        let mut tx = self.begin(course.limits).await?;
        let dead =
            SetApart { failures, error: Some(error.to_owned()), ..apart(message, std::time::Duration::ZERO) };
        let settled = crate::store::Settled { dead: vec![dead], ..crate::store::Settled::default() };
        let written = async {
            store.settle(&mut tx, taker, &settled).await?;
            match message.key.as_ref().filter(|_| message.spilled) {
                // It said done before the run. An operator may let it run again.
                Some(key) => {
                    let marker = unit_of_message(handler, message, key);
                    store.settle_markers(&mut tx, &[&marker], MarkerState::Spilled).await
                }
                None => Ok(()),
            }
        };
        if let Err(error) = written.await {
            store.rollback(tx).await;
            return Err(error);
        }
        store.commit(tx).await.map(|()| true)
    }

    /// Nobody knows whether messages were leased: if they were, they are free again.
    fn let_go(&self, taker: Taker<'_>, leases: &[SetApart], fence: Fence) {
        for lease in leases {
            let place = crate::store::Place { lane: taker.lane, pos: lease.pos };
            let end = End::Retry { failures: lease.failures, due_in: std::time::Duration::ZERO, error: None };
            let completion = Completion { handler: taker.handler, place, fence, end };
            let inbox = self.clone();
            tokio::spawn(async move {
                if let Ok(true) = inbox.complete(completion).await {
                    tracing::info!("a lease whose answer was lost is free again");
                }
            });
        }
    }
}
