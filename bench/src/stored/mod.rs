//! Messages that are accepted now and worked through later.

pub(crate) mod arena;
pub(crate) mod engine;
pub(crate) mod keepers;
mod ledger;
pub(crate) mod meter;
mod postgres;
mod scenarios;
mod sqlite;

use std::time::Duration;

pub(crate) use scenarios::run;

#[allow(clippy::cast_precision_loss, reason = "counts of messages and bytes are far below 2^52")]
pub(crate) fn per_second(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

#[allow(clippy::cast_precision_loss, reason = "counts of messages and bytes are far below 2^52")]
fn per_message(bytes: u64, messages: u64) -> f64 {
    bytes as f64 / messages as f64
}
