//! A range: which of its messages are sent next, and what becomes of each. Rules without a sink and without a clock.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::inbox::stored::work::MessageEnd;
use crate::outcome::Outcome;
use crate::store::StoredMessage;
use crate::{Key, Outgoing, Verdict};

/// The number of runs without a verdict for a message, from one on that confirmed others, before the lane goes on without it.
const UNKNOWN_MAX: u32 = 3;

/// What a process remembers of a lane between two ranges: messages behind the progress whose verdicts are known.
#[derive(Debug, Default)]
pub(super) struct LaneMemory {
    epoch: i32,
    /// Confirmed messages, which are not sent again.
    confirmed: HashSet<i64>,
    /// Messages without a verdict, and in how many runs, from the first one on in which others were confirmed.
    unknown: HashMap<i64, u32>,
}

impl LaneMemory {
    /// Forgets what is behind the progress, and everything if a replay has begun.
    pub(super) fn advance(&mut self, epoch: i32, progress: i64) {
        if self.epoch != epoch && !mutant!("confirmed_memory_survives_replay") {
            *self = Self { epoch, ..Self::default() };
        }
        self.confirmed.retain(|pos| *pos > progress);
        self.unknown.retain(|pos, _| *pos > progress);
    }
}

/// The state of one message of a range.
#[derive(Debug)]
enum SendState {
    /// It was not sent yet.
    Waiting,
    /// It was sent, and has no verdict yet.
    InFlight,
    /// It was sent, and its verdict is unknown.
    Unknown,
    /// Its end is known.
    Ended(MessageEnd),
}

/// The messages of a range. At most one message of each ordering key is in flight, unless the sink keeps order.
#[derive(Debug)]
pub(super) struct RangeRun {
    states: Vec<SendState>,
    positions: Vec<i64>,
    keys: Vec<Option<Key>>,
    /// The messages that can be sent now, in their order.
    ready: VecDeque<usize>,
    /// Messages that wait for an earlier one of their ordering key; a key is present while one of its messages is unconfirmed.
    behind: HashMap<Key, VecDeque<usize>>,
    /// Whether a verdict of this range is unknown. Then no further message is sent.
    is_cut: bool,
    /// The number of messages that the sink has confirmed in this run.
    confirmed: usize,
}

/// How much of a range can be settled.
pub(super) struct RangeEnd {
    /// The ends of the messages from the beginning of the range on. Shorter than the range if a verdict is missing.
    pub(super) ended: Vec<MessageEnd>,
    /// The number of messages that the sink has confirmed in this run.
    pub(super) confirmed: usize,
}

impl RangeRun {
    /// The messages of a range. With `ordered`, a message that is held back becomes a task.
    pub(super) fn new(
        messages: &[StoredMessage],
        ordered: bool,
        keeps_order: bool,
        memory: &LaneMemory,
    ) -> Self {
        let mut run = Self {
            states: Vec::with_capacity(messages.len()),
            positions: messages.iter().map(|message| message.place.pos).collect(),
            keys: Vec::with_capacity(messages.len()),
            ready: VecDeque::new(),
            behind: HashMap::new(),
            is_cut: false,
            confirmed: 0,
        };
        let mut held: HashSet<&Key> = HashSet::new();
        for (n, message) in messages.iter().enumerate() {
            let key = message.order_by.as_ref().filter(|_| ordered);
            run.keys.push(key.filter(|_| !keeps_order).cloned());
            // A message without an id was accepted, not published: it is not for relays.
            let is_done = message.message_id.is_none() || memory.confirmed.contains(&message.place.pos);
            let state = if is_done {
                SendState::Ended(MessageEnd::Done(None))
            } else if !message.due_in.is_zero() {
                SendState::Ended(MessageEnd::Scheduled)
            } else if key.is_some_and(|key| message.held || held.contains(key)) {
                held.extend(key);
                SendState::Ended(MessageEnd::Parked)
            } else {
                match run.keys[n].clone() {
                    Some(key) => match run.behind.get_mut(&key) {
                        Some(behind) if !mutant!("relay_sends_two_of_a_key") => behind.push_back(n),
                        _ => {
                            run.behind.insert(key, VecDeque::new());
                            run.ready.push_back(n);
                        }
                    },
                    None => run.ready.push_back(n),
                }
                SendState::Waiting
            };
            run.states.push(state);
        }
        run
    }

    /// The number of messages that can be sent now.
    pub(super) fn ready(&self) -> usize {
        if self.is_cut { 0 } else { self.ready.len() }
    }

    /// Takes the next messages to send, as indexes, in their order.
    pub(super) fn next_wave(&mut self, most: usize) -> Vec<usize> {
        let size = self.ready().min(most);
        let wave: Vec<usize> = self.ready.drain(..size).collect();
        for n in &wave {
            self.states[*n] = SendState::InFlight;
        }
        wave
    }

    /// Sends nothing more: this process may have lost its lease, or its time is over.
    pub(super) fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Records a verdict. Returns why it is unknown, if it is.
    pub(super) fn record(&mut self, n: usize, verdict: Verdict) -> Option<String> {
        let key = self.keys[n].clone();
        match verdict {
            Verdict::Unknown(_) if mutant!("unknown_verdict_counts_as_confirmed") => {
                self.record(n, Verdict::Confirmed)
            }
            Verdict::Unknown(why) if mutant!("unknown_verdict_spends_attempt") => {
                self.record(n, Verdict::Refused(why.to_string().into()))
            }
            Verdict::Confirmed => {
                self.confirmed += 1;
                self.states[n] = SendState::Ended(MessageEnd::Done(None));
                if let Some(key) = key {
                    match self.behind.get_mut(&key).and_then(VecDeque::pop_front) {
                        Some(next) => self.ready.push_back(next),
                        None => drop(self.behind.remove(&key)),
                    }
                }
                None
            }
            Verdict::Refused(failure) => {
                self.states[n] = SendState::Ended(MessageEnd::Failed(Outcome::failed(failure)));
                self.park_behind(n);
                None
            }
            Verdict::Unknown(why) => {
                self.states[n] = SendState::Unknown;
                self.is_cut = true;
                Some(why.to_string())
            }
        }
    }

    /// The messages behind a refused one wait for it as tasks.
    fn park_behind(&mut self, n: usize) {
        let behind = self.keys[n].as_ref().and_then(|key| self.behind.get_mut(key));
        for waiting in behind.map(std::mem::take).unwrap_or_default() {
            self.states[waiting] = SendState::Ended(MessageEnd::Parked);
        }
    }

    /// What can be settled, after the last verdict. Remembers the rest.
    ///
    /// The lane waits for a message without a verdict. But if it still has none some runs after others were confirmed, it becomes a
    /// task, and the lane goes on.
    pub(super) fn end(mut self, memory: &mut LaneMemory) -> RangeEnd {
        for n in 0..self.states.len() {
            if !matches!(self.states[n], SendState::Unknown) {
                continue;
            }
            let tries = memory.unknown.entry(self.positions[n]).or_default();
            // Later runs count too: what was confirmed is not sent again, so this one may be left alone.
            *tries += u32::from(self.confirmed > 0 || *tries > 0);
            if *tries >= UNKNOWN_MAX {
                self.states[n] = SendState::Ended(MessageEnd::Parked);
                self.park_behind(n);
            }
        }
        let first_open = self.states.iter().position(|state| !matches!(state, SendState::Ended(_)));
        let rest = self.states.split_off(first_open.unwrap_or(self.states.len()));
        let positions = &self.positions[self.states.len()..];
        for (state, pos) in rest.iter().zip(positions) {
            if matches!(state, SendState::Ended(MessageEnd::Done(_))) {
                memory.confirmed.insert(*pos);
            }
        }
        let ended = self.states.into_iter().filter_map(|state| match state {
            SendState::Ended(ended) => Some(ended),
            _ => None,
        });
        RangeEnd { ended: ended.collect(), confirmed: self.confirmed }
    }
}

/// The message as the sink gets it. The body moves: a dead letter of the log keeps its own.
pub(in crate::inbox::stored) fn outgoing(message: &mut StoredMessage, relay: &Arc<str>) -> Option<Outgoing> {
    let id = message.message_id?;
    Some(Outgoing {
        id,
        kind: message.kind.clone(),
        key: message.key.clone().unwrap_or_else(|| id.to_string().into()),
        order_by: message.order_by.clone(),
        headers: std::mem::take(&mut message.headers),
        body: std::mem::take(&mut message.body),
        occurred_at: message.occurred_at,
        relay: relay.clone(),
        is_replay: message.replay,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Failure;
    use crate::MessageId;
    use crate::inbox::stored::account::tests;

    fn message(pos: i64) -> StoredMessage {
        StoredMessage { message_id: Some(MessageId::from_bytes([7; 16])), ..tests::message(pos) }
    }

    fn keyed(pos: i64, key: &str) -> StoredMessage {
        StoredMessage { order_by: Some(key.into()), ..message(pos) }
    }

    fn run(messages: &[StoredMessage]) -> RangeRun {
        RangeRun::new(messages, true, false, &LaneMemory::default())
    }

    fn names(ended: &[MessageEnd]) -> Vec<&'static str> {
        let name = |end: &MessageEnd| match end {
            MessageEnd::Done(_) => "done",
            MessageEnd::Scheduled => "scheduled",
            MessageEnd::Parked => "parked",
            MessageEnd::Again => "again",
            MessageEnd::Failed(_) => "failed",
        };
        ended.iter().map(name).collect()
    }

    fn refused() -> Verdict {
        Verdict::Refused(Failure::permanent("no route"))
    }

    fn unknown() -> Verdict {
        Verdict::Unknown("connection lost".into())
    }

    #[test]
    fn one_message_of_each_ordering_key_is_in_flight() {
        let mut run = run(&[keyed(1, "a"), keyed(2, "a"), keyed(3, "b"), message(4), keyed(5, "a")]);
        assert_eq!(run.next_wave(9), [0, 2, 3]);
        assert_eq!(run.next_wave(9), [0; 0]);
        run.record(0, Verdict::Confirmed);
        assert_eq!(run.next_wave(9), [1]);
        run.record(2, Verdict::Confirmed);
        run.record(3, Verdict::Confirmed);
        assert_eq!(run.ready(), 0);
        run.record(1, Verdict::Confirmed);
        assert_eq!(run.next_wave(9), [4]);
        run.record(4, Verdict::Confirmed);
        let end = run.end(&mut LaneMemory::default());
        assert_eq!((names(&end.ended), end.confirmed), (vec!["done"; 5], 5));
    }

    #[test]
    fn a_sink_that_keeps_order_gets_all_at_once() {
        let messages = [keyed(1, "a"), keyed(2, "a")];
        let mut run = RangeRun::new(&messages, true, true, &LaneMemory::default());
        assert_eq!(run.next_wave(9), [0, 1]);
        let mut run = RangeRun::new(&messages, false, false, &LaneMemory::default());
        assert_eq!(run.next_wave(9), [0, 1], "without order keys do not matter");
    }

    #[test]
    fn a_refused_message_holds_its_key_and_no_other() {
        let mut run = run(&[keyed(1, "a"), keyed(2, "a"), message(3), keyed(4, "b")]);
        assert_eq!(run.next_wave(2), [0, 2]);
        run.record(0, refused());
        run.record(2, Verdict::Confirmed);
        assert_eq!(run.next_wave(9), [3]);
        run.record(3, Verdict::Confirmed);
        let end = run.end(&mut LaneMemory::default());
        assert_eq!(names(&end.ended), ["failed", "parked", "done", "done"]);
    }

    #[test]
    fn held_and_scheduled_messages_are_not_sent() {
        let later = StoredMessage { due_in: Duration::from_secs(9), ..keyed(1, "a") };
        let held = StoredMessage { held: true, ..keyed(2, "b") };
        let mut run = run(&[later, held, keyed(3, "a"), keyed(4, "b")]);
        assert_eq!(run.next_wave(9), [2], "a scheduled message holds nothing back until it is due");
        run.record(2, Verdict::Confirmed);
        let end = run.end(&mut LaneMemory::default());
        assert_eq!(names(&end.ended), ["scheduled", "parked", "done", "parked"]);
    }

    #[test]
    fn the_lane_waits_for_a_message_without_a_verdict() {
        let messages = [message(1), message(2), message(3), message(4)];
        let mut memory = LaneMemory::default();
        let mut first = run(&messages);
        assert_eq!(first.next_wave(3), [0, 1, 2]);
        first.record(0, Verdict::Confirmed);
        first.record(2, Verdict::Confirmed);
        assert!(first.record(1, unknown()).is_some());
        assert_eq!(first.ready(), 0, "nothing more is sent");
        let end = first.end(&mut memory);
        assert_eq!(names(&end.ended), ["done"]);
        // The next range begins behind it, and the confirmed message is not sent again.
        memory.advance(0, 1);
        let mut next = RangeRun::new(&messages[1..], true, false, &memory);
        assert_eq!(next.next_wave(9), [0, 2]);
    }

    #[test]
    fn a_message_without_a_verdict_leaves_the_lane_only_if_others_are_confirmed() {
        let messages = [keyed(1, "a"), message(2), keyed(3, "a")];
        let mut memory = LaneMemory::default();
        let mut round = |confirms: bool| {
            memory.confirmed.clear();
            let mut run = RangeRun::new(&messages, true, false, &memory);
            assert_eq!(run.next_wave(9), [0, 1]);
            run.record(0, unknown());
            run.record(1, if confirms { Verdict::Confirmed } else { unknown() });
            names(&run.end(&mut memory).ended)
        };
        for _outage in 0..10 {
            assert_eq!(round(false), [""; 0]);
        }
        assert_eq!(round(true), [""; 0]);
        assert_eq!(round(true), [""; 0]);
        assert_eq!(round(true), ["parked", "done", "parked"]);
    }

    #[test]
    fn a_message_without_a_verdict_leaves_the_lane_also_when_it_is_left_alone() {
        let messages = [message(1), message(2)];
        let mut memory = LaneMemory::default();
        let mut first = run(&messages);
        assert_eq!(first.next_wave(9), [0, 1]);
        first.record(0, unknown());
        first.record(1, Verdict::Confirmed);
        assert_eq!(names(&first.end(&mut memory).ended), [""; 0]);
        let mut alone = || {
            let mut run = RangeRun::new(&messages, true, false, &memory);
            assert_eq!(run.next_wave(9), [0], "the other one is confirmed");
            run.record(0, unknown());
            names(&run.end(&mut memory).ended)
        };
        assert_eq!(alone(), [""; 0]);
        assert_eq!(alone(), ["parked", "done"]);
    }

    #[test]
    fn a_replay_sends_what_was_confirmed_before_it() {
        let mut memory = LaneMemory { epoch: 0, confirmed: HashSet::from([7, 9]), unknown: HashMap::new() };
        memory.advance(0, 7);
        assert_eq!(memory.confirmed, HashSet::from([9]));
        memory.advance(1, 0);
        assert!(memory.confirmed.is_empty());
    }
}
