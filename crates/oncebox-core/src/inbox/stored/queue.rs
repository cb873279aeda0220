//! The queue in front of the log: which messages share the next transaction, in which lane, and how many transactions there are.
//!
//! There is one queue for each lane and one for messages that go to any. Each lane has at most one transaction in flight from
//! this process, so that the order of the calls is the order of the log.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::backoff::spread;
use crate::inbox::combiner::Promise;
use crate::store::{Appended, LaneChoice, NewMessage};

/// The most that one transaction appends: messages, and bytes of bodies.
const BATCH_MESSAGES: usize = 256;
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// So many transactions keep a log busy: one is written while the next one is made. Another one for so many more that wait.
const RUNNERS_FOR_ANY: usize = 2;
const WAITING_FOR_ANOTHER: usize = 64;

/// So long a few wait to go along with many, at most.
const HOLD_BACK: Duration = Duration::from_millis(5);

/// The messages that wait for their transaction.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    max_runners: usize,
    /// Whoever holds back may look again.
    look_again: Notify,
}

#[derive(Debug)]
struct State {
    any: VecDeque<Pending>,
    lanes: Vec<Lane>,
    /// Lanes that have messages and no transaction in flight.
    ready: VecDeque<u16>,
    runners: usize,
    /// Messages for any lane that are in flight.
    in_flight: usize,
    /// Whether a runner holds back, since fewer wait than are in flight.
    holds_back: bool,
    /// Where messages for any lane go next.
    turn: u16,
}

#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<Pending>,
    in_flight: bool,
}

/// A message, and the promise to its caller.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) message: NewMessage,
    pub(super) promise: Promise<Appended>,
}

impl Queue {
    /// With at most so many transactions in flight.
    pub(crate) fn new(lanes: u16, max_runners: usize) -> Self {
        let state = State {
            any: VecDeque::new(),
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            ready: VecDeque::new(),
            runners: 0,
            in_flight: 0,
            holds_back: false,
            // Processes that start together begin in different lanes.
            turn: u16::from(spread()) % lanes.max(1),
        };
        let max_runners = max_runners.clamp(1, usize::from(lanes.max(1)));
        Self { state: Mutex::new(state), max_runners, look_again: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message; whether somebody must be found to append it.
    pub(super) fn push(&self, pending: Pending, lane: Option<u16>) -> bool {
        let mut state = self.state();
        let max = match lane {
            None => {
                state.any.push_back(pending);
                if state.holds_back && state.any.len() >= state.in_flight {
                    self.look_again.notify_one();
                }
                (RUNNERS_FOR_ANY + state.any.len() / WAITING_FOR_ANOTHER).min(self.max_runners)
            }
            Some(number) => {
                let lane = &mut state.lanes[usize::from(number)];
                lane.queue.push_back(pending);
                if lane.queue.len() == 1 && !lane.in_flight {
                    state.ready.push_back(number);
                    if state.holds_back {
                        self.look_again.notify_one();
                    }
                }
                self.max_runners
            }
        };
        let needed = state.runners < max;
        state.runners += usize::from(needed);
        needed
    }

    /// The next transaction: a lane that has messages of its own, else any. Without one, the runner is done.
    ///
    /// A transaction costs as much as several messages in it: with few that wait behind many in flight, a runner `may_hold_back`
    /// until there are more of them, or they can go with those who come back.
    pub(super) fn next(&self, may_hold_back: bool) -> Next {
        let mut state = self.state();
        let State { any, lanes, ready, turn, in_flight, holds_back, .. } = &mut *state;
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(number) = ready.pop_front() {
            let lane = &mut lanes[usize::from(number)];
            fill(&mut batch, &mut bytes, &mut lane.queue);
            if batch.is_empty() {
                continue;
            }
            lane.in_flight = true;
            fill(&mut batch, &mut bytes, any);
            return Next::Append(LaneChoice::Only(number), batch);
        }
        if may_hold_back && !any.is_empty() && any.len() < *in_flight && !*holds_back {
            *holds_back = true;
            return Next::HoldBack;
        }
        fill(&mut batch, &mut bytes, any);
        let count = u16::try_from(lanes.len()).unwrap_or(u16::MAX);
        let free = (0..count).map(|n| (*turn + n) % count).find(|&n| !lanes[usize::from(n)].in_flight);
        match free {
            Some(number) if !batch.is_empty() => {
                lanes[usize::from(number)].in_flight = true;
                *turn = (number + 1) % count;
                *in_flight += batch.len();
                Next::Append(LaneChoice::Prefer(number), batch)
            }
            _ => {
                // Without a free lane there are others who will come for these.
                batch.into_iter().rev().for_each(|pending| any.push_front(pending));
                state.runners -= 1;
                Next::Done
            }
        }
    }

    /// Waits until more messages wait or a transaction has ended, for a while; whether one of them came.
    pub(super) async fn hold_back(&self) -> bool {
        let _held = HeldBack(self);
        timeout(HOLD_BACK, self.look_again.notified()).await.is_ok()
    }

    /// A lane's transaction with so many messages for any lane has ended.
    fn ended(&self, number: u16, messages: usize) {
        let mut state = self.state();
        state.in_flight -= messages;
        if state.holds_back {
            self.look_again.notify_one();
        }
        let lane = &mut state.lanes[usize::from(number)];
        lane.in_flight = false;
        if !lane.queue.is_empty() {
            state.ready.push_back(number);
        }
    }
}

/// What a runner does next.
#[derive(Debug)]
pub(super) enum Next {
    Append(LaneChoice, Vec<Pending>),
    /// Wait for more, and look again.
    HoldBack,
    Done,
}

/// A lane's transaction. However it ends, the lane is free again.
#[derive(Debug)]
pub(super) struct LaneInFlight<'a> {
    queue: &'a Queue,
    lane: u16,
    /// Its messages that could have gone to any lane.
    messages: usize,
}

impl<'a> LaneInFlight<'a> {
    pub(super) fn new(queue: &'a Queue, lane: LaneChoice, batch: &[Pending]) -> Self {
        let messages = if matches!(lane, LaneChoice::Prefer(_)) { batch.len() } else { 0 };
        Self { queue, lane: lane.lane(), messages }
    }
}

impl Drop for LaneInFlight<'_> {
    fn drop(&mut self) {
        self.queue.ended(self.lane, self.messages);
    }
}

/// A runner that holds back. However that ends, another one may.
#[derive(Debug)]
struct HeldBack<'a>(&'a Queue);

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        self.0.state().holds_back = false;
    }
}

/// One who appends. However it ends, another one may begin.
#[derive(Debug)]
pub(super) struct Runner<'a>(Option<&'a Queue>);

impl<'a> Runner<'a> {
    pub(super) fn new(queue: &'a Queue) -> Self {
        Self(Some(queue))
    }

    /// Whoever finds nothing to do has been counted out already, under the lock under which others queue.
    pub(super) fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Runner<'_> {
    fn drop(&mut self) {
        if let Some(queue) = self.0 {
            queue.state().runners -= 1;
        }
    }
}

/// Takes messages from a queue into a batch, within its limits.
fn fill(batch: &mut Vec<Pending>, bytes: &mut usize, queue: &mut VecDeque<Pending>) {
    while batch.len() < BATCH_MESSAGES && *bytes < BATCH_BYTES {
        let Some(pending) = queue.pop_front() else { return };
        // Whoever went away while waiting was told nothing.
        if !pending.promise.is_abandoned() {
            *bytes += pending.message.body.len();
            batch.push(pending);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::combiner::{Answer, promise};
    use crate::{Envelope, Headers};

    fn push(queue: &Queue, lane: Option<u16>) -> (bool, Answer<Appended>) {
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
        };
        (queue.push(Pending { message, promise }, lane), answer)
    }

    fn push_many(queue: &Queue, count: usize) -> Vec<Answer<Appended>> {
        (0..count).map(|_| push(queue, None).1).collect()
    }

    fn append(next: Next) -> (LaneChoice, Vec<Pending>) {
        match next {
            Next::Append(lane, batch) => (lane, batch),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_message_behind_another_goes_at_once() {
        let queue = Queue::new(8, 4);
        let (needed, _first) = push(&queue, None);
        assert!(needed);
        let (lane, batch) = append(queue.next(true));
        let _in_flight = LaneInFlight::new(&queue, lane, &batch);
        let (needed, _second) = push(&queue, None);
        assert!(needed);
        assert_eq!(append(queue.next(true)).1.len(), 1);
    }

    #[test]
    fn a_few_behind_many_wait_to_go_along_with_more() {
        let queue = Queue::new(8, 4);
        let _many = push_many(&queue, 10);
        let (lane, batch) = append(queue.next(true));
        let in_flight = LaneInFlight::new(&queue, lane, &batch);
        let _few = push_many(&queue, 9);
        assert!(matches!(queue.next(true), Next::HoldBack));
        drop(HeldBack(&queue));
        let _tenth = push(&queue, None);
        let (_, as_many) = append(queue.next(true));
        assert_eq!(as_many.len(), 10, "as many as are in flight go at once");
        drop(in_flight);
    }

    #[test]
    fn a_few_go_when_nothing_is_in_flight_any_more() {
        let queue = Queue::new(8, 4);
        let _many = push_many(&queue, 10);
        let (lane, batch) = append(queue.next(true));
        let in_flight = LaneInFlight::new(&queue, lane, &batch);
        let _one = push(&queue, None);
        assert!(matches!(queue.next(true), Next::HoldBack));
        drop(in_flight);
        assert_eq!(append(queue.next(true)).1.len(), 1);
    }

    #[tokio::test]
    async fn nobody_holds_back_for_long_behind_a_transaction_that_does_not_end() {
        let queue = Queue::new(8, 4);
        let _many = push_many(&queue, 10);
        let (lane, batch) = append(queue.next(true));
        let _stuck = LaneInFlight::new(&queue, lane, &batch);
        let _one = push(&queue, None);
        assert!(matches!(queue.next(true), Next::HoldBack));
        let may_hold_back = queue.hold_back().await;
        assert!(!may_hold_back);
        assert_eq!(append(queue.next(may_hold_back)).1.len(), 1);
    }

    #[tokio::test]
    async fn whoever_holds_back_hears_of_what_it_waits_for() {
        let queue = Queue::new(8, 4);
        let _many = push_many(&queue, 2);
        let (lane, batch) = append(queue.next(true));
        let in_flight = LaneInFlight::new(&queue, lane, &batch);
        let _one = push(&queue, None);
        assert!(matches!(queue.next(true), Next::HoldBack));
        let _another = push(&queue, None);
        assert!(queue.hold_back().await, "as many wait as are in flight");

        queue.state().holds_back = true;
        let another_lane = (in_flight.lane + 1) % 8;
        let _ordered = push(&queue, Some(another_lane));
        assert!(queue.hold_back().await, "a lane has messages of its own");

        queue.state().holds_back = true;
        drop(in_flight);
        assert!(queue.hold_back().await, "a transaction has ended");
    }

    #[test]
    fn a_lane_has_one_transaction_in_flight() {
        let queue = Queue::new(2, 2);
        let _first = push(&queue, Some(1));
        let (lane, batch) = append(queue.next(true));
        assert_eq!((lane.lane(), batch.len()), (1, 1));
        let in_flight = LaneInFlight::new(&queue, lane, &batch);
        let _second = push(&queue, Some(1));
        assert!(matches!(queue.next(true), Next::Done));
        drop(in_flight);
        assert_eq!(append(queue.next(true)).1.len(), 1);
    }
}
