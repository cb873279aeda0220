#![doc = include_str!("tour.md")]
#![forbid(unsafe_code)]

pub use oncebox_core::*;

/// Derives [`Message`](trait@Message); see its attribute `#[message(...)]`.
#[cfg(feature = "derive")]
pub use oncebox_derive::Message;
#[cfg(feature = "postgres")]
pub use oncebox_postgres::{PostgresStore, PostgresTx};
#[cfg(feature = "sqlite")]
pub use oncebox_sqlite::{SqliteStore, SqliteTx};

/// The guides' examples, compiled and run.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/guarantees.md")]
    mod guarantees {}
    #[doc = include_str!("../../../docs/production.md")]
    mod production {}
    #[doc = include_str!("../../../docs/stored.md")]
    mod stored {}
}
