//! The messages between the demo and its workers: one JSON object per line.

use oncebox_workload::deliverer::DeliveryResult;
use oncebox_workload::plan::Entry;
use serde::{Deserialize, Serialize};

use crate::demo::plan::MessageMode;

/// The first line to a worker. Not an argument: other users can read arguments, and the URL can have a password.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) url: String,
    pub(super) schema: Option<String>,
}

/// A copy of a message, to a worker.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct DeliveryRequest {
    /// The number of the delivery.
    pub(super) delivery: u64,
    pub(super) mode: MessageMode,
    pub(super) entry: Entry,
    /// 1 for the first copy of the message, 2 for the second, ….
    pub(super) copy: u32,
}

/// From a worker.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(super) enum WorkerReport {
    /// It takes deliveries.
    Ready,
    /// The result of a delivery, and the outcome that the inbox reported.
    Settled { delivery: u64, result: DeliveryResult, outcome: String },
}
