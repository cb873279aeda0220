//! The in-memory store keeps the promises of a store with no transaction to share.

mod memory;

oncebox_testing::conformance!(memory::fixture);
