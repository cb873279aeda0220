//! A private RabbitMQ server, and a fresh virtual host for one test.

mod binaries;
mod node;
mod options;
mod server;
mod vhost;

pub use binaries::{PACKAGE, RABBITMQ_BIN, find, install};
pub use options::RabbitOptions;
pub use server::RabbitServer;
pub use vhost::{TEST_RABBITMQ, TestVhost, test_vhost};
