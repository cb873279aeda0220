//! Oncebox on SQLite: embedded, nothing to install.
//!
//! One writer at a time: transactions queue in the order of arrival, and a handler holds the writer while it
//! runs. Keep handlers short, and what is slow outside.

#![forbid(unsafe_code)]

mod claims;
mod completion;
mod dead_letters;
mod fault;
mod file;
mod inspect;
mod json;
mod log;
mod many;
mod message;
mod migrate;
mod mutants;
mod operate;
mod outbox;
mod processes;
mod ranges;
mod registry;
mod seal;
mod spill;
mod statements;
mod store;
mod survey;
mod tasks;
mod transaction;
mod unfinished;
mod upkeep;
mod work;
mod write;
mod writer;
mod writer_queue;

pub use store::SqliteStore;
pub use transaction::SqliteTx;
