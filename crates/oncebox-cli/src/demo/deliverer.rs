//! The source: delivers every message until it has seen an acknowledgement, with copies, late ones too, and out of order.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::demo::chance::Chance;
use crate::demo::plan::Plan;
use crate::demo::wire::{Answer, Delivery};

/// Messages that may overtake each other.
const WINDOW: usize = 64;
/// Deliveries that one worker has in hand at most, copies aside.
const IN_HAND: usize = 32;
/// One message in so many is sent with a copy right beside it.
const COPY_ONE_IN: usize = 5;
/// With one message in so many comes a late copy of another one that was acknowledged before.
const LATE_ONE_IN: usize = 12;
/// How long the source waits for an acknowledgement that was lost, at least, and how much longer at most.
const WAIT_MS: (u64, usize) = (30, 200);

/// What the source knows.
#[derive(Debug)]
pub(super) struct Deliverer {
    plan: Plan,
    chance: Chance,
    /// Messages up to here are in the window or were sent.
    drawn: i64,
    window: Vec<i64>,
    sent: HashMap<i64, Sent>,
    acknowledged: Vec<i64>,
    /// Deliveries that each worker has not answered: of which message, and which copy.
    in_hand: Vec<HashMap<u64, (i64, u32)>>,
    /// To be delivered again as soon as somebody has room.
    again: VecDeque<i64>,
    /// To be delivered again at that time, unless an acknowledgement is seen by then.
    later: BTreeMap<(Instant, u64), i64>,
    deliveries: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    copies: u32,
    /// It was acknowledged, and the source has seen it; or it was rejected.
    is_settled: bool,
}

/// A delivery, and to whom.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) worker: usize,
    pub(super) delivery: Delivery,
}

impl Deliverer {
    pub(super) fn new(plan: Plan, workers: usize) -> Self {
        Self {
            plan,
            chance: Chance::new(plan.seed, 10),
            drawn: 0,
            window: Vec::new(),
            sent: HashMap::new(),
            acknowledged: Vec::new(),
            in_hand: vec![HashMap::new(); workers],
            again: VecDeque::new(),
            later: BTreeMap::new(),
            deliveries: 0,
        }
    }

    /// Messages that were delivered at least once.
    pub(super) fn sent(&self) -> usize {
        self.sent.len()
    }

    /// Deliveries that a worker has not answered.
    pub(super) fn in_hand(&self, worker: usize) -> usize {
        self.in_hand.get(worker).map_or(0, HashMap::len)
    }

    /// The message of a delivery that a worker has in hand.
    pub(super) fn message_of(&self, worker: usize, delivery: u64) -> Option<i64> {
        self.in_hand.get(worker)?.get(&delivery).map(|(message, _)| *message)
    }

    /// Whether all messages are sent and settled, and every copy is answered.
    pub(super) fn is_done(&self) -> bool {
        self.drawn == self.plan.messages
            && self.window.is_empty()
            && self.again.is_empty()
            && self.later.is_empty()
            && self.in_hand.iter().all(HashMap::is_empty)
    }

    /// What is to be delivered now to workers who are open; new messages only up to that many.
    pub(super) fn deliveries(&mut self, open: &[usize], sent_max: usize, now: Instant) -> Vec<Handed> {
        self.wake(now);
        let mut handed = Vec::new();
        while let Some(worker) = self.somebody(open) {
            if let Some(message) = self.again.pop_front() {
                handed.push(self.hand(worker, message));
                continue;
            }
            if self.sent.len() >= sent_max {
                break;
            }
            let Some(message) = self.draw() else { break };
            handed.push(self.hand(worker, message));
            handed.extend(self.extra_copies(open, message));
        }
        handed
    }

    /// A copy of the same message at once to whomever, or of an old one.
    fn extra_copies(&mut self, open: &[usize], message: i64) -> Vec<Handed> {
        let mut extra = Vec::new();
        if self.chance.one_in(COPY_ONE_IN) {
            extra.push(message);
        }
        if self.chance.one_in(LATE_ONE_IN) && !self.acknowledged.is_empty() {
            extra.push(self.acknowledged[self.chance.below(self.acknowledged.len())]);
        }
        let hand = |message| {
            let worker = open[self.chance.below(open.len())];
            self.hand(worker, message)
        };
        extra.into_iter().map(hand).collect()
    }

    /// What was waited for long enough is delivered again.
    fn wake(&mut self, now: Instant) {
        while let Some(entry) = self.later.first_entry()
            && entry.key().0 <= now
        {
            let message = entry.remove();
            if !self.is_settled(message) {
                self.again.push_back(message);
            }
        }
    }

    /// A worker with room.
    fn somebody(&mut self, open: &[usize]) -> Option<usize> {
        let room: Vec<usize> =
            open.iter().copied().filter(|worker| self.in_hand(*worker) < IN_HAND).collect();
        (!room.is_empty()).then(|| room[self.chance.below(room.len())])
    }

    /// One of the next messages.
    fn draw(&mut self) -> Option<i64> {
        while self.window.len() < WINDOW && self.drawn < self.plan.messages {
            self.drawn += 1;
            self.window.push(self.drawn);
        }
        (!self.window.is_empty()).then(|| self.window.swap_remove(self.chance.below(self.window.len())))
    }

    fn hand(&mut self, worker: usize, message: i64) -> Handed {
        self.deliveries += 1;
        let sent = self.sent.entry(message).or_default();
        sent.copies += 1;
        let copy = sent.copies;
        self.in_hand[worker].insert(self.deliveries, (message, copy));
        let (way, entry) = (self.plan.way(message), self.plan.entry(message));
        Handed { worker, delivery: Delivery { delivery: self.deliveries, way, entry, copy } }
    }

    fn is_settled(&self, message: i64) -> bool {
        self.sent.get(&message).is_some_and(|sent| sent.is_settled)
    }

    /// A worker has answered; whether that was an acknowledgement, and lost on the way. Nothing for what it does not have in hand.
    pub(super) fn answered(
        &mut self,
        worker: usize,
        delivery: u64,
        answer: Answer,
        now: Instant,
    ) -> Option<bool> {
        let (message, copy) = self.in_hand.get_mut(worker)?.remove(&delivery)?;
        if self.is_settled(message) {
            return Some(false);
        }
        let is_lost = answer == Answer::Ack && self.plan.loses_acknowledgement(message, copy);
        if is_lost || answer == Answer::Retry {
            let wait = WAIT_MS.0 + self.chance.below(WAIT_MS.1) as u64;
            self.later.insert((now + Duration::from_millis(wait), delivery), message);
            return Some(is_lost);
        }
        if let Some(sent) = self.sent.get_mut(&message) {
            sent.is_settled = true;
        }
        if answer == Answer::Ack {
            self.acknowledged.push(message);
        }
        Some(false)
    }

    /// A worker is gone: what it owes is delivered again.
    pub(super) fn gone(&mut self, worker: usize) {
        let mut owed: Vec<_> = self.in_hand[worker].drain().collect();
        owed.sort_unstable();
        for (_, (message, _)) in owed {
            if !self.is_settled(message) && !self.again.contains(&message) {
                self.again.push_back(message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deliverer(messages: i64) -> Deliverer {
        Deliverer::new(Plan { seed: 5, messages }, 2)
    }

    /// Answers everything, as long as there is something, and lets every twentieth delivery kill its worker.
    fn to_the_end(source: &mut Deliverer, mut each: impl FnMut(&Handed, Option<bool>)) {
        let mut now = Instant::now();
        while !source.is_done() {
            now += Duration::from_millis(20);
            for handed in source.deliveries(&[0, 1], usize::MAX, now) {
                let number = handed.delivery.delivery;
                if number.is_multiple_of(20) {
                    source.gone(handed.worker);
                    each(&handed, None);
                    continue;
                }
                let answer = if number.is_multiple_of(7) { Answer::Retry } else { Answer::Ack };
                each(&handed, source.answered(handed.worker, number, answer, now));
            }
        }
    }

    #[test]
    fn everything_is_delivered_until_an_acknowledgement_is_seen() {
        let mut source = deliverer(500);
        let (mut seen, mut lost, mut first) = (HashMap::new(), 0, Vec::new());
        to_the_end(&mut source, |handed, is_lost| {
            let message = handed.delivery.entry.message;
            let number = handed.delivery.delivery;
            if handed.delivery.copy == 1 {
                first.push(message);
            }
            lost += u32::from(is_lost == Some(true));
            if is_lost == Some(false) && !number.is_multiple_of(7) {
                *seen.entry(message).or_insert(0) += 1;
            }
        });
        assert_eq!(source.sent(), 500);
        assert_eq!(seen.len(), 500, "each was acknowledged");
        assert!(seen.values().any(|times| *times > 1), "some come again after that");
        assert!(lost > 20, "{lost}");
        assert!(source.deliveries > 600, "with copies: {}", source.deliveries);
        assert!(!first.is_sorted(), "out of order");
    }

    #[test]
    fn whoever_is_gone_owes_nothing_and_others_get_it() {
        let mut source = deliverer(10);
        let now = Instant::now();
        let handed = source.deliveries(&[1], usize::MAX, now);
        assert!(source.in_hand(1) >= 10 && source.in_hand(0) == 0);
        source.gone(1);
        assert_eq!(source.in_hand(1), 0);
        assert!(!source.is_done());
        assert_eq!(source.answered(1, handed[0].delivery.delivery, Answer::Ack, now), None, "too late");
        let mut again: Vec<i64> = source
            .deliveries(&[0], usize::MAX, now)
            .iter()
            .map(|handed| handed.delivery.entry.message)
            .collect();
        again.sort_unstable();
        assert_eq!(again, (1..=10).collect::<Vec<_>>());
    }

    #[test]
    fn no_more_is_sent_than_allowed_or_than_there_is_room_for() {
        let mut source = deliverer(1_000);
        let now = Instant::now();
        source.deliveries(&[0, 1], 10, now);
        assert_eq!(source.sent(), 10);
        source.deliveries(&[0, 1], usize::MAX, now);
        assert!(source.in_hand(0) < 2 * IN_HAND && source.in_hand(1) < 2 * IN_HAND);
        assert!(source.deliveries(&[], usize::MAX, now).is_empty(), "nobody is there");
    }
}
