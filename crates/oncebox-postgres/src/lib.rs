//! Oncebox on PostgreSQL, version 13 or newer.
//!
//! It leaves no state in a session between two transactions. Behind a transaction pooler use
//! [`PostgresStore::behind_pooler`], and switch the pool's statement cache off.

#![forbid(unsafe_code)]

mod claims;
mod completion;
mod connection;
mod connections;
mod dead_letters;
mod fault;
mod hosts;
mod inspect;
mod listen;
mod log;
mod migrate;
mod mutants;
mod operate;
mod outbox;
mod processes;
mod ranges;
mod registry;
mod servers;
mod sessions;
mod statements;
mod store;
mod survey;
mod target;
mod transaction;
mod upkeep;
mod work;

pub use store::PostgresStore;
pub use transaction::PostgresTx;
