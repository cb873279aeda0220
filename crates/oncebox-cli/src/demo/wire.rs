//! What the demo and its workers say to each other: one JSON object a line.

use serde::{Deserialize, Serialize};

use crate::demo::plan::{Entry, Way};

/// The first line to a worker. Not an argument: arguments, with the password in them, can be read by others.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) url: String,
    pub(super) schema: Option<String>,
}

/// A copy of a message, to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Delivery {
    /// Each has a number of its own.
    pub(super) delivery: u64,
    pub(super) way: Way,
    pub(super) entry: Entry,
    /// Which copy of the message it is: 1, 2, ….
    pub(super) copy: u32,
}

/// From a worker.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
pub(super) enum Said {
    /// It takes deliveries.
    Ready,
    /// What became of one.
    Answered {
        delivery: u64,
        answer: Answer,
        /// In the inbox's words.
        outcome: String,
    },
}

/// What the source is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// It is done with it.
    Ack,
    /// It is to deliver it again.
    Retry,
    /// It is to deliver it no more.
    Reject,
}
