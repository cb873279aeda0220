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
}

impl KillPoint {
    /// All points.
    pub const ALL: [Self; 5] =
        [Self::BeforeClaim, Self::InBody, Self::BeforeCommit, Self::AfterCommit, Self::BeforeAnswer];
}
