//! Slots: who has a transaction in flight, and who waits for one.
//!
//! While there is no slot, units queue, and whoever has one takes its share of them next. There is no timer and no wait when
//! idle.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::handler::Delivery;
use crate::inbox::InboxStore;
use crate::inbox::batch_size::BatchSize;
use crate::inbox::combiner::Promise;
use crate::inbox::contention::Contention;
use crate::inbox::units::batch::Batching;
use crate::inbox::units::{CopyWait, UnitEnd};
use crate::store::Unit;

/// Past this, a transaction does not keep others from theirs. Few handlers take so long; one that waits for a copy in another
/// process does. Not too short: on a machine that is too busy already, more transactions make everything slower.
const SLOT_TIME: Duration = Duration::from_millis(250);

/// The units of one handler that wait for a transaction.
#[derive(Debug)]
pub(crate) struct Batches {
    state: Mutex<State>,
    /// The maximum number of transactions in flight.
    max_in_flight: usize,
}

#[derive(Debug)]
pub(crate) struct State {
    queue: VecDeque<Job>,
    /// Transactions in flight, and the units in them.
    in_flight: usize,
    running: usize,
    /// Those that have taken so long that others need not wait for them.
    overstaying: usize,
    pub(crate) size: BatchSize,
    pub(crate) contention: Contention,
    /// Whether the last batch had duplicates: then a look before the next one saves writes.
    pub(crate) duplicates: bool,
    /// Whether units had to queue of late: then more are about to come.
    crowded: bool,
    /// Whether a handler failed of late: then batches begin with savepoints.
    pub(crate) isolating: bool,
}

/// One unit in the queue, and the promise to its caller.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) unit: Unit,
    pub(crate) delivery: Delivery,
    pub(crate) message: Option<Box<dyn Any + Send>>,
    pub(crate) wait: CopyWait,
    /// How many batches it was in that met contention.
    pub(crate) tries: u32,
    pub(crate) promise: Promise<UnitEnd>,
}

impl Batches {
    pub(crate) fn new(max_batch: usize, max_in_flight: usize) -> Self {
        let state = State {
            queue: VecDeque::new(),
            in_flight: 0,
            running: 0,
            overstaying: 0,
            size: BatchSize::new(max_batch, available_parallelism().map_or(1, usize::from)),
            contention: Contention::new(),
            duplicates: false,
            crowded: false,
            isolating: false,
        };
        Self { state: Mutex::new(state), max_in_flight: max_in_flight.max(1) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many transactions the units at hand are worth.
    fn transactions(&self, state: &State) -> usize {
        if state.contention.takes_turns() {
            return 1;
        }
        state.size.transactions(state.queue.len() + state.running).min(self.max_in_flight)
    }

    /// Whether there is a slot for one more. A slot is no permit: one that overstays, such as a copy that waits for another process,
    /// keeps no other unit out. The number of transactions is limited by permits.
    fn has_room(&self, state: &State) -> bool {
        state.in_flight - state.overstaying < self.transactions(state)
    }

    /// The handlers of so many units took so long together.
    pub(crate) fn took(&self, units: usize, time: Duration) {
        self.state().size.took(units, time);
    }

    /// Takes a slot if one is free; else the unit queues. Both under one lock: between the two the last runner could find
    /// nothing to do and leave.
    pub(crate) fn slot_or_queue(&self, job: Job) -> Option<Job> {
        let mut state = self.state();
        state.running += 1;
        if self.has_room(&state) {
            state.in_flight += 1;
            return Some(job);
        }
        state.running -= 1;
        state.crowded = true;
        state.queue.push_back(job);
        None
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.state().crowded
    }

    /// Whether nobody else waits; else the unit goes with them, at the head of the queue.
    pub(crate) fn alone_or_queue(&self, job: Job) -> Option<Job> {
        let mut state = self.state();
        if state.queue.is_empty() {
            state.crowded = false;
            return Some(job);
        }
        state.queue.push_front(job);
        None
    }

    /// So many units of a slot have ended; whether the slot is still needed. Of a handler that takes turns one is enough.
    pub(crate) fn goes_on(&self, ended: usize) -> bool {
        let mut state = self.state();
        state.running -= ended;
        let surplus = state.contention.takes_turns() && state.in_flight - state.overstaying > 1;
        !state.queue.is_empty() && !surplus
    }

    /// Units of a batch that met contention are the next ones again.
    pub(crate) fn put_back(&self, jobs: Vec<Job>) {
        let mut state = self.state();
        for job in jobs.into_iter().rev() {
            state.queue.push_front(job);
        }
    }

    /// The next batch: a fair share of what waits, so that no transaction is left with the crumbs.
    pub(crate) fn take(&self) -> Vec<Job> {
        let mut state = self.state();
        // Whoever went away while waiting wants nothing done.
        state.queue.retain(|job| !job.promise.is_abandoned());
        let share = (state.queue.len() + state.running).div_ceil(self.transactions(&state));
        let size = state.size.next().min(share).min(state.queue.len());
        state.running += size;
        state.queue.drain(..size).collect()
    }

    /// Gives back the slot of one that had so many units; whether another one is taken for those who wait.
    fn hand_over(&self, before: usize, overstayed: bool) -> bool {
        let mut state = self.state();
        state.running -= before;
        state.in_flight -= 1;
        state.overstaying -= usize::from(overstayed);
        self.take_for_those_who_wait(&mut state)
    }

    /// Leaves one that takes long out of account; whether a slot is taken for those who wait.
    fn overstay(&self, units: usize) -> bool {
        let mut state = self.state();
        state.running -= units;
        state.overstaying += 1;
        self.take_for_those_who_wait(&mut state)
    }

    /// Whether there are units left and a slot for them, which is taken.
    pub(crate) fn has_more(&self) -> bool {
        self.take_for_those_who_wait(&mut self.state())
    }

    fn take_for_those_who_wait(&self, state: &mut State) -> bool {
        let taken = !state.queue.is_empty() && self.has_room(state);
        state.in_flight += usize::from(taken);
        taken
    }
}

/// A transaction in flight. When it ends, however it does, what waits goes on in the background.
pub(crate) struct Slot<'a, S: InboxStore> {
    batching: &'a Arc<Batching<S>>,
    handler: usize,
    /// How many units are in it.
    pub(crate) units: usize,
    pub(crate) overstayed: bool,
}

impl<'a, S: InboxStore> Slot<'a, S> {
    pub(crate) fn new(batching: &'a Arc<Batching<S>>, handler: usize, units: usize) -> Self {
        Self { batching, handler, units, overstayed: false }
    }

    fn batches(&self) -> &'a Batches {
        self.batching.batches(self.handler)
    }

    /// Does some work. If it takes long, others need not wait for it.
    pub(crate) async fn hold<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        if let Ok(done) = tokio::time::timeout(SLOT_TIME, &mut work).await {
            return done;
        }
        self.overstayed = true;
        if self.batches().overstay(std::mem::take(&mut self.units)) {
            self.go_on();
        }
        work.await
    }

    /// Goes on in the background with those who wait.
    pub(crate) fn go_on(&self) {
        if let Ok(runtime) = Handle::try_current() {
            let (batching, handler) = (self.batching.clone(), self.handler);
            runtime.spawn(async move { batching.run_waiting(handler).await });
        }
    }
}

impl<S: InboxStore> Drop for Slot<'_, S> {
    fn drop(&mut self) {
        if self.batches().hand_over(self.units, self.overstayed) {
            self.go_on();
        }
    }
}
