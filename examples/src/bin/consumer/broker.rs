//! A tiny queue that keeps the one promise that real ones keep: every message is delivered at least once.
//!
//! It delivers again what was not acknowledged in time, loses acknowledgements, takes a message twice from a
//! sender that was not sure, and does not keep the order. Its clock jumps to the next delivery that is due, and its
//! dice are seeded, so that every run is the same and takes no time.

use std::time::Duration;

use oncebox::Envelope;

/// How long a delivery may stay without an answer before the message is delivered again.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(30);
/// A message that was delivered this often in vain is set aside.
const MAX_DELIVERIES: u32 = 20;

/// A message as it lies in the queue.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    tag: u64,
    kind: String,
    pub(crate) body: Vec<u8>,
    deliveries: u32,
    due: Duration,
}

/// One delivery, to be settled by its tag.
#[derive(Debug)]
pub(crate) struct BrokerDelivery {
    pub(crate) tag: u64,
    pub(crate) kind: String,
    pub(crate) body: Vec<u8>,
    /// Which delivery of this message it is, counted from 1.
    pub(crate) attempt: u32,
}

#[derive(Debug)]
pub(crate) struct Broker {
    clock: Duration,
    dice: Dice,
    next_tag: u64,
    queue: Vec<Queued>,
    pub(crate) dead_letters: Vec<Queued>,
    pub(crate) copies: u32,
    pub(crate) deliveries: u32,
    pub(crate) lost_acknowledgements: u32,
}

impl Broker {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            clock: Duration::ZERO,
            dice: Dice(seed),
            next_tag: 0,
            queue: Vec::new(),
            dead_letters: Vec::new(),
            copies: 0,
            deliveries: 0,
            lost_acknowledgements: 0,
        }
    }

    /// Takes a message; sometimes twice, as from a sender that did not see the first answer.
    pub(crate) fn publish(&mut self, message: &Envelope) {
        self.put(message);
        if self.dice.one_in(5) {
            self.copies += 1;
            self.put(message);
        }
    }

    fn put(&mut self, message: &Envelope) {
        self.queue.push(Queued {
            tag: self.next_tag,
            kind: message.kind().to_owned(),
            body: message.body().to_vec(),
            deliveries: 0,
            due: self.clock,
        });
        self.next_tag += 1;
    }

    /// Delivers any of the messages that are due; `None` when the queue is empty.
    pub(crate) fn receive(&mut self) -> Option<BrokerDelivery> {
        let next_due = self.queue.iter().map(|queued| queued.due).min()?;
        self.clock = self.clock.max(next_due);
        let mut due: Vec<&mut Queued> =
            self.queue.iter_mut().filter(|queued| queued.due <= self.clock).collect();
        let queued = due.swap_remove(self.dice.roll(due.len()));
        queued.due = self.clock + VISIBILITY_TIMEOUT;
        queued.deliveries += 1;
        self.deliveries += 1;
        Some(BrokerDelivery {
            tag: queued.tag,
            kind: queued.kind.clone(),
            body: queued.body.clone(),
            attempt: queued.deliveries,
        })
    }

    /// The consumer is done with it. Sometimes this does not arrive, and the message is delivered again.
    pub(crate) fn ack(&mut self, tag: u64) {
        if self.dice.one_in(4) {
            self.lost_acknowledgements += 1;
        } else {
            self.take(tag);
        }
    }

    /// The consumer wants it again.
    pub(crate) fn retry(&mut self, tag: u64, after: Duration) {
        let Some(queued) = self.queue.iter_mut().find(|queued| queued.tag == tag) else { return };
        if queued.deliveries >= MAX_DELIVERIES {
            return self.reject(tag);
        }
        queued.due = self.clock + after;
    }

    /// The consumer never wants it again: a person has to look at it.
    pub(crate) fn reject(&mut self, tag: u64) {
        let queued = self.take(tag);
        self.dead_letters.extend(queued);
    }

    fn take(&mut self, tag: u64) -> Option<Queued> {
        let place = self.queue.iter().position(|queued| queued.tag == tag)?;
        Some(self.queue.remove(place))
    }
}

/// Randomness that is the same in every run (SplitMix64).
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    /// A number from 0 up to, but not including, `sides`.
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % sides.max(1) as u64).unwrap_or_default()
    }

    fn one_in(&mut self, sides: usize) -> bool {
        self.roll(sides) == 0
    }
}
