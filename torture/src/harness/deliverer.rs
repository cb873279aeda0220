//! The source: delivers every message until it is acknowledged, with copies, late ones too, and out of order.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use oncebox_torture::chance::Chance;
use oncebox_torture::plan::Plan;

use crate::history::Answer;

/// Messages that may overtake each other.
const WINDOW: usize = 64;
/// Deliveries that one worker has in hand at most.
const IN_HAND: usize = 64;
/// How long a source waits before it delivers again, at most.
const PAUSE_MS: usize = 40;

/// A copy that is to be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) worker: usize,
    pub(crate) id: u64,
    pub(crate) attempt: u32,
    /// Nobody has seen the message before.
    pub(crate) is_first: bool,
}

/// What the source knows.
#[derive(Debug)]
pub(crate) struct Deliverer {
    plan: Plan,
    chance: Chance,
    total: u64,
    next: u64,
    window: Vec<u64>,
    messages: Vec<Message>,
    acknowledged: u64,
    /// Copies that each worker has not answered.
    owed: Vec<HashMap<u64, u32>>,
    /// To be delivered again, to whomever.
    again: VecDeque<u64>,
    later: BTreeMap<(Instant, u64), u64>,
    numbers: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Message {
    is_acknowledged: bool,
    attempts: u32,
}

impl Deliverer {
    pub(crate) fn new(plan: Plan, workers: usize, total: u64) -> Self {
        Self {
            plan,
            chance: Chance::new(plan.seed ^ 0xd1),
            total,
            next: 0,
            window: Vec::new(),
            messages: Vec::new(),
            acknowledged: 0,
            owed: vec![HashMap::new(); workers],
            again: VecDeque::new(),
            later: BTreeMap::new(),
            numbers: 0,
        }
    }

    /// Messages that were acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Whether everything is sent, and every copy answered with an acknowledgement.
    pub(crate) fn is_done(&self) -> bool {
        self.next == self.total
            && self.window.is_empty()
            && self.again.is_empty()
            && self.later.is_empty()
            && self.owed.iter().all(HashMap::is_empty)
    }

    /// Goes on with more messages.
    pub(crate) fn extend(&mut self, messages: u64) {
        self.total += messages;
    }

    /// Whether all messages have been sent once.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.next == self.total && self.window.is_empty()
    }

    fn in_hand(&self, worker: usize) -> usize {
        self.owed[worker].values().map(|copies| *copies as usize).sum()
    }

    /// What is to be delivered now, to workers who are open.
    pub(crate) fn deliveries(&mut self, open: &[usize], now: Instant) -> Vec<Delivery> {
        while let Some(entry) = self.later.first_entry()
            && entry.key().0 <= now
        {
            self.again.push_back(entry.remove());
        }
        let mut deliveries = Vec::new();
        loop {
            let has_room = |worker: &usize| self.in_hand(*worker) < IN_HAND;
            let room: Vec<usize> = open.iter().copied().filter(has_room).collect();
            if room.is_empty() {
                break;
            }
            let worker = room[self.chance.below(room.len())];
            if let Some(id) = self.again.pop_front() {
                deliveries.push(self.deliver(worker, id, false));
                continue;
            }
            let Some(id) = self.choose() else { break };
            deliveries.push(self.deliver(worker, id, true));
            for _ in 0..self.copies() {
                let worker = open[self.chance.below(open.len())];
                deliveries.push(self.deliver(worker, id, false));
            }
            // A late copy of a message that was done with long ago.
            if self.chance.one_in(20) {
                let old = self.chance.below(self.messages.len()) as u64;
                if self.messages[index(old)].is_acknowledged {
                    deliveries.push(self.deliver(worker, old, false));
                }
            }
        }
        deliveries
    }

    /// So many copies of one new message to one worker; none while its turn has not come.
    pub(crate) fn burst(&mut self, worker: usize, copies: usize) -> Vec<Delivery> {
        let id = self.next;
        let predecessor = self.plan.predecessor(id);
        if predecessor.is_some_and(|before| !self.messages[index(before)].is_acknowledged) {
            return Vec::new();
        }
        self.total += 1;
        self.next += 1;
        self.messages.push(Message::default());
        (0..copies).map(|copy| self.deliver(worker, id, copy == 0)).collect()
    }

    fn deliver(&mut self, worker: usize, id: u64, is_first: bool) -> Delivery {
        *self.owed[worker].entry(id).or_default() += 1;
        let message = &mut self.messages[index(id)];
        message.attempts += 1;
        Delivery { worker, id, attempt: message.attempts, is_first }
    }

    /// One of the next messages, whose turn it is.
    fn choose(&mut self) -> Option<u64> {
        while self.window.len() < WINDOW && self.next < self.total {
            self.window.push(self.next);
            self.messages.push(Message::default());
            self.next += 1;
        }
        for _ in 0..8 {
            if self.window.is_empty() {
                return None;
            }
            let chosen = self.chance.below(self.window.len());
            let id = self.window[chosen];
            let predecessor = self.plan.predecessor(id);
            if predecessor.is_none_or(|before| self.messages[index(before)].is_acknowledged) {
                self.window.swap_remove(chosen);
                return Some(id);
            }
        }
        None
    }

    /// How many copies go along at once.
    fn copies(&mut self) -> usize {
        match self.chance.below(1_000) {
            0 => 2 + self.chance.below(48),
            1..40 => 1 + self.chance.below(4),
            40..240 => 1,
            _ => 0,
        }
    }

    /// A worker has answered; whether that was the first acknowledgement.
    pub(crate) fn settled(&mut self, worker: usize, id: u64, answer: Answer, now: Instant) -> bool {
        match self.owed[worker].get_mut(&id) {
            Some(copies) if *copies > 1 => *copies -= 1,
            _ => _ = self.owed[worker].remove(&id),
        }
        match answer {
            Answer::Ack => {
                let message = &mut self.messages[index(id)];
                let is_first = !message.is_acknowledged;
                message.is_acknowledged = true;
                self.acknowledged += u64::from(is_first);
                is_first
            }
            Answer::Retry => {
                self.numbers += 1;
                let pause = Duration::from_millis(5 + self.chance.below(PAUSE_MS) as u64);
                self.later.insert((now + pause, self.numbers), id);
                false
            }
            // Never again; the checker will tell.
            Answer::Reject => false,
        }
    }

    /// A worker is gone: what it owes is delivered again.
    pub(crate) fn gone(&mut self, worker: usize) {
        for (id, copies) in std::mem::take(&mut self.owed[worker]) {
            self.again.extend((0..copies).map(|_| id));
        }
    }
}

fn index(id: u64) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use oncebox_torture::plan::{ACCOUNTS, Mode};

    use super::*;

    fn deliverer(mode: Mode, total: u64) -> Deliverer {
        Deliverer::new(Plan { mode, seed: 5 }, 2, total)
    }

    #[test]
    fn everything_is_delivered_until_it_is_acknowledged() {
        let mut source = deliverer(Mode::Inline, 500);
        let mut chance = Chance::new(1);
        let mut now = Instant::now();
        let mut deliveries = 0;
        while !source.is_done() {
            now += Duration::from_millis(10);
            for Delivery { worker, id, .. } in source.deliveries(&[0, 1], now) {
                deliveries += 1;
                match chance.below(10) {
                    0 => source.gone(worker),
                    1 => _ = source.settled(worker, id, Answer::Retry, now),
                    _ => _ = source.settled(worker, id, Answer::Ack, now),
                }
            }
        }
        assert_eq!(source.acknowledged(), 500);
        assert!(deliveries > 550, "with copies: {deliveries}");
    }

    #[test]
    fn messages_overtake_each_other_but_not_in_one_account() {
        let mut source = deliverer(Mode::Stored, ACCOUNTS * 2);
        let mut now = Instant::now();
        let mut first = Vec::new();
        while !source.is_done() {
            now += Duration::from_secs(1);
            for Delivery { worker, id, is_first, .. } in source.deliveries(&[0], now) {
                if is_first {
                    let before = id.checked_sub(ACCOUNTS);
                    assert!(before.is_none_or(|before| first.contains(&before)), "{id}");
                    first.push(id);
                }
                source.settled(worker, id, Answer::Ack, now);
            }
        }
        assert!(!first.is_sorted());
        assert_eq!(first.len() as u64, ACCOUNTS * 2);
    }

    #[test]
    fn whoever_is_gone_owes_nothing() {
        let mut source = deliverer(Mode::Inline, 10);
        let copies = source.burst(1, 64);
        assert!(copies.iter().all(|copy| copy.id == copies[0].id && copy.worker == 1));
        assert_eq!(source.in_hand(1), 64);
        source.gone(1);
        assert_eq!(source.in_hand(1), 0);
        assert!(!source.is_done());
        assert!(source.deliveries(&[0], Instant::now()).len() >= IN_HAND);
    }

    #[test]
    fn a_slow_worker_gets_no_more_than_it_can_have_in_hand() {
        let mut source = deliverer(Mode::Inline, 10_000);
        let now = Instant::now();
        for _ in 0..20 {
            for Delivery { worker, id, .. } in source.deliveries(&[0, 1], now) {
                if worker == 0 {
                    source.settled(worker, id, Answer::Ack, now);
                }
            }
        }
        // Copies go to anybody.
        assert!(source.in_hand(1) < IN_HAND * 10, "{}", source.in_hand(1));
        assert!(source.acknowledged() > 500);
    }
}
