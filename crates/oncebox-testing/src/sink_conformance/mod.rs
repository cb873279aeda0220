//! The conformance suite for sinks: one set of behaviours for every destination.
//!
//! Give [`sink_conformance!`](crate::sink_conformance!) a function that makes a [`SinkFixture`], and run the tests that it writes.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test that cannot go on panics")]

mod order;
mod outages;
mod verdicts;

use std::time::{Duration, Instant, SystemTime};

use oncebox_core::source::ReceivedMessage;
use oncebox_core::{Key, Outgoing, Sink, Verdict};

pub use order::*;
pub use outages::*;
pub use verdicts::*;

/// A destination under test, empty at first.
pub trait SinkFixture: Send + Sync + 'static {
    /// The sink.
    type Sink: Sink;

    /// A sink for the destination. Each call returns another one.
    fn sink(&self) -> impl Future<Output = Self::Sink> + Send;

    /// The message, changed so that the destination refuses it: of a kind without a queue, for example. Its other fields stay.
    fn unroutable(&self, message: Outgoing) -> Outgoing;

    /// The messages that the destination has stored, in its order, as the broker's own client reads them. Their ids are in
    /// `message_id`.
    fn stored(&self) -> impl Future<Output = Vec<ReceivedMessage>> + Send;

    /// A sent message as the destination has stored it. Change what the protocol cannot carry. The suite looks for the headers that
    /// this has; others may be there too.
    fn as_stored(&self, sent: &Outgoing) -> ReceivedMessage {
        let mut stored = ReceivedMessage::new(sent.body.clone());
        stored.message_id = Some(sent.id.to_string());
        stored.kind = Some(sent.kind.clone());
        stored.headers = sent.headers.clone().into();
        stored.order_by.clone_from(&sent.order_by);
        stored.occurred_at = sent.occurred_at;
        stored
    }

    /// Stops the destination: it accepts no messages, and keeps those that it has. `false`, and nothing happens, if the suite cannot
    /// stop it.
    fn stop(&self) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// Starts the destination again.
    fn start(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Ends all connections of sinks, from the other side.
    fn end_connections(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Long enough for anything that the suite waits for; a limit, not a measure.
const LIMIT: Duration = Duration::from_secs(60);

/// Message number `n`.
fn numbered(n: u32) -> Outgoing {
    Outgoing::new("note", n.to_string())
}

/// A message of an ordering key.
fn ordered(n: u32, order_by: &str) -> Outgoing {
    let mut message = numbered(n);
    message.order_by = Some(Key::from(order_by));
    message
}

/// A message with all fields.
fn full() -> Outgoing {
    let mut message = Outgoing::new("order.paid", (0..=255).collect::<Vec<u8>>());
    message.key = Key::from("order-7");
    message.order_by = Some(Key::from("customer-7"));
    message.headers = [("x-tenant", "a"), ("x-text", "one two")].into_iter().collect();
    message.occurred_at = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    message
}

/// Publishes a wave, and checks that every message has a verdict.
async fn publish(sink: &impl Sink, wave: &[Outgoing]) -> Vec<Verdict> {
    let verdicts = tokio::time::timeout(LIMIT, sink.publish(wave)).await.expect("publish returns");
    assert_eq!(verdicts.len(), wave.len(), "one verdict for each message");
    verdicts
}

/// Publishes a wave until all of its messages are confirmed.
async fn publish_until_confirmed(sink: &impl Sink, wave: &[Outgoing]) {
    let started = Instant::now();
    loop {
        let verdicts = publish(sink, wave).await;
        if verdicts.iter().all(is_confirmed) {
            return;
        }
        assert!(
            verdicts.iter().all(|verdict| !is_refused(verdict)),
            "an outage refuses nothing: {verdicts:?}"
        );
        assert!(started.elapsed() < LIMIT, "the sink works again within {LIMIT:?}: {verdicts:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The ids of the stored messages, in their order.
async fn stored_ids<F: SinkFixture>(fixture: &F) -> Vec<String> {
    fixture.stored().await.into_iter().filter_map(|message| message.message_id).collect()
}

fn ids(wave: &[Outgoing]) -> Vec<String> {
    wave.iter().map(|message| message.id.to_string()).collect()
}

fn is_confirmed(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Confirmed)
}

fn is_refused(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Refused(_))
}

fn is_unknown(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Unknown(_))
}

/// Writes one test per behaviour of a sink.
///
/// The argument is an async function `fn(test_name: &str) -> Option<impl SinkFixture>`; `None` skips the test, after the function has
/// said why.
#[macro_export]
macro_rules! sink_conformance {
    ($fixture:path) => {
        $crate::sink_conformance! { @tests $fixture;
            confirmed_messages_are_stored_unchanged
            a_wave_of_any_size_is_confirmed
            verdicts_are_in_the_order_of_their_messages
            exactly_the_unroutable_messages_of_a_wave_are_refused
            waves_at_the_same_time_have_verdicts_of_their_own
            a_copy_has_the_same_id
            a_stopped_destination_confirms_and_refuses_nothing
            a_sink_works_again_after_a_lost_connection
            a_dropped_publish_leaves_the_sink_usable
            nothing_overtakes_a_failed_message_of_its_ordering_key
        }
    };
    (@tests $fixture:path; $($behaviour:ident)*) => {
        $(
            #[$crate::__private::tokio::test(crate = "oncebox_testing::__private::tokio")]
            async fn $behaviour() {
                if let Some(fixture) = $fixture(stringify!($behaviour)).await {
                    $crate::sink_conformance::$behaviour(fixture).await;
                }
            }
        )*
    };
}
