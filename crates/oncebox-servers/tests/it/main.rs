//! Real servers, really started and really killed.

mod databases;
mod owner;
mod pair;
mod process;
mod rabbitmq;
mod running;
mod server;
mod skip;
