//! SQLite keeps the promises of every store, in a file and in memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod clocks;
mod costs;
mod disk_full;
mod engine;
mod fixture;
mod log;
mod migrate;
mod outbox;
mod plans;

mod in_a_file {
    oncebox_testing::conformance!(super::fixture::in_a_file);
    oncebox_testing::conformance!(stored super::fixture::in_a_file);
    oncebox_testing::conformance!(outbox super::fixture::in_a_file);
    oncebox_testing::conformance!(sql super::fixture::in_a_file);
    oncebox_testing::conformance!(migrating super::fixture::empty_file);
}

mod in_memory {
    oncebox_testing::conformance!(super::fixture::in_memory);
    oncebox_testing::conformance!(stored super::fixture::in_memory);
    oncebox_testing::conformance!(outbox super::fixture::in_memory);
    oncebox_testing::conformance!(sql super::fixture::in_memory);
}
