//! Events that only the torture has in its history.

use serde::{Deserialize, Serialize};

/// An event of a torture run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TortureEvent {
    /// A handler ran; its transaction was open between the two times, in nanoseconds of the machine's monotonic clock.
    Body {
        /// The number of the message.
        message: u64,
        /// The handler.
        handler: String,
        /// When it began.
        enter: u64,
        /// When it ended.
        leave: u64,
    },
    /// The results of commits were lost.
    CommitsUnknown {
        /// How many.
        commits: u64,
    },
    /// Commits with lost results were found to have succeeded.
    CommitsRecovered {
        /// How many.
        commits: u64,
    },
    /// A handler gave up on a message.
    DeadLetter {
        /// The number of the message.
        message: u64,
        /// The handler.
        handler: String,
        /// Its last error.
        error: String,
    },
    /// A fault has happened and is over.
    TortureFault {
        /// Its id.
        id: String,
    },
    /// Many processes have started at once on an empty database.
    Starters {
        /// How many of them were ready, and acknowledged a message that each of them received.
        ready: u64,
        /// How often that message took effect.
        effects: u64,
    },
    /// A worker has made no progress since a fault was over.
    Idle {
        /// The worker.
        worker: usize,
    },
    /// No message has reached a handler since a fault was over.
    IdleHandler {
        /// The handler.
        handler: String,
    },
    /// No worker has made progress for so long that the run was aborted.
    Stalled {
        /// The number of faults that had not happened yet.
        faults: usize,
    },
    /// The backlog was not worked off.
    BacklogLeft(Backlog),
    /// A worker has ended.
    WorkerEnded {
        /// The worker.
        worker: usize,
        /// Its exit code or signal.
        status: String,
        /// Whether the harness or a fault has caused the end.
        is_expected: bool,
    },
}

/// The unfinished work of the handlers of stored messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backlog {
    /// Messages that handlers have not reached.
    pub lag: u64,
    /// Messages that wait for a retry.
    pub tasks: u64,
    /// Dead letters.
    pub dead: u64,
}

impl Backlog {
    /// Whether everything is handled.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}
