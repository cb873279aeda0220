//! A real RabbitMQ server as a source and a sink.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod broker_faults;
mod client;
mod cloud_events;
mod configured_server;
mod consumer;
mod errors;
mod other_client;
mod redelivery;
mod redrive;
mod sink;
mod source;
