//! The outbox of a store: messages that a caller's transaction publishes, until the mover takes them to the log.

use std::time::{Duration, SystemTime};

use crate::inbox::lane_of;
use crate::store::{HandlerId, Log, Place, StoredMessage};
use crate::{Error, Fingerprint, Headers, Key, MessageId};

/// A message that a transaction publishes.
#[derive(Clone, Debug)]
pub struct Captured {
    /// Its id, which never changes.
    pub id: MessageId,
    /// Its kind.
    pub kind: String,
    /// The key that deduplicates it, together with the kind; `None` if its id is the key.
    pub key: Option<Key>,
    /// The fingerprint of its body.
    pub fingerprint: Fingerprint,
    /// Its ordering key.
    pub order_by: Option<Key>,
    /// Its headers.
    pub headers: Headers,
    /// The encoded message.
    pub body: Vec<u8>,
    /// The time of the event that it reports.
    pub occurred_at: Option<SystemTime>,
    /// Its due time, if it is not to be handled at once.
    pub due_at: Option<SystemTime>,
}

/// The number of neighbours without an ordering key that go to the same lane, so that a small move locks few lanes.
const LANE_RUN: i64 = 256;

/// The lane to which a message of the outbox moves: the one of its ordering key, or one by its number in the outbox.
pub fn lane_of_captured(order_by: Option<&Key>, number: i64, lanes: u16) -> u16 {
    match order_by {
        Some(key) => lane_of(key, lanes),
        // The remainder is smaller than a u16.
        None => u16::try_from((number / LANE_RUN).rem_euclid(i64::from(lanes.max(1)))).unwrap_or(0),
    }
}

/// The limits of one move.
#[derive(Clone, Copy, Debug)]
pub struct MoveLimits {
    /// The maximum number of messages.
    pub messages: u32,
    /// The size of the bodies at which a move ends. A larger message is moved alone.
    pub bytes: u64,
}

/// The transactions in which a mover looks for messages. All messages of older transactions were moved.
///
/// The window only saves work. Whether a message is in the outbox decides whether it is moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveWindow {
    /// The history of the server in which this holds: a failover begins another one.
    pub history: i64,
    /// The first transaction that had not begun at the last look.
    pub from: u64,
    /// The transactions that were open at the last look.
    pub in_progress: Vec<u64>,
}

/// The result of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The number of messages that left the outbox.
    pub messages: u64,
    /// Whether they were all messages of committed transactions.
    pub is_complete: bool,
    /// The window of the next move, if all messages were moved.
    pub next: MoveWindow,
}

impl MoveWindow {
    /// The window of the next move.
    // Only after a complete move: behind a window, messages that a limit cut off would wait for the next full look.
    pub fn after(self, moved: &Moved) -> Self {
        match moved.is_complete {
            true if mutant!("mover_forgets_open_transactions") => {
                Self { in_progress: Vec::new(), ..moved.next.clone() }
            }
            true => moved.next.clone(),
            false => self,
        }
    }

    /// The window after a move without an answer: everything is looked at again, because the move may not have happened.
    pub fn unanswered(self) -> Self {
        match mutant!("window_advances_unanswered") {
            true => Self { from: u64::MAX, ..self },
            false => Self::default(),
        }
    }
}

/// The state of an outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxStatus {
    /// The number of messages that wait for the mover.
    pub waiting: u64,
    /// The time for which the oldest of them has waited.
    pub oldest: Option<Duration>,
}

impl OutboxStatus {
    /// The state with this number of waiting messages, and the waiting time of the oldest one.
    pub fn new(waiting: u64, oldest: Option<Duration>) -> Self {
        Self { waiting, oldest }
    }
}

/// A message in the outbox, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingMessage {
    /// Its id; `None` if another program has written a text that is no UUID. The mover gives such a message an id.
    pub id: Option<MessageId>,
    /// Its kind.
    pub kind: String,
    /// The key that deduplicates it; `None` if its id is the key.
    pub key: Option<Key>,
    /// Its ordering key.
    pub order_by: Option<Key>,
    /// Its headers.
    pub headers: Headers,
    /// The encoded message.
    pub body: Vec<u8>,
    /// The time of the event that it reports.
    pub occurred_at: Option<SystemTime>,
    /// Its due time, if it is not to be handled at once.
    pub due_at: Option<SystemTime>,
    /// When it was published.
    pub captured_at: SystemTime,
    /// The time since then.
    pub waited: Duration,
}

/// The disk space of an outbox, in bytes. A store leaves out what it cannot read quickly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxSize {
    /// The table of the outbox with its indexes.
    pub outbox: Option<u64>,
    /// The messages of the log with their indexes.
    pub log: Option<u64>,
    /// The whole database.
    pub database: Option<u64>,
}

impl OutboxSize {
    /// The sizes in bytes, as a database returns them.
    pub fn new(outbox: Option<i64>, log: Option<i64>, database: Option<i64>) -> Self {
        let bytes = |size: Option<i64>| size.and_then(|size| u64::try_from(size).ok());
        Self { outbox: bytes(outbox), log: bytes(log), database: bytes(database) }
    }
}

/// Keeps messages that a transaction publishes, and moves them to the log after its commit.
pub trait Capture: Log {
    /// Inserts messages into the outbox, in the caller's transaction. Their order is the order in which they are moved, also
    /// between transactions, if the later one began to publish after the commit of the earlier one.
    fn capture(
        &self,
        conn: &mut Self::Conn,
        messages: &[Captured],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Inserts the messages of a handler into the outbox, in its transaction. It is an error if the handler has ended that
    /// transaction: the messages would be published without its effect.
    fn capture_in(
        &self,
        tx: &mut Self::Tx,
        messages: &[Captured],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Moves messages of committed transactions to the log, in the order in which they were published, in one transaction.
    /// Messages whose kind and key were accepted before leave the outbox and are not appended. Returns `None` if another mover is
    /// at work.
    fn move_captured(
        &self,
        window: &MoveWindow,
        limits: MoveLimits,
    ) -> impl Future<Output = Result<Option<Moved>, Error>> + Send;

    /// Reads the state of the outbox.
    fn outbox_status(&self) -> impl Future<Output = Result<OutboxStatus, Error>> + Send;

    /// Reads how much disk space the outbox and the log use.
    fn outbox_size(&self) -> impl Future<Output = Result<OutboxSize, Error>> + Send;

    /// The messages that wait for the mover, oldest first.
    fn waiting_messages(&self, limit: u32)
    -> impl Future<Output = Result<Vec<WaitingMessage>, Error>> + Send;

    /// The message with this id, if it waits for the mover.
    fn waiting_message(
        &self,
        id: MessageId,
    ) -> impl Future<Output = Result<Option<WaitingMessage>, Error>> + Send;

    /// The place in the log of the published message with this id, if it is still there.
    fn find_published(&self, id: MessageId) -> impl Future<Output = Result<Option<Place>, Error>> + Send;

    /// The oldest messages in the log that a relay has not sent: those ahead of its progress, and its retries. Dead letters are not
    /// among them. Messages of one lane are in their order.
    fn unsent_messages(
        &self,
        relay: HandlerId,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StoredMessage>, Error>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_move_advances_the_window() {
        let window = MoveWindow { history: 1, from: 7, in_progress: vec![3] };
        let next = MoveWindow { history: 2, from: 9, in_progress: vec![7, 8] };
        let moved = |messages, is_complete| Moved { messages, is_complete, next: next.clone() };
        for (moved, expected) in
            [(moved(0, true), &next), (moved(5, true), &next), (moved(5, false), &window)]
        {
            assert_eq!(&window.clone().after(&moved), expected, "{moved:?}");
        }
    }

    #[test]
    fn everything_is_looked_at_again_after_a_move_without_an_answer() {
        let window = MoveWindow { history: 1, from: 7, in_progress: vec![3] };
        assert_eq!(window.unanswered(), MoveWindow::default());
    }
}
