//! Starts real servers as private child processes, for tests and benchmarks.
//!
//! A server started here listens on a free loopback port, keeps its data in a temporary folder of its own,
//! never runs as root, and ends with its owner, even when the owner is killed.
//!
//! - [`postgres`]: a private PostgreSQL server, alone or with a synchronous standby.
//! - [`rabbitmq`]: a private RabbitMQ server, and a fresh virtual host for one test.
//! - [`database`]: a fresh database for one test.
//! - [`proxy`]: loses responses, and makes connections half-open.
//! - [`skip`]: skips or fails a test whose server is missing.
//!
//! The rest is what every server needs: an [`account`] to run as, a [`folder`] to keep data in, a [`port`] to
//! listen on, an owned [`process`], and [`apt`] to install what is missing.

pub mod account;
pub mod apt;
pub mod database;
mod family;
pub mod folder;
mod guard;
pub mod port;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod rabbitmq;
pub mod skip;
mod url;
