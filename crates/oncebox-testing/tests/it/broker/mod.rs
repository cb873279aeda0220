//! The broker in memory passes the suites, in each of its shapes.

mod consumers;
mod defects;
mod fixture;
mod memory_broker;
mod sinks;

mod work_queue {
    oncebox_testing::source_conformance!(super::fixture::work_queue);
}

mod work_queue_with_a_deadline {
    oncebox_testing::source_conformance!(super::fixture::work_queue_with_a_deadline);
}

mod plain_queue {
    oncebox_testing::source_conformance!(super::fixture::plain_queue);
}

mod lease_queue {
    oncebox_testing::source_conformance!(super::fixture::lease_queue);
}

mod stream {
    oncebox_testing::source_conformance!(super::fixture::stream);
}
