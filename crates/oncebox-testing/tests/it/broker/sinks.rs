//! Sinks of the broker in memory pass the suite. Sinks with a defect do not.

use oncebox_core::source::ReceivedMessage;
use oncebox_core::{Outgoing, Sink, Verdict};
use oncebox_testing::{MemoryBroker, MemorySink, SinkFixture, sink_conformance as behaviours};

const QUEUE: &str = "events";
const MISSING: &str = "unroutable";

struct Memory {
    broker: MemoryBroker,
}

async fn memory(_test: &str) -> Option<Memory> {
    let broker = MemoryBroker::new();
    broker.queue(QUEUE);
    Some(Memory { broker })
}

oncebox_testing::sink_conformance!(memory);

impl SinkFixture for Memory {
    type Sink = MemorySink;

    async fn sink(&self) -> MemorySink {
        self.broker.sink_by(|message| if message.kind == MISSING { MISSING } else { QUEUE }.to_owned())
    }

    fn unroutable(&self, message: Outgoing) -> Outgoing {
        let mut message = message;
        message.kind = MISSING.to_owned();
        message
    }

    async fn stored(&self) -> Vec<ReceivedMessage> {
        self.broker.waiting(QUEUE)
    }

    async fn stop(&self) -> bool {
        self.broker.stop();
        true
    }

    async fn start(&self) {
        self.broker.start();
    }

    async fn end_connections(&self) {
        self.broker.lose_confirms(3);
    }
}

/// What is wrong with a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    None,
    /// A refusal goes to the message that is confirmed next.
    RefusesANeighbour,
    ConfirmsWhatItHasSent,
    RefusesWhenStopped,
    SendsBehindAFailure,
}

struct Broken {
    sink: MemorySink,
    defect: Defect,
}

impl Sink for Broken {
    const KEEPS_ORDER: bool = true;

    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        let mut verdicts = match self.defect {
            Defect::SendsBehindAFailure => {
                let mut verdicts = Vec::new();
                for message in wave {
                    verdicts.extend(self.sink.publish(std::slice::from_ref(message)).await);
                }
                verdicts
            }
            _ => self.sink.publish(wave).await,
        };
        match self.defect {
            Defect::RefusesANeighbour => verdicts.rotate_right(1),
            Defect::ConfirmsWhatItHasSent => verdicts.fill_with(|| Verdict::Confirmed),
            Defect::RefusesWhenStopped => {
                for verdict in &mut verdicts {
                    if matches!(verdict, Verdict::Unknown(_)) {
                        *verdict = Verdict::Refused("no connection".into());
                    }
                }
            }
            Defect::None | Defect::SendsBehindAFailure => (),
        }
        verdicts
    }
}

struct BrokenFixture {
    memory: Memory,
    defect: Defect,
}

impl SinkFixture for BrokenFixture {
    type Sink = Broken;

    async fn sink(&self) -> Broken {
        Broken { sink: self.memory.sink().await, defect: self.defect }
    }

    fn unroutable(&self, message: Outgoing) -> Outgoing {
        self.memory.unroutable(message)
    }

    async fn stored(&self) -> Vec<ReceivedMessage> {
        self.memory.stored().await
    }

    async fn stop(&self) -> bool {
        self.memory.stop().await
    }

    async fn start(&self) {
        self.memory.start().await;
    }

    async fn end_connections(&self) {
        self.memory.end_connections().await;
    }
}

/// The behaviour fails with the defect, and passes without it.
macro_rules! finds {
    ($($defect:ident: $($behaviour:ident),+;)*) => {
        $($(
            let broken = BrokenFixture { memory: memory("").await.unwrap(), defect: Defect::$defect };
            let failed = tokio::spawn(behaviours::$behaviour(broken)).await;
            assert!(failed.is_err_and(|error| error.is_panic()), "{} passes {:?}", stringify!($behaviour), Defect::$defect);
            let sound = BrokenFixture { memory: memory("").await.unwrap(), defect: Defect::None };
            behaviours::$behaviour(sound).await;
        )+)*
    };
}

#[tokio::test]
async fn each_defect_fails_the_behaviours_that_forbid_it() {
    finds! {
        RefusesANeighbour:
            verdicts_are_in_the_order_of_their_messages,
            exactly_the_unroutable_messages_of_a_wave_are_refused,
            nothing_overtakes_a_failed_message_of_its_ordering_key;
        ConfirmsWhatItHasSent:
            verdicts_are_in_the_order_of_their_messages,
            waves_at_the_same_time_have_verdicts_of_their_own,
            a_stopped_destination_confirms_and_refuses_nothing,
            a_dropped_publish_leaves_the_sink_usable;
        RefusesWhenStopped:
            a_stopped_destination_confirms_and_refuses_nothing,
            a_sink_works_again_after_a_lost_connection;
        SendsBehindAFailure:
            nothing_overtakes_a_failed_message_of_its_ordering_key;
    }
}
