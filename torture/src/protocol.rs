//! The messages between the harness and its workers: one JSON value per line.

use oncebox_workload::deliverer::DeliveryResult;
use serde::{Deserialize, Serialize};

use crate::event::{Backlog, TortureEvent};
use crate::kill_point::KillPoint;

/// From the harness to a worker.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerCommand {
    /// Handle a copy of a message, and report [`WorkerReport::Settled`].
    Deliver {
        /// The number of the delivery.
        delivery: u64,
        /// The number of the message.
        message: u64,
        /// 1 for the first copy of the message, 2 for the second, ….
        copy: u32,
    },
    /// Kill yourself at the next passage of this point.
    KillAt(KillPoint),
    /// Lose the results of that many commits.
    LoseCommitResults(u32),
    /// Lose the results of that many commits of the mover and the relay, and report each.
    LoseOutboxResults(u32),
    /// Cancel the next calls of the inbox, that many, before they are complete. Where the worker takes its messages from a queue: drop
    /// its consumer and start another one, that often.
    CancelCalls(u64),
    /// Drop the prepared statements of the session in the next handler calls, that many, and report each.
    Deallocate(u32),
    /// Let messages succeed that failed permanently.
    StopPermanentFailures,
    /// Report all dead letters, and retry them.
    RetryDeadLetters,
    /// Report the backlog.
    ReportBacklog,
    /// Let the relay send again what it has sent since that time, in milliseconds since 1970, and report [`WorkerReport::Replayed`].
    Replay {
        /// The time.
        since_ms: u64,
    },
    /// Report how many messages are on their way through the outbox, the relay and the logs.
    ReportLag,
    /// Report the time of this process's clock.
    ReportClock,
}

/// From a worker to the harness.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerReport {
    /// It takes deliveries.
    Ready,
    /// The result of a delivery.
    Settled {
        /// The number of the delivery.
        delivery: u64,
        /// The result.
        result: DeliveryResult,
        /// The outcomes of all handlers, joined by `+`, or the kind of the error.
        outcome: String,
    },
    /// An event for the history.
    Event(TortureEvent),
    /// The prepared statements of a session were dropped.
    Deallocated,
    /// The result of a commit of the mover or the relay was lost.
    OutboxResultLost,
    /// A consumer of a queue was dropped, with its deliveries in flight.
    ConsumerDropped,
    /// The relay sends again.
    Replayed,
    /// The backlog of all handlers together.
    Backlog(Backlog),
    /// How many messages are on their way.
    Lag(u64),
    /// The time of the process's clock, in seconds since 1970.
    Clock(u64),
}
