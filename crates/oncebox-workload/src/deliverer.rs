//! A source with at-least-once delivery, at its worst: it sends copies, reorders, loses acknowledgements and repeats late.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::random::Random;

/// The number of messages that can overtake each other.
const WINDOW: usize = 64;
/// The maximum number of unsettled deliveries per worker. Copies go to any worker and can exceed it.
const IN_FLIGHT_MAX: usize = 64;
/// With one new message in this many comes a late copy of one that was acknowledged before.
const LATE_ONE_IN: usize = 12;
/// The pause before a delivery is repeated: the minimum, and the maximum that is added to it.
const PAUSE_MS: (u64, usize) = (5, 40);

/// One copy of a message, for one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentCopy {
    /// The number of the delivery, not of the message.
    pub number: u64,
    /// The worker that receives it.
    pub worker: usize,
    /// The number of the message.
    pub message: u64,
    /// 1 for the first copy of the message, 2 for the second, ….
    pub copy: u32,
}

impl SentCopy {
    /// Whether the message was never delivered before.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.copy == 1
    }
}

/// The result of a delivery, as the worker reports it to the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryResult {
    /// The message is handled or stored.
    Ack,
    /// The message must be delivered again.
    Retry,
    /// The message must not be delivered again.
    Reject,
}

/// What the result of a delivery means for its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The delivery.
    pub delivery: SentCopy,
    /// Its result.
    pub result: DeliveryResult,
    /// The source has received the first acknowledgement of the message.
    pub is_first_ack: bool,
    /// The acknowledgement was lost on its way to the source.
    pub is_ack_lost: bool,
}

/// The state of the source. It repeats each delivery until it receives an acknowledgement or a rejection.
#[derive(Debug)]
pub struct Deliverer {
    plan: Plan,
    random: Random,
    total: u64,
    /// Messages from number 1 on, as far as they are in the window or sent.
    messages: Vec<MessageProgress>,
    window: Vec<u64>,
    acknowledged: Vec<u64>,
    /// Unsettled deliveries of each worker, by their number.
    in_flight: Vec<BTreeMap<u64, SentCopy>>,
    /// Messages to be delivered again as soon as a worker has room.
    ready: VecDeque<u64>,
    /// Messages to be delivered again at that time. The number keeps two at the same time apart.
    delayed: BTreeMap<(Instant, u64), u64>,
    deliveries: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct MessageProgress {
    copies: u32,
    is_acknowledged: bool,
}

impl Deliverer {
    /// Prepares to deliver the messages 1 to `total` to the workers 0 to `workers - 1`.
    #[must_use]
    pub fn new(plan: Plan, workers: usize, total: u64) -> Self {
        Self {
            plan,
            random: Random::new(plan.seed, "deliverer"),
            total,
            messages: Vec::new(),
            window: Vec::new(),
            acknowledged: Vec::new(),
            in_flight: vec![BTreeMap::new(); workers],
            ready: VecDeque::new(),
            delayed: BTreeMap::new(),
            deliveries: 0,
        }
    }

    /// The number of messages that were delivered at least once.
    #[must_use]
    pub fn sent(&self) -> u64 {
        (self.messages.len() - self.window.len()) as u64
    }

    /// The number of messages whose acknowledgement the source has received.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.len() as u64
    }

    /// The number of unsettled deliveries of a worker.
    #[must_use]
    pub fn in_flight(&self, worker: usize) -> usize {
        self.in_flight.get(worker).map_or(0, BTreeMap::len)
    }

    /// Whether all messages have been sent once.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.sent() == self.total
    }

    /// Whether all messages are sent, and every delivery of them is acknowledged or rejected.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_exhausted()
            && self.ready.is_empty()
            && self.delayed.is_empty()
            && self.in_flight.iter().all(BTreeMap::is_empty)
    }

    /// Adds messages to the ones that are to be sent.
    pub fn extend(&mut self, messages: u64) {
        self.total += messages;
    }

    /// The next deliveries to workers that are open. New messages are sent only until `sent_max` of them were.
    pub fn deliveries(&mut self, open: &[usize], sent_max: u64, now: Instant) -> Vec<SentCopy> {
        self.end_pauses(now);
        let mut deliveries = Vec::new();
        while let Some(worker) = self.worker_with_room(open) {
            if let Some(message) = self.ready.pop_front() {
                deliveries.push(self.deliver(worker, message));
                continue;
            }
            if self.sent() >= sent_max {
                break;
            }
            let Some(message) = self.next_message() else { break };
            deliveries.push(self.deliver(worker, message));
            for message in self.extra_copies(message) {
                let worker = self.random.choose(open);
                deliveries.extend(worker.map(|worker| self.deliver(worker, message)));
            }
        }
        deliveries
    }

    /// Delivers that many copies of one new message to one worker; none while the message must wait for its predecessor.
    pub fn burst(&mut self, worker: usize, copies: usize) -> Vec<SentCopy> {
        let message = self.messages.len() as u64 + 1;
        if !self.may_be_sent(message) {
            return Vec::new();
        }
        self.total += 1;
        self.messages.push(MessageProgress::default());
        (0..copies).map(|_| self.deliver(worker, message)).collect()
    }

    /// A worker reports a result. `None` if it does not have this delivery.
    pub fn settle(
        &mut self,
        worker: usize,
        delivery: u64,
        result: DeliveryResult,
        now: Instant,
    ) -> Option<Settled> {
        let delivery = self.in_flight.get_mut(worker)?.remove(&delivery)?;
        let SentCopy { number, message, copy, .. } = delivery;
        let is_ack_lost = result == DeliveryResult::Ack && self.plan.loses_ack(message, copy);
        let mut is_first_ack = false;
        match result {
            DeliveryResult::Ack if !is_ack_lost => is_first_ack = self.acknowledge(message),
            // A source cannot tell a lost acknowledgement from a failure, so it repeats both.
            DeliveryResult::Ack | DeliveryResult::Retry => {
                let pause = Duration::from_millis(PAUSE_MS.0 + self.random.below(PAUSE_MS.1) as u64);
                self.delayed.insert((now + pause, number), message);
            }
            DeliveryResult::Reject => {}
        }
        Some(Settled { delivery, result, is_first_ack, is_ack_lost })
    }

    /// A worker has ended: its unsettled deliveries are repeated.
    pub fn worker_ended(&mut self, worker: usize) {
        let unsettled = std::mem::take(&mut self.in_flight[worker]);
        // The worker may have finished some of them, but the source cannot know which.
        self.ready.extend(unsettled.values().map(|delivery| delivery.message));
    }

    fn end_pauses(&mut self, now: Instant) {
        while let Some(entry) = self.delayed.first_entry()
            && entry.key().0 <= now
        {
            self.ready.push_back(entry.remove());
        }
    }

    fn worker_with_room(&mut self, open: &[usize]) -> Option<usize> {
        let has_room = |worker: &usize| self.in_flight(*worker) < IN_FLIGHT_MAX;
        let with_room: Vec<usize> = open.iter().copied().filter(has_room).collect();
        self.random.choose(&with_room)
    }

    /// Chooses one of the next messages.
    fn next_message(&mut self) -> Option<u64> {
        while self.window.len() < WINDOW && (self.messages.len() as u64) < self.total {
            self.messages.push(MessageProgress::default());
            self.window.push(self.messages.len() as u64);
        }
        let may_be_sent = |place: &usize| self.may_be_sent(self.window[*place]);
        let places: Vec<usize> = (0..self.window.len()).filter(may_be_sent).collect();
        self.random.choose(&places).map(|place| self.window.swap_remove(place))
    }

    fn may_be_sent(&self, message: u64) -> bool {
        self.plan.predecessor(message).is_none_or(|before| self.messages[index(before)].is_acknowledged)
    }

    /// Messages that go along with a new one: copies of it, and a late copy of another one.
    fn extra_copies(&mut self, message: u64) -> Vec<u64> {
        let copies = match self.random.below(1_000) {
            0 => 2 + self.random.below(48),
            1..40 => 1 + self.random.below(4),
            40..240 => 1,
            _ => 0,
        };
        let mut messages = vec![message; copies];
        if self.random.one_in(LATE_ONE_IN) {
            messages.extend(self.random.choose(&self.acknowledged));
        }
        messages
    }

    fn deliver(&mut self, worker: usize, message: u64) -> SentCopy {
        self.deliveries += 1;
        let progress = &mut self.messages[index(message)];
        progress.copies += 1;
        let delivery = SentCopy { number: self.deliveries, worker, message, copy: progress.copies };
        self.in_flight[worker].insert(delivery.number, delivery);
        delivery
    }

    /// Whether it is the first acknowledgement of the message.
    fn acknowledge(&mut self, message: u64) -> bool {
        let is_known = std::mem::replace(&mut self.messages[index(message)].is_acknowledged, true);
        if !is_known {
            self.acknowledged.push(message);
        }
        !is_known
    }
}

/// Where the progress of a message is.
fn index(message: u64) -> usize {
    usize::try_from(message - 1).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PLAN: Plan = Plan { seed: 5, accounts: 100, is_ordered: false };

    /// Every 20th delivery kills its worker, and every 7th one is to be repeated; all others are acknowledged.
    fn settle(deliverer: &mut Deliverer, delivery: SentCopy, now: Instant) -> Option<Settled> {
        let SentCopy { number, worker, .. } = delivery;
        if number.is_multiple_of(20) {
            deliverer.worker_ended(worker);
        }
        let retries = number.is_multiple_of(7);
        let result = if retries { DeliveryResult::Retry } else { DeliveryResult::Ack };
        deliverer.settle(worker, number, result, now)
    }

    /// Delivers everything, with what became of each delivery.
    fn run(deliverer: &mut Deliverer) -> Vec<(SentCopy, Option<Settled>)> {
        let mut now = Instant::now();
        let mut run = Vec::new();
        while !deliverer.is_done() {
            now += Duration::from_millis(20);
            for delivery in deliverer.deliveries(&[0, 1], u64::MAX, now) {
                run.push((delivery, settle(deliverer, delivery, now)));
            }
        }
        run
    }

    #[test]
    fn every_message_is_delivered_until_its_acknowledgement_arrives() {
        let mut deliverer = Deliverer::new(PLAN, 2, 500);
        let run = run(&mut deliverer);
        let settled = || run.iter().filter_map(|(_, settled)| *settled);
        let first_acks: BTreeSet<u64> = settled()
            .filter(|settled| settled.is_first_ack)
            .map(|settled| settled.delivery.message)
            .collect();
        assert_eq!(first_acks, (1..=500).collect());
        assert_eq!((deliverer.sent(), deliverer.acknowledged()), (500, 500));
        let lost = settled().filter(|settled| settled.is_ack_lost).count();
        assert!(lost > 20, "{lost}");
        assert!(run.len() > 600 + lost, "with copies: {}", run.len());
    }

    #[test]
    fn messages_come_out_of_order_and_again_after_their_acknowledgement() {
        let run = run(&mut Deliverer::new(PLAN, 2, 500));
        assert!(
            !run.iter().filter(|(delivery, _)| delivery.is_first()).map(|(one, _)| one.message).is_sorted()
        );
        let mut acknowledged = BTreeSet::new();
        let mut late = 0;
        for (delivery, settled) in run {
            late += usize::from(acknowledged.contains(&delivery.message));
            acknowledged.extend(
                settled.filter(|settled| settled.is_first_ack).map(|settled| settled.delivery.message),
            );
        }
        assert!(late > 20, "{late}");
    }

    #[test]
    fn the_same_seed_gives_the_same_deliveries() {
        let deliveries = |seed| run(&mut Deliverer::new(Plan { seed, ..PLAN }, 2, 300));
        assert_eq!(deliveries(5), deliveries(5));
        assert_ne!(deliveries(5), deliveries(6));
    }

    #[test]
    fn an_ordered_message_waits_for_the_acknowledgement_of_its_predecessor() {
        let plan = Plan { is_ordered: true, ..PLAN };
        let mut acknowledged = BTreeSet::new();
        let mut sent = Vec::new();
        for (delivery, settled) in run(&mut Deliverer::new(plan, 2, 1_000)) {
            if delivery.is_first() {
                let before = plan.predecessor(delivery.message);
                assert!(before.is_none_or(|before| acknowledged.contains(&before)), "{delivery:?}");
                sent.push(delivery.message);
            }
            acknowledged.extend(
                settled.filter(|settled| settled.is_first_ack).map(|settled| settled.delivery.message),
            );
        }
        assert!(sent.len() == 1_000 && !sent.is_sorted(), "{sent:?}");
    }

    #[test]
    fn unsettled_deliveries_of_a_worker_that_ended_go_to_others() {
        let mut deliverer = Deliverer::new(PLAN, 2, 10);
        let now = Instant::now();
        let first = deliverer.deliveries(&[1], u64::MAX, now);
        assert_eq!((deliverer.in_flight(0), deliverer.in_flight(1)), (0, first.len()));
        deliverer.worker_ended(1);
        assert!(deliverer.in_flight(1) == 0 && !deliverer.is_done());
        assert_eq!(deliverer.settle(1, first[0].number, DeliveryResult::Ack, now), None, "too late");
        let again = deliverer.deliveries(&[0], u64::MAX, now);
        let messages = |deliveries: &[SentCopy]| deliveries.iter().map(|one| one.message).collect::<Vec<_>>();
        assert_eq!(messages(&again), messages(&first));
    }

    #[test]
    fn a_rejected_message_is_not_delivered_again() {
        let mut deliverer = Deliverer::new(PLAN, 1, 1);
        let (now, result) = (Instant::now(), DeliveryResult::Reject);
        for delivery in deliverer.deliveries(&[0], u64::MAX, now) {
            let settled = deliverer.settle(0, delivery.number, result, now);
            assert_eq!(settled, Some(Settled { delivery, result, is_first_ack: false, is_ack_lost: false }));
        }
        assert!(deliverer.is_done());
        assert_eq!(deliverer.acknowledged(), 0);
    }

    #[test]
    fn new_messages_stop_at_the_maximum_and_when_no_worker_has_room() {
        let mut deliverer = Deliverer::new(PLAN, 2, 10_000);
        let now = Instant::now();
        deliverer.deliveries(&[0, 1], 10, now);
        assert_eq!(deliverer.sent(), 10);
        deliverer.deliveries(&[0, 1], u64::MAX, now);
        assert!((0..2).all(|worker| deliverer.in_flight(worker) >= IN_FLIGHT_MAX));
        let sent = deliverer.sent();
        assert_eq!(deliverer.deliveries(&[0, 1], u64::MAX, now), [], "no room");
        assert_eq!(deliverer.deliveries(&[], u64::MAX, now), [], "no worker");
        assert_eq!(deliverer.sent(), sent);
    }

    #[test]
    fn a_burst_is_one_message_and_waits_for_its_predecessor() {
        let mut deliverer = Deliverer::new(Plan { accounts: 1, is_ordered: true, ..PLAN }, 2, 0);
        let copies = deliverer.burst(1, 64);
        assert_eq!((copies.len(), deliverer.in_flight(1)), (64, 64));
        assert!(copies.iter().all(|copy| (copy.message, copy.worker) == (1, 1)));
        assert_eq!(deliverer.burst(1, 64), [], "the first one is not acknowledged");
        for SentCopy { number, .. } in copies {
            deliverer.settle(1, number, DeliveryResult::Ack, Instant::now());
        }
        assert_eq!(deliverer.burst(0, 2).len(), 2);
    }

    #[test]
    fn a_deliverer_without_more_messages_can_be_extended() {
        let mut deliverer = Deliverer::new(PLAN, 2, 10);
        run(&mut deliverer);
        deliverer.extend(5);
        assert!(!deliverer.is_exhausted() && !deliverer.is_done());
        run(&mut deliverer);
        assert_eq!(deliverer.acknowledged(), 15);
    }
}
