//! The queue of messages to append. It decides which messages share a transaction, in which lane, and how many transactions run.
//!
//! Each lane has a queue, and there is one for messages without a fixed lane. Each lane has at most one transaction in flight
//! from this process, so that the order of the calls is the order in the log.

use std::collections::VecDeque;

use crate::backoff::spread;
use crate::inbox::combiner::{Combiner, Policy, Promise};
use crate::store::{Appended, LaneChoice, NewMessage};

/// The maximum number of messages in one transaction, and the maximum size of their bodies.
const BATCH_MESSAGES: usize = 256;
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// The number of transactions that keep the log busy: one is committed while the next one is prepared.
const RUNNERS_FOR_ANY: usize = 2;
/// The number of waiting messages for each further transaction.
const WAITING_FOR_ANOTHER: usize = 64;

/// The queue of messages that wait for a transaction.
pub(crate) type Queue = Combiner<LaneQueues>;

/// One queue for each lane, and one for messages without a fixed lane.
#[derive(Debug)]
pub(crate) struct LaneQueues {
    any: VecDeque<Pending>,
    lanes: Vec<LaneQueue>,
    /// Lanes that have messages and no transaction in flight.
    ready: VecDeque<u16>,
    max_runners: usize,
    /// The number of messages in flight without a fixed lane.
    in_flight: usize,
    /// The next lane for messages without a fixed lane.
    turn: u16,
}

#[derive(Debug, Default)]
struct LaneQueue {
    queue: VecDeque<Pending>,
    in_flight: bool,
}

/// A message, its fixed lane if it has one, and the promise to its caller.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(super) message: NewMessage,
    pub(super) lane: Option<u16>,
    pub(super) promise: Promise<Appended>,
}

/// The messages of one transaction, which go to one lane.
#[derive(Debug)]
pub(crate) struct LaneBatch {
    pub(super) lane: LaneChoice,
    pub(super) messages: Vec<Pending>,
}

impl LaneQueues {
    /// Creates the queues, with this maximum number of transactions in flight.
    pub(super) fn new(lanes: u16, max_runners: usize) -> Self {
        Self {
            any: VecDeque::new(),
            lanes: (0..lanes).map(|_| LaneQueue::default()).collect(),
            ready: VecDeque::new(),
            max_runners: max_runners.clamp(1, usize::from(lanes.max(1))),
            in_flight: 0,
            // A random first lane, so that processes that start together do not compete for one.
            turn: u16::from(spread()) % lanes.max(1),
        }
    }

    /// Takes a batch of the first lane with messages of its own, and fills it with messages without a fixed lane.
    fn take_ordered(&mut self) -> Option<LaneBatch> {
        while let Some(number) = self.ready.pop_front() {
            let lane = &mut self.lanes[usize::from(number)];
            let (mut messages, mut bytes) = (Vec::new(), 0);
            fill(&mut messages, &mut bytes, &mut lane.queue);
            // All callers of this lane were dropped.
            if messages.is_empty() {
                continue;
            }
            lane.in_flight = true;
            // Room that is left costs nothing: messages without a fixed lane use it.
            fill(&mut messages, &mut bytes, &mut self.any);
            return Some(LaneBatch { lane: LaneChoice::Only(number), messages });
        }
        None
    }

    /// Takes a batch of messages without a fixed lane, for a free lane. If no lane is free, the messages wait for a runner that ends.
    fn take_any(&mut self) -> Option<LaneBatch> {
        let count = u16::try_from(self.lanes.len()).unwrap_or(u16::MAX);
        let is_free = |&number: &u16| !self.lanes[usize::from(number)].in_flight;
        let number = (0..count).map(|n| (self.turn + n) % count).find(is_free)?;
        let mut messages = Vec::new();
        fill(&mut messages, &mut 0, &mut self.any);
        if messages.is_empty() {
            return None;
        }
        self.lanes[usize::from(number)].in_flight = true;
        self.turn = (number + 1) % count;
        self.in_flight += messages.len();
        Some(LaneBatch { lane: LaneChoice::Prefer(number), messages })
    }

    /// Records the end of a lane's transaction, with its number of messages without a fixed lane.
    fn ended(&mut self, number: u16, messages: usize) {
        self.in_flight -= messages;
        let lane = &mut self.lanes[usize::from(number)];
        lane.in_flight = false;
        if !lane.queue.is_empty() {
            self.ready.push_back(number);
        }
    }
}

impl Policy for LaneQueues {
    type Call = Pending;
    type Batch = LaneBatch;

    fn push(&mut self, pending: Pending) {
        let Some(number) = pending.lane else { return self.any.push_back(pending) };
        let lane = &mut self.lanes[usize::from(number)];
        lane.queue.push_back(pending);
        if lane.queue.len() == 1 && !lane.in_flight {
            self.ready.push_back(number);
        }
    }

    fn has_waiting(&self) -> bool {
        !self.ready.is_empty() || !self.any.is_empty()
    }

    fn max_runners(&self) -> usize {
        match self.ready.is_empty() {
            true => (RUNNERS_FOR_ANY + self.any.len() / WAITING_FOR_ANOTHER).min(self.max_runners),
            false => self.max_runners,
        }
    }

    fn take(&mut self) -> Option<LaneBatch> {
        self.take_ordered().or_else(|| self.take_any())
    }

    /// Small batches wait to join the next larger one, because a transaction costs as much as several messages. They go when they
    /// are as many as the messages in flight, or when a transaction ends and its callers send their next messages.
    fn holds_back(&self) -> bool {
        self.ready.is_empty() && !self.any.is_empty() && self.any.len() < self.in_flight
    }
}

/// A lane's transaction in flight. Dropping it frees the lane.
#[derive(Debug)]
pub(super) struct LaneInFlight<'a> {
    queue: &'a Queue,
    lane: u16,
    /// The number of its messages without a fixed lane.
    messages: usize,
}

impl<'a> LaneInFlight<'a> {
    pub(super) fn new(queue: &'a Queue, batch: &LaneBatch) -> Self {
        let messages = if matches!(batch.lane, LaneChoice::Prefer(_)) { batch.messages.len() } else { 0 };
        Self { queue, lane: batch.lane.lane(), messages }
    }
}

impl Drop for LaneInFlight<'_> {
    fn drop(&mut self) {
        self.queue.change(|queue| queue.ended(self.lane, self.messages));
    }
}

/// Takes messages from a queue into a batch, within its limits.
fn fill(batch: &mut Vec<Pending>, bytes: &mut usize, queue: &mut VecDeque<Pending>) {
    while batch.len() < BATCH_MESSAGES && *bytes < BATCH_BYTES {
        let Some(pending) = queue.pop_front() else { return };
        // A dropped caller got no result, so its message need not be appended.
        if !pending.promise.is_abandoned() {
            *bytes += pending.message.body.len();
            batch.push(pending);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::inbox::combiner::{Next, PendingResult, Runner, promise};
    use crate::{Envelope, Headers};

    fn queue(lanes: u16, max_runners: usize) -> Queue {
        Combiner::new(LaneQueues::new(lanes, max_runners))
    }

    fn push(queue: &Queue, lane: Option<u16>) -> (bool, PendingResult<Appended>) {
        let (promise, answer) = promise();
        let message = NewMessage {
            kind: "order.paid".to_owned(),
            key: None,
            fingerprint: Envelope::new("order.paid", "").fingerprint(),
            order_by: None,
            headers: Headers::new(),
            body: Vec::new(),
            occurred_at: None,
            due_at: None,
            waited: Duration::ZERO,
            message_id: None,
        };
        (queue.push(Pending { message, lane, promise }), answer)
    }

    fn push_many(queue: &Queue, count: usize) -> Vec<PendingResult<Appended>> {
        (0..count).map(|_| push(queue, None).1).collect()
    }

    fn append(next: Next<LaneBatch>) -> LaneBatch {
        match next {
            Next::Run(batch) => batch,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_message_behind_another_goes_at_once() {
        let queue = queue(8, 4);
        let (needed, _first) = push(&queue, None);
        assert!(needed);
        let mut runner = Runner::new(&queue);
        let batch = append(runner.look(true));
        let _in_flight = LaneInFlight::new(&queue, &batch);
        let (needed, _second) = push(&queue, None);
        assert!(needed);
        assert_eq!(append(Runner::new(&queue).look(true)).messages.len(), 1);
    }

    #[test]
    fn small_batches_wait_to_join_a_larger_one() {
        let queue = queue(8, 4);
        let _many = push_many(&queue, 10);
        let mut runner = Runner::new(&queue);
        let batch = append(runner.look(true));
        let in_flight = LaneInFlight::new(&queue, &batch);
        let _few = push_many(&queue, 9);
        assert!(matches!(runner.look(true), Next::HoldBack));
        let _tenth = push(&queue, None);
        let as_many = append(runner.look(true)).messages;
        assert_eq!(as_many.len(), 10, "as many as are in flight go at once");
        drop(in_flight);
    }

    #[test]
    fn small_batches_go_when_nothing_is_in_flight() {
        let queue = queue(8, 4);
        let _many = push_many(&queue, 10);
        let mut runner = Runner::new(&queue);
        let batch = append(runner.look(true));
        let in_flight = LaneInFlight::new(&queue, &batch);
        let _one = push(&queue, None);
        assert!(matches!(runner.look(true), Next::HoldBack));
        drop(in_flight);
        assert_eq!(append(runner.look(true)).messages.len(), 1);
    }

    #[tokio::test]
    async fn a_runner_does_not_hold_back_for_long_behind_a_transaction_that_does_not_end() {
        let queue = queue(8, 4);
        let _many = push_many(&queue, 10);
        let mut runner = Runner::new(&queue);
        let batch = append(runner.look(true));
        let _stuck = LaneInFlight::new(&queue, &batch);
        let _one = push(&queue, None);
        assert!(matches!(runner.look(true), Next::HoldBack));
        let may_hold_back = queue.hold_back().await;
        assert!(!may_hold_back);
        assert_eq!(append(runner.look(may_hold_back)).messages.len(), 1);
    }

    #[tokio::test]
    async fn a_runner_that_holds_back_is_notified() {
        for reason in ["as many wait as are in flight", "a lane has messages of its own", "it has ended"] {
            let queue = queue(8, 4);
            let _many = push_many(&queue, 2);
            let mut runner = Runner::new(&queue);
            let batch = append(runner.look(true));
            let in_flight = LaneInFlight::new(&queue, &batch);
            let _one = push(&queue, None);
            assert!(matches!(runner.look(true), Next::HoldBack));
            let _answers = match reason {
                "as many wait as are in flight" => vec![push(&queue, None).1],
                "a lane has messages of its own" => vec![push(&queue, Some((in_flight.lane + 1) % 8)).1],
                _ => {
                    drop(in_flight);
                    Vec::new()
                }
            };
            assert!(queue.hold_back().await, "{reason}");
        }
    }

    #[test]
    fn a_lane_has_one_transaction_in_flight() {
        let queue = queue(2, 2);
        let _first = push(&queue, Some(1));
        let mut runner = Runner::new(&queue);
        let batch = append(runner.look(true));
        assert_eq!((batch.lane.lane(), batch.messages.len()), (1, 1));
        let in_flight = LaneInFlight::new(&queue, &batch);
        let (needed, _second) = push(&queue, Some(1));
        assert!(needed, "there is room for a runner");
        assert!(matches!(Runner::new(&queue).look(true), Next::Done));
        drop(in_flight);
        assert_eq!(append(runner.look(true)).messages.len(), 1);
    }

    #[test]
    fn messages_without_a_free_lane_stay_in_the_queue() {
        let queue = queue(1, 1);
        let _first = push(&queue, None);
        let mut runner = Runner::new(&queue);
        let batch = append(runner.look(true));
        let in_flight = LaneInFlight::new(&queue, &batch);
        let _second = push(&queue, None);
        assert!(queue.state().take().is_none());
        drop(in_flight);
        assert_eq!(append(runner.look(true)).messages.len(), 1);
    }

    #[test]
    fn nothing_is_appended_for_a_dropped_caller() {
        let queue = queue(2, 2);
        drop(push(&queue, None).1);
        let _second = push(&queue, None);
        assert_eq!(append(Runner::new(&queue).look(true)).messages.len(), 1);
    }
}
