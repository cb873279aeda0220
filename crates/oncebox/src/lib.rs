#![doc = include_str!("../../../docs/tour.md")]
#![forbid(unsafe_code)]

pub use oncebox_core::*;

/// Derives [`Message`](trait@Message); see its attribute `#[message(...)]`.
#[cfg(feature = "derive")]
pub use oncebox_derive::Message;
#[cfg(feature = "postgres")]
pub use oncebox_postgres::{PostgresStore, PostgresTx};
#[cfg(feature = "sqlite")]
pub use oncebox_sqlite::{SqliteStore, SqliteTx};
