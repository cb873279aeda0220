//! Named points at which a worker can be killed.

use serde::{Deserialize, Serialize};

/// A point in the work on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillPoint {
    /// The transaction is open; nothing is claimed or taken.
    BeforeClaim,
    /// The handler has written; nothing is committed.
    InBody,
    /// Everything is written; the commit has not been sent.
    BeforeCommit,
    /// The commit has happened; the inbox does not know it yet.
    AfterCommit,
    /// The inbox has reported the outcome; the source does not know it yet.
    BeforeAnswer,
    /// The mover has moved messages, or the relay has an outcome of a range; nothing is committed.
    BeforeOutboxCommit,
    /// The commit of the mover or the relay has happened; the outbox does not know it yet.
    AfterOutboxCommit,
    /// The sink has a message; the receiver has not.
    BeforeSend,
    /// The receiver has stored the message; the relay does not know it yet.
    BeforeConfirm,
}

impl KillPoint {
    /// The points in every mode.
    pub const OF_INBOX: [Self; 5] =
        [Self::BeforeClaim, Self::InBody, Self::BeforeCommit, Self::AfterCommit, Self::BeforeAnswer];
    /// The points in the mode with an outbox only.
    pub const OF_OUTBOX: [Self; 4] =
        [Self::BeforeOutboxCommit, Self::AfterOutboxCommit, Self::BeforeSend, Self::BeforeConfirm];
}
