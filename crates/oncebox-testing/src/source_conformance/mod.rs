//! The conformance suite for sources: one set of behaviours for every broker.
//!
//! A source passes if it keeps the contract of its traits, and does what its [`Abilities`] say. Give
//! [`source_conformance!`](crate::source_conformance!) a function that makes a [`BrokerFixture`], and run the tests that it writes.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test that cannot go on panics")]

mod arrival;
mod cancellation;
mod consumer;
mod deadlines;
mod positions;
mod redelivery;
mod sessions;
mod settlement;

use std::time::{Duration, Instant};

use oncebox_core::source::{Abilities, ReceivedMessage, Source};

pub use arrival::*;
pub use cancellation::next_can_be_dropped_at_any_await;
pub(crate) use cancellation::polled;
pub use deadlines::*;
pub use positions::*;
pub use redelivery::*;
pub use sessions::*;
pub use settlement::*;

/// A broker under test, with one empty queue.
///
/// Its methods use the broker's own client or its administration, not the source.
pub trait BrokerFixture: Send + Sync + 'static {
    /// The source.
    type Source: Source;

    /// The queue as a source. Each call returns another consumer of the same queue.
    fn source(&self) -> Self::Source;

    /// Publishes messages to the queue, in their order. They are stored when it returns.
    fn publish(&self, messages: Vec<ReceivedMessage>) -> impl Future<Output = ()> + Send;

    /// A published message as the source delivers it. Change what the protocol cannot carry.
    fn as_delivered(&self, published: ReceivedMessage) -> ReceivedMessage {
        published
    }

    /// The number of messages that are neither acknowledged nor rejected: those that wait, are delayed, or are in flight.
    fn backlog(&self) -> impl Future<Output = usize> + Send;

    /// The messages in the place for rejected messages.
    fn rejected(&self) -> impl Future<Output = Vec<ReceivedMessage>> + Send {
        async { Vec::new() }
    }

    /// Ends all connections of consumers, from the broker's side.
    fn end_sessions(&self) -> impl Future<Output = ()> + Send;

    /// Deletes the queue. `false`, and nothing happens, if the suite cannot delete it.
    fn delete_queue(&self) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// Creates the queue again.
    fn create_queue(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Stops the broker: it refuses connections, and keeps its messages. `false`, and nothing happens, if the suite cannot stop it.
    fn stop(&self) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// Starts the broker again.
    fn start(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// The time on the broker's clock.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Lets this much time pass on the broker's clock.
    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }
}

/// What the source of a fixture can do.
pub(crate) const fn abilities<F: BrokerFixture>() -> Abilities {
    F::Source::ABILITIES
}

/// The time that passes between two looks.
pub(crate) const STEP: Duration = Duration::from_millis(20);

/// Long enough for anything that the suite waits for; a limit, not a measure.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Lets time pass until the condition holds.
pub(crate) async fn until<F: BrokerFixture>(fixture: &F, what: &str, is_so: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        fixture.pass(STEP).await;
    }
}

/// Message number `n`. Its number is its body.
pub(crate) fn numbered(n: u32) -> ReceivedMessage {
    let mut message = ReceivedMessage::new(n.to_string());
    message.message_id = Some(format!("m-{n}"));
    message
}

/// The number of a message.
pub(crate) fn number(message: &ReceivedMessage) -> u32 {
    std::str::from_utf8(&message.body).unwrap().trim_end().parse().unwrap()
}

/// Writes one test per behaviour of a source.
///
/// The argument is an async function `fn(test_name: &str) -> Option<impl BrokerFixture>`; `None` skips the test, after the function
/// has said why. Behaviours that the [`Abilities`] of the source exclude pass without doing anything.
///
/// [`Abilities`]: oncebox_core::source::Abilities
#[macro_export]
macro_rules! source_conformance {
    ($fixture:path) => {
        $crate::source_conformance! { @tests $fixture;
            messages_arrive_complete_and_in_order
            a_message_that_is_published_later_arrives
            a_message_arrives_unchanged
            next_returns_no_more_messages_than_there_is_room_for
            next_returns_no_more_bytes_than_there_is_room_for
            a_body_larger_than_the_room_arrives_alone
            no_more_than_the_prefetch_is_sent_ahead
            consumers_of_one_queue_share_its_messages
            next_can_be_dropped_at_any_await
            unsettled_messages_come_back_when_the_session_is_dropped
            unsettled_messages_come_back_when_the_broker_ends_the_session
            settled_messages_do_not_come_back
            deliveries_without_a_settlement_are_counted
            a_closed_session_returns_what_was_sent_ahead
            many_messages_are_settled_at_once_in_any_order
            a_delivery_is_settled_while_next_waits
            a_receipt_of_an_earlier_session_settles_nothing
            a_receipt_of_an_earlier_session_settles_its_message
            a_retry_comes_back_after_its_delay
            a_retry_without_a_delay_comes_back
            a_retry_does_not_hold_back_other_messages
            retries_are_counted
            a_rejected_message_does_not_come_back
            rejected_messages_are_kept
            a_position_counts_when_all_earlier_ones_are_settled
            positions_are_settled_in_any_order
            an_extended_delivery_does_not_come_back
            an_expired_delivery_comes_back
            an_ended_session_returns_errors_and_open_works_again
            a_deleted_queue_is_an_error_until_it_is_created_again
            a_stopped_broker_is_an_error_until_it_starts_again
        }
    };
    (@tests $fixture:path; $($behaviour:ident)*) => {
        $(
            #[$crate::__private::tokio::test(crate = "oncebox_testing::__private::tokio")]
            async fn $behaviour() {
                if let Some(fixture) = $fixture(stringify!($behaviour)).await {
                    $crate::source_conformance::$behaviour(fixture).await;
                }
            }
        )*
    };
}
