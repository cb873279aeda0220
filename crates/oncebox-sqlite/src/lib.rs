//! Oncebox on SQLite: embedded, nothing to install.
//!
//! One writer at a time: transactions queue in the order of arrival, and a handler holds the writer while it
//! runs. Keep handlers short, and what is slow outside.

#![forbid(unsafe_code)]

mod claims;
mod fault;
mod inspect;
mod migrate;
mod seal;
mod store;
mod transaction;
mod turn;
mod upkeep;
mod write;

pub use store::SqliteStore;
pub use transaction::SqliteTx;
