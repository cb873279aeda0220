//! SQLite keeps the promises of every store, in a file and in memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod care;
mod clocks;
mod disk_full;
mod engine;
mod fixture;
mod handlers;
mod leases;
mod log;
mod migrate;
mod modes;
mod one_handler;
mod order;
mod plans;
mod replay;
mod spill;

mod in_a_file {
    oncebox_testing::conformance!(super::fixture::in_a_file);
    oncebox_testing::conformance!(stored super::fixture::in_a_file);
}

mod in_memory {
    oncebox_testing::conformance!(super::fixture::in_memory);
    oncebox_testing::conformance!(stored super::fixture::in_memory);
}
