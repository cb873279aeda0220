//! The sink against a real server: requests, verdicts, connections.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod server;
mod sink;
