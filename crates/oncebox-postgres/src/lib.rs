//! Oncebox on PostgreSQL, version 13 or newer.
//!
//! It keeps no session state, so it works behind a transaction pooler (with the pool's statement cache off).

#![forbid(unsafe_code)]

mod claims;
mod fault;
mod inspect;
mod migrate;
mod statements;
mod store;
mod transaction;
mod upkeep;

pub use store::PostgresStore;
pub use transaction::PostgresTx;
