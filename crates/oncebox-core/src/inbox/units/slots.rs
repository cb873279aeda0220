//! Slots: the transactions in flight of a handler, and the queue of units that wait for one.
//!
//! While no slot is free, units queue. A transaction that ends takes its share of them next. An idle handler has no timer and no
//! added wait.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::handler::Delivery;
use crate::inbox::InboxStore;
use crate::inbox::batch_size::BatchSize;
use crate::inbox::combiner::{Combiner, CombinerState, Policy, Promise, Runner};
use crate::inbox::contention::Contention;
use crate::inbox::units::batch::Batching;
use crate::inbox::units::{CopyWait, UnitEnd};
use crate::store::Unit;

/// The time after which a slow transaction no longer counts as a slot, so that others can start. A unit that waits for a copy in
/// another process takes this long, but few handlers do. A shorter time would start more transactions on an overloaded machine
/// and slow it down further.
const SLOT_TIME: Duration = Duration::from_millis(250);

/// The units of one handler that wait for a transaction.
#[derive(Debug)]
pub(crate) struct Batches(Combiner<Slots>);

/// The policy of natural batching: the number of transactions for the queue, and the share of each.
#[derive(Debug)]
pub(crate) struct Slots {
    queue: VecDeque<Job>,
    /// Units in transactions.
    running: usize,
    /// The maximum number of transactions in flight.
    max_in_flight: usize,
    pub(crate) size: BatchSize,
    pub(crate) contention: Contention,
    /// Whether the last batch had duplicates. Then reading the markers before the next one saves writes.
    pub(crate) duplicates: bool,
    /// Whether units had to queue recently. Then more are expected soon.
    crowded: bool,
    /// Whether the handler failed recently. Then batches start with savepoints.
    pub(crate) isolating: bool,
}

/// One queued unit, and the promise to its caller.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) unit: Unit,
    pub(crate) delivery: Delivery,
    pub(crate) message: Option<Box<dyn Any + Send>>,
    pub(crate) wait: CopyWait,
    /// The number of its batches that met contention.
    pub(crate) attempts: u32,
    pub(crate) promise: Promise<UnitEnd>,
}

impl Slots {
    fn new(max_batch: usize, max_in_flight: usize, cores: usize) -> Self {
        Self {
            queue: VecDeque::new(),
            running: 0,
            max_in_flight: max_in_flight.max(1),
            size: BatchSize::new(max_batch, cores),
            contention: Contention::new(),
            duplicates: false,
            crowded: false,
            isolating: false,
        }
    }
}

impl Policy for Slots {
    type Call = Job;
    type Batch = Vec<Job>;

    fn push(&mut self, job: Job) {
        self.crowded = true;
        self.queue.push_back(job);
    }

    fn has_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The number of transactions for the queued and running units. Slots limit one handler; permits limit all handlers together.
    fn max_runners(&self) -> usize {
        if self.contention.takes_turns() {
            return 1;
        }
        self.size.transactions(self.queue.len() + self.running).min(self.max_in_flight)
    }

    /// Takes a fair share of the queue, so that no transaction gets only the few last units.
    fn take(&mut self) -> Option<Vec<Job>> {
        // The caller of such a unit was dropped while it waited, so nothing may run for it.
        self.queue.retain(|job| !job.promise.is_abandoned());
        let share = (self.queue.len() + self.running).div_ceil(self.max_runners());
        let size = self.size.next().min(share).min(self.queue.len());
        self.running += size;
        (size > 0).then(|| self.queue.drain(..size).collect())
    }

    /// A handler that takes turns needs one transaction only.
    fn is_surplus(&self, runners: usize) -> bool {
        self.contention.takes_turns() && runners > 1
    }
}

impl Batches {
    pub(crate) fn new(max_batch: usize, max_in_flight: usize) -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Self(Combiner::new(Slots::new(max_batch, max_in_flight, cores)))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, CombinerState<Slots>> {
        self.0.state()
    }

    /// Records the handler time of this number of units.
    pub(crate) fn took(&self, units: usize, time: Duration) {
        self.state().size.took(units, time);
    }

    /// Takes a slot if one is free, otherwise queues the unit. One lock covers both: in between, the last runner could find an
    /// empty queue and end.
    fn slot_or_queue(&self, job: Job) -> Option<Job> {
        let mut state = self.state();
        // Counted first: the policy decides about another runner by the number of units including this one.
        state.running += 1;
        if state.add_runner() {
            return Some(job);
        }
        state.running -= 1;
        state.push(job);
        None
    }

    /// Returns the job if no other unit waits. Otherwise it joins them at the head of the queue, and the result is `None`.
    fn alone_or_queue(&self, job: Job) -> Option<Job> {
        let mut state = self.state();
        if state.queue.is_empty() {
            state.crowded = false;
            return Some(job);
        }
        state.queue.push_front(job);
        None
    }

    /// Puts units of a batch that met contention back at the head of the queue.
    pub(crate) fn put_back(&self, jobs: Vec<Job>) {
        let mut state = self.state();
        for job in jobs.into_iter().rev() {
            state.queue.push_front(job);
        }
    }
}

/// A transaction in flight. Dropping it starts waiting units in the background.
pub(crate) struct TransactionSlot<'a, S: InboxStore> {
    batching: &'a Arc<Batching<S>>,
    handler: usize,
    runner: Runner<'a, Slots>,
    /// Units in its transaction.
    units: usize,
}

impl<'a, S: InboxStore> TransactionSlot<'a, S> {
    /// Creates the slot of a runner that was counted already.
    pub(crate) fn new(batching: &'a Arc<Batching<S>>, handler: usize) -> Self {
        let runner = Runner::new(&batching.batches(handler).0);
        Self { batching, handler, runner, units: 0 }
    }

    /// Takes a slot for a unit that runs at once. If no slot is free, or if other units wait, the unit queues and the result is
    /// `None`: waiting units share a transaction.
    pub(crate) async fn or_queue(
        batching: &'a Arc<Batching<S>>,
        handler: usize,
        job: Job,
    ) -> Option<(Self, Job)> {
        let batches = batching.batches(handler);
        let job = batches.slot_or_queue(job)?;
        let mut slot = Self::new(batching, handler);
        slot.units = 1;
        let is_crowded = batches.state().crowded;
        if is_crowded {
            // The callers of the last batch now send their next messages, which can share this transaction.
            tokio::task::yield_now().await;
        }
        batches.alone_or_queue(job).map(|job| (slot, job))
    }

    /// Whether the slot is still needed after its transaction has ended. A slow one was replaced already.
    pub(crate) fn goes_on(&mut self) -> bool {
        self.give_back_units();
        self.runner.goes_on()
    }

    /// Takes the next batch. If units remain, it starts another slot for them.
    pub(crate) async fn take(&mut self) -> Option<Vec<Job>> {
        let jobs = self.runner.next().await?;
        self.units = jobs.len();
        self.run_others();
        Some(jobs)
    }

    /// Runs some work. If it is slow, it makes room for another transaction.
    pub(crate) async fn hold<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        if let Ok(done) = tokio::time::timeout(SLOT_TIME, &mut work).await {
            return done;
        }
        self.give_back_units();
        self.runner.step_aside();
        self.run_others();
        work.await
    }

    fn give_back_units(&mut self) {
        let units = std::mem::take(&mut self.units);
        self.batching.batches(self.handler).state().running -= units;
    }

    /// Starts waiting units in the background, if there are any and a slot is free.
    fn run_others(&self) {
        // `drop` may run outside of a runtime, when nothing can be spawned.
        if let Ok(runtime) = Handle::try_current()
            && self.batching.batches(self.handler).0.needs_runner()
        {
            let (batching, handler) = (self.batching.clone(), self.handler);
            runtime.spawn(async move { batching.run_waiting(handler).await });
        }
    }
}

impl<S: InboxStore> Drop for TransactionSlot<'_, S> {
    fn drop(&mut self) {
        self.give_back_units();
        self.runner.step_aside();
        self.run_others();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::{Cancellation, EffectId};
    use crate::inbox::combiner::{PendingResult, promise};
    use crate::policy::InFlight;
    use crate::{Envelope, Key};

    const CORES: usize = 2;

    fn job() -> (Job, PendingResult<UnitEnd>) {
        let (promise, answer) = promise();
        let unit = Unit {
            handler: "h".into(),
            kind: "k".into(),
            key: Key::from("a").stored(),
            fingerprint: None,
            waited: Duration::ZERO,
        };
        let delivery = Delivery {
            handler: "h".into(),
            envelope: Arc::new(Envelope::new("k", "")),
            key: None,
            effect_id: EffectId::unique(),
            is_replay: false,
            cancellation: Cancellation::never(),
            states: Arc::default(),
        };
        let wait = CopyWait::new(InFlight::Busy, Duration::from_secs(1));
        (Job { unit, delivery, message: None, wait, attempts: 0, promise }, answer)
    }

    fn batches(max_batch: usize, max_in_flight: usize) -> Batches {
        Batches(Combiner::new(Slots::new(max_batch, max_in_flight, CORES)))
    }

    /// Pushes units. Returns the number that got a slot; the others queue.
    fn push(batches: &Batches, count: usize) -> (usize, Vec<PendingResult<UnitEnd>>) {
        let (jobs, answers): (Vec<_>, Vec<_>) = (0..count).map(|_| job()).unzip();
        (jobs.into_iter().filter_map(|job| batches.slot_or_queue(job)).count(), answers)
    }

    #[test]
    fn units_queue_when_no_slot_is_free() {
        let batches = batches(64, 10);
        let (with_slot, _answers) = push(&batches, 5);
        assert_eq!(with_slot, 2, "one transaction runs while another one is committed");
        let state = batches.state();
        assert_eq!((state.queue.len(), state.running), (3, 2));
        assert!(state.crowded);
    }

    #[test]
    fn permits_limit_the_slots() {
        let (with_slot, _answers) = push(&batches(64, 1), 5);
        assert_eq!(with_slot, 1);
        let (with_slot, _answers) = push(&batches(1, 4), 5);
        assert_eq!(with_slot, 4, "units that never share a transaction gain from slots alone");
    }

    #[test]
    fn each_transaction_takes_a_fair_share_of_the_queue() {
        let batches = batches(64, 10);
        let (_, _answers) = push(&batches, 12);
        // Of ten that wait and two that run, each of the two slots has six. Then four are left over, then two, then one.
        for expected in [Some(6), Some(2), Some(1), Some(1), None] {
            assert_eq!(batches.state().take().map(|jobs| jobs.len()), expected);
            batches.state().running = 0;
        }
    }

    #[test]
    fn a_batch_has_a_maximum_number_of_units() {
        let batches = batches(3, 10);
        let (_, _answers) = push(&batches, 12);
        assert_eq!(batches.state().take().map(|jobs| jobs.len()), Some(3));
    }

    #[test]
    fn a_handler_that_takes_turns_has_one_slot() {
        let batches = batches(64, 10);
        batches.state().contention.met();
        let (with_slot, _answers) = push(&batches, 5);
        assert_eq!(with_slot, 1);
        assert!(batches.state().is_surplus(2));
        assert!(!batches.state().is_surplus(1));
    }

    #[test]
    fn a_unit_that_finds_others_waiting_joins_them() {
        let batches = batches(64, 10);
        let (first, _answer) = job();
        let first = batches.slot_or_queue(first).and_then(|job| batches.alone_or_queue(job)).unwrap();
        assert!(!batches.state().crowded);
        let (_, _answers) = push(&batches, 3);
        assert!(batches.alone_or_queue(first).is_none());
        assert!(batches.state().crowded);
    }

    #[test]
    fn units_that_met_contention_go_first_again() {
        let batches = batches(1, 1);
        let (_, _answers) = push(&batches, 2);
        let (mut again, _answer) = job();
        again.attempts = 1;
        batches.put_back(vec![again]);
        let next = batches.state().take().unwrap();
        assert_eq!(next.iter().map(|job| job.attempts).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn nothing_is_run_for_a_dropped_caller() {
        let batches = batches(64, 1);
        let (_, answers) = push(&batches, 4);
        drop(answers);
        assert!(batches.state().take().is_none());
    }
}
