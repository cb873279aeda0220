//! PostgreSQL keeps the promises of every store, as owner and as a role that may do only what it must.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod claims;
mod costs;
mod fixture;
mod least_privilege;
mod log;
mod migrate;
mod outbox;
mod plans;
mod server;
mod sql_function;
mod standby;

mod as_owner {
    oncebox_testing::conformance!(super::fixture::as_owner);
    oncebox_testing::conformance!(stored super::fixture::as_owner);
    oncebox_testing::conformance!(outbox super::fixture::as_owner);
    oncebox_testing::conformance!(sql super::fixture::as_owner);
    oncebox_testing::conformance!(migrating super::fixture::empty_database);
}

mod as_least_privileged {
    oncebox_testing::conformance!(super::fixture::as_least_privileged);
    oncebox_testing::conformance!(stored super::fixture::as_least_privileged);
    oncebox_testing::conformance!(outbox super::fixture::as_least_privileged);
}
