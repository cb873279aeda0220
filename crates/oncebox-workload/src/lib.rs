//! A workload that shows whether each message takes effect exactly once.
//!
//! | module | content |
//! |---|---|
//! | [`plan`] | the content of each message, by its number and the seed |
//! | [`deliverer`] | a source that duplicates, reorders, loses acknowledgements and delivers again |
//! | [`history`] | the events of a run, one JSON object per line, and their counts |
//! | [`ledger`] | the expected effects compared with the rows that were found |
//! | [`random`] | random numbers that follow from a seed |
//! | [`signals`] | the signals that end a program |
//!
//! Nothing here reads a clock, starts a process or opens a database. `oncebox demo` and `cargo xtask torture` add those, each with its
//! own faults.
//!
//! ```
//! use std::time::Instant;
//! use oncebox_workload::deliverer::{Deliverer, DeliveryResult};
//! use oncebox_workload::plan::Plan;
//!
//! let plan = Plan { seed: 42, accounts: 10, is_ordered: false };
//! let mut deliverer = Deliverer::new(plan, 2, 100);
//! let now = Instant::now();
//! for delivery in deliverer.deliveries(&[0, 1], u64::MAX, now) {
//!     // A worker handles it, and reports the result.
//!     deliverer.settle(delivery.worker, delivery.number, DeliveryResult::Ack, now);
//! }
//! assert!(deliverer.acknowledged() > 0);
//! ```

pub mod deliverer;
pub mod history;
pub mod ledger;
pub mod plan;
pub mod random;
pub mod signals;
