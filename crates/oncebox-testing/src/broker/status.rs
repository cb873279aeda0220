//! What a queue shows of its messages.

use oncebox_core::source::ReceivedMessage;

/// A message that a consumer rejected.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RejectedMessage {
    /// The message.
    pub message: ReceivedMessage,
    /// The text of the error behind the rejection.
    pub reason: Option<String>,
}

/// The numbers of messages in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStatus {
    /// Messages that can be delivered now.
    pub waiting: usize,
    /// Messages whose retry is not due.
    pub delayed: usize,
    /// Messages that are delivered and not settled.
    pub unsettled: usize,
    /// Messages that were acknowledged.
    pub acknowledged: usize,
    /// Messages that were rejected.
    pub rejected: usize,
    /// Open sessions.
    pub sessions: usize,
}

impl QueueStatus {
    /// The number of messages that are neither acknowledged nor rejected.
    pub fn backlog(&self) -> usize {
        self.waiting + self.delayed + self.unsettled
    }
}
