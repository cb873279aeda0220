//! A private PostgreSQL server, alone or with a standby.

mod binaries;
mod data;
mod options;
mod pair;
mod server;
mod standby;

pub use binaries::{PACKAGE, POSTGRES_BIN, find, install};
pub use options::PostgresOptions;
pub use pair::PostgresPair;
pub use server::PostgresServer;
