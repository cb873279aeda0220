//! One queue: which messages wait, which are in flight, and in which session. Pure: the time is a parameter.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use oncebox_core::source::{Abilities, Received, ReceivedMessage, Room, Settled};
use oncebox_core::{Cause, Error, ErrorKind, Settlement};

use super::status::{QueueStatus, RejectedMessage};

/// The delay of a retry without one.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The number of a session, unique for its broker.
pub(super) type SessionId = u64;
/// The place of a message in its queue. It stays the same for all deliveries of the message.
type Position = u64;

/// Identifies a delivery of a [`MemoryBroker`](crate::MemoryBroker).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryReceipt {
    session: SessionId,
    position: Position,
    delivery: u64,
}

/// A message, and what became of its earlier deliveries.
#[derive(Clone, Debug)]
struct Queued {
    message: ReceivedMessage,
    deliveries: u32,
    abandoned: u32,
}

#[derive(Debug)]
struct InFlight {
    queued: Queued,
    session: SessionId,
    delivery: u64,
    deadline: Option<Duration>,
    /// Whether the session has passed it to its caller.
    is_received: bool,
    /// Settled, but an earlier position is not.
    is_done: bool,
}

/// The messages that were sent to one session.
#[derive(Debug)]
struct Subscription {
    prefetch: Room,
    /// Those that its caller has not received.
    buffer: VecDeque<(Position, u64)>,
    messages: usize,
    bytes: usize,
}

impl Subscription {
    fn fits(&self, bytes: usize) -> bool {
        !self.prefetch.is_full()
            && self.messages < self.prefetch.messages
            && (self.messages == 0 || self.bytes + bytes <= self.prefetch.bytes)
    }
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionEnd {
    Closed,
    Lost,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) abilities: Abilities,
    pub(super) deadline: Option<Duration>,
    pub(super) is_paused: bool,
    positions: Position,
    deliveries: u64,
    waiting: BTreeMap<Position, Queued>,
    delayed: BTreeMap<(Duration, Position), Queued>,
    in_flight: BTreeMap<Position, InFlight>,
    sessions: BTreeMap<SessionId, Subscription>,
    pub(super) rejected: Vec<RejectedMessage>,
    rejections: usize,
    acknowledged: usize,
}

impl Queue {
    pub(super) fn new(abilities: Abilities) -> Self {
        Self {
            abilities,
            deadline: None,
            is_paused: false,
            positions: 0,
            deliveries: 0,
            waiting: BTreeMap::new(),
            delayed: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            sessions: BTreeMap::new(),
            rejected: Vec::new(),
            rejections: 0,
            acknowledged: 0,
        }
    }

    pub(super) fn status(&self) -> QueueStatus {
        QueueStatus {
            waiting: self.waiting.len(),
            delayed: self.delayed.len(),
            unsettled: self.in_flight.len(),
            acknowledged: self.acknowledged,
            rejected: self.rejections,
            sessions: self.sessions.len(),
        }
    }

    pub(super) fn messages(&self) -> Vec<ReceivedMessage> {
        self.waiting.values().map(|queued| queued.message.clone()).collect()
    }

    pub(super) fn push(&mut self, message: ReceivedMessage) {
        self.waiting.insert(self.positions, Queued { message, deliveries: 0, abandoned: 0 });
        self.positions += 1;
    }

    pub(super) fn subscribe(&mut self, session: SessionId, prefetch: Room) {
        let subscription = Subscription { prefetch, buffer: VecDeque::new(), messages: 0, bytes: 0 };
        self.sessions.insert(session, subscription);
    }

    pub(super) fn sessions(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }

    pub(super) fn is_subscribed(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// The time of the next retry or deadline.
    pub(super) fn next_event(&self) -> Option<Duration> {
        let retry = self.delayed.keys().next().map(|(due, _)| *due);
        let deadline = self.in_flight.values().filter_map(|flight| flight.deadline).min();
        retry.into_iter().chain(deadline).min()
    }

    /// Returns what is due and what has expired to the queue, then sends as much as the sessions have room for.
    pub(super) fn dispatch(&mut self, now: Duration) {
        while let Some(entry) = self.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((_, position), queued) = entry.remove_entry();
            self.waiting.insert(position, queued);
        }
        let expired = self.in_flight.iter().filter(|(_, flight)| flight.deadline.is_some_and(|at| at <= now));
        for position in expired.map(|(position, _)| *position).collect::<Vec<_>>() {
            self.give_back(position, SessionEnd::Lost);
        }
        if !self.is_paused {
            self.send(now);
        }
    }

    fn send(&mut self, now: Duration) {
        while let Some((&position, queued)) = self.waiting.first_key_value() {
            let Some(session) = self.session_for(queued) else { return };
            let Some(mut queued) = self.waiting.remove(&position) else { return };
            queued.deliveries += 1;
            self.deliveries += 1;
            let delivery = self.deliveries;
            if let Some(subscription) = self.sessions.get_mut(&session) {
                subscription.buffer.push_back((position, delivery));
                subscription.messages += 1;
                subscription.bytes += queued.message.body.len();
            }
            let deadline = self.deadline.map(|deadline| now + deadline);
            let flight = InFlight { queued, session, delivery, deadline, is_received: false, is_done: false };
            self.in_flight.insert(position, flight);
        }
    }

    /// The session with the fewest messages. A stream has one session; others wait until it ends.
    fn session_for(&self, queued: &Queued) -> Option<SessionId> {
        let limit = if self.abilities.settles_positions { 1 } else { usize::MAX };
        let is_able = |(session, subscription): &(&SessionId, &Subscription)| {
            let may_be_next = !self.abilities.counts_deliveries
                || self.abilities.settles_positions
                || subscription.messages == 0
                // A message that was abandoned before is by itself.
                || (queued.abandoned == 0 && !self.holds_abandoned(**session));
            may_be_next && subscription.fits(queued.message.body.len())
        };
        let able = self.sessions.iter().take(limit).filter(is_able);
        able.min_by_key(|(_, subscription)| subscription.messages).map(|(session, _)| *session)
    }

    fn holds_abandoned(&self, session: SessionId) -> bool {
        self.in_flight.values().any(|flight| flight.session == session && flight.queued.abandoned > 0)
    }

    /// Messages that were sent to a session, as far as they fit.
    pub(super) fn receive(&mut self, session: SessionId, room: Room) -> Vec<Received<MemoryReceipt>> {
        let mut received = Vec::new();
        let mut bytes = 0;
        let Some(subscription) = self.sessions.get_mut(&session) else { return received };
        while let Some(&(position, delivery)) = subscription.buffer.front() {
            // An expired delivery is in the queue again, or with another session.
            let flight = self.in_flight.get_mut(&position).filter(|flight| flight.delivery == delivery);
            if let Some(flight) = flight {
                let size = flight.queued.message.body.len();
                let fits =
                    received.len() < room.messages && (received.is_empty() || bytes + size <= room.bytes);
                if room.is_full() || !fits {
                    break;
                }
                bytes += size;
                flight.is_received = true;
                let message = delivered(&flight.queued, self.abilities);
                received.push(Received { receipt: MemoryReceipt { session, position, delivery }, message });
            }
            subscription.buffer.pop_front();
        }
        received
    }

    pub(super) fn settle(
        &mut self,
        now: Duration,
        receipt: MemoryReceipt,
        settlement: Settlement,
        reason: Option<Cause>,
    ) -> Settled {
        if self.held(receipt).is_none() {
            return Settled::Stale;
        }
        if self.abilities.settles_positions {
            return self.settle_position(receipt.position, settlement);
        }
        let Some(flight) = self.remove(receipt.position) else { return Settled::Stale };
        match settlement {
            Settlement::Ack => self.acknowledged += 1,
            Settlement::Reject => {
                self.rejections += 1;
                if self.abilities.keeps_rejected {
                    let message = delivered(&flight.queued, self.abilities);
                    let reason = reason.map(|reason| reason.to_string());
                    self.rejected.push(RejectedMessage { message, reason });
                }
            }
            Settlement::Retry { after } => {
                let after = after.unwrap_or(RETRY_AFTER);
                let after = Some(after).filter(|after| self.abilities.delays_retries && !after.is_zero());
                match after {
                    Some(after) => _ = self.delayed.insert((now + after, receipt.position), flight.queued),
                    None => _ = self.waiting.insert(receipt.position, flight.queued),
                }
            }
        }
        Settled::Done
    }

    /// Marks a position as done, and acknowledges all done positions that no other precedes.
    fn settle_position(&mut self, position: Position, settlement: Settlement) -> Settled {
        if let Settlement::Retry { .. } = settlement {
            let text = "a stream cannot deliver one message again: keep failed messages in the log";
            return Settled::Unknown(Error::new(ErrorKind::Configuration, text));
        }
        if let Some(flight) = self.in_flight.get_mut(&position) {
            flight.is_done = true;
            let (session, bytes) = (flight.session, flight.queued.message.body.len());
            self.make_room(session, bytes);
        }
        while let Some(entry) = self.in_flight.first_entry().filter(|entry| entry.get().is_done) {
            entry.remove();
            self.acknowledged += 1;
        }
        Settled::Done
    }

    pub(super) fn extend(&mut self, now: Duration, receipt: MemoryReceipt) {
        let deadline = self.deadline.map(|deadline| now + deadline);
        if let Some(flight) = self.held(receipt) {
            flight.deadline = deadline;
        }
    }

    /// The delivery of a receipt, unless it is stale.
    fn held(&mut self, receipt: MemoryReceipt) -> Option<&mut InFlight> {
        let is_live = self.is_subscribed(receipt.session) || self.abilities.receipts_outlive_sessions;
        let flight = self.in_flight.get_mut(&receipt.position).filter(|_| is_live)?;
        let is_same = flight.session == receipt.session && flight.delivery == receipt.delivery;
        (is_same && !flight.is_done).then_some(flight)
    }

    /// Ends a session. Its unsettled messages return to their places, which are before all messages that were never delivered.
    pub(super) fn end_session(&mut self, session: SessionId, end: SessionEnd) {
        self.sessions.remove(&session);
        // Such a queue does not know about connections: its deliveries end at their deadline.
        if end == SessionEnd::Lost && self.abilities.receipts_outlive_sessions && self.deadline.is_some() {
            return;
        }
        let mine = self.in_flight.iter().filter(|(_, flight)| flight.session == session);
        for position in mine.map(|(position, _)| *position).collect::<Vec<_>>() {
            self.give_back(position, end);
        }
    }

    fn give_back(&mut self, position: Position, end: SessionEnd) {
        let Some(InFlight { mut queued, is_received, .. }) = self.remove(position) else { return };
        match end {
            // As brokers count: also what the session had not passed to its caller.
            SessionEnd::Lost => queued.abandoned += 1,
            SessionEnd::Closed if !is_received => queued.deliveries -= 1,
            SessionEnd::Closed => (),
        }
        self.waiting.insert(position, queued);
    }

    fn remove(&mut self, position: Position) -> Option<InFlight> {
        let flight = self.in_flight.remove(&position)?;
        if !flight.is_done {
            self.make_room(flight.session, flight.queued.message.body.len());
        }
        Some(flight)
    }

    fn make_room(&mut self, session: SessionId, bytes: usize) {
        if let Some(subscription) = self.sessions.get_mut(&session) {
            subscription.messages -= 1;
            subscription.bytes -= bytes;
        }
    }
}

fn delivered(queued: &Queued, abilities: Abilities) -> ReceivedMessage {
    let mut message = queued.message.clone();
    message.attempt = abilities.counts_deliveries.then_some(queued.deliveries);
    message.abandoned = if abilities.counts_deliveries { queued.abandoned } else { 0 };
    message
}
