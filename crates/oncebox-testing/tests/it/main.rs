//! The in-memory store keeps the promises of a store with no transaction to share.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod broker;
mod memory;
mod minimal_store;
mod sqlite;
mod time_travel;
mod without_crash_care;

oncebox_testing::conformance!(memory::fixture);
