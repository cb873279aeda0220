//! A private PostgreSQL server.

mod binaries;
mod data;
mod options;
mod server;

pub use binaries::{PACKAGE, POSTGRES_BIN, find, install};
pub use options::PostgresOptions;
pub use server::PostgresServer;
