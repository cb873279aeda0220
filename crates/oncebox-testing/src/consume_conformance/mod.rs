//! The conformance suite for consumers: a source and a store together, through [`Inbox::consume`](oncebox_core::Inbox::consume).
//!
//! Give [`consume_conformance!`](crate::consume_conformance!) a function that makes a [`BrokerFixture`], and one that makes a
//! [`Fixture`] of a store. It writes the tests.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test that cannot go on panics")]

mod crashes;
mod effects;
mod failures;
mod limits;
mod outages;
mod setup;
mod shutdown;

pub use crashes::*;
pub use effects::*;
pub use failures::*;
pub use limits::*;
pub use outages::*;
pub use shutdown::*;

#[cfg(doc)]
use crate::{BrokerFixture, Fixture};

/// Writes one test per behaviour of a consumer.
///
/// The arguments are async functions `fn(test_name: &str) -> Option<impl BrokerFixture>` and
/// `fn(test_name: &str) -> Option<impl Fixture>`; `None` skips the test, after the function has said why. `stored` writes the
/// behaviours of stores with a log.
#[macro_export]
macro_rules! consume_conformance {
    ($broker:path, $store:path) => {
        $crate::consume_conformance! { @all [flavor = "multi_thread", worker_threads = 2] $broker, $store }
    };
    // With tokio's clock paused: for a broker and a store in memory.
    (paused $broker:path, $store:path) => {
        $crate::consume_conformance! { @all [start_paused = true] $broker, $store }
    };
    (stored $broker:path, $store:path) => {
        $crate::consume_conformance! { @tests [flavor = "multi_thread", worker_threads = 2] $broker, $store;
            a_stored_inbox_acknowledges_what_is_in_its_log
        }
    };
    (@all $runtime:tt $broker:path, $store:path) => {
        $crate::consume_conformance! { @tests $runtime $broker, $store;
            every_message_takes_effect_once
            a_message_is_acknowledged_after_its_commit
            a_message_whose_session_is_lost_after_its_commit_takes_effect_once
            many_lost_sessions_lose_and_double_nothing
            a_consumer_that_is_dropped_loses_nothing
            lost_sessions_reject_nothing
            only_the_message_that_crashes_its_process_is_rejected
            a_failed_message_runs_again_after_its_delay
            a_failed_message_does_not_stop_others
            a_rejected_message_does_not_run_again
            a_message_that_cannot_be_handled_is_rejected
            no_more_messages_than_the_prefetch_are_in_flight
            no_more_bytes_than_the_prefetch_are_in_flight
            messages_of_one_ordering_key_run_in_order
            a_delivery_is_extended_while_its_handler_runs
            a_consumer_connects_again
            a_consumer_waits_for_its_broker
            a_consumer_waits_for_its_queue
            an_outage_of_the_store_settles_nothing
            a_shutdown_finishes_messages_in_flight
            a_shutdown_leaves_a_message_that_takes_too_long
            a_shutdown_ends_a_consumer_without_a_session
            closing_the_inbox_ends_its_consumers
        }
    };
    (@tests $runtime:tt $broker:path, $store:path; $($behaviour:ident)*) => {
        $( $crate::consume_conformance! { @test $runtime $broker, $store; $behaviour } )*
    };
    (@test [$($runtime:tt)*] $broker:path, $store:path; $behaviour:ident) => {
        #[$crate::__private::tokio::test($($runtime)*, crate = "oncebox_testing::__private::tokio")]
        async fn $behaviour() {
            let name = stringify!($behaviour);
            if let (Some(broker), Some(store)) = ($broker(name).await, $store(name).await) {
                $crate::consume_conformance::$behaviour(broker, store).await;
            }
        }
    };
}
