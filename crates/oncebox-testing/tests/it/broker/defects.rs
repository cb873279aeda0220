//! The suite finds sources with a defect.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use oncebox_core::source::{
    Abilities, Decision, OpenedSession, Received, ReceivedMessage, Room, Session, Settled, Settler, Source,
};
use oncebox_core::{Error, Settlement};
use oncebox_testing::{
    BrokerFixture, MemoryReceipt, MemorySession, MemorySettler, MemorySource, QueueKind,
    source_conformance as behaviours,
};
use tokio::task::yield_now;

use super::fixture::{self, Memory};

/// What is wrong with a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    None,
    AcknowledgesOnReceipt,
    LosesWhatADroppedNextHasReceived,
    /// It sends the number of a delivery, which counts for each session, whatever the session is.
    SettlesStaleReceipts,
    IgnoresRoom,
    ReturnsResultsInReverse,
    /// It acknowledges the highest position.
    SkipsPositions,
    RetriesAtOnce,
    RejectsByAcknowledging,
    DoesNotExtend,
    StaysOpenAfterClose,
    HidesTheEndOfItsSession,
    ChangesTheBody,
}

struct Broken<K: QueueKind> {
    source: MemorySource<K>,
    defect: Defect,
    /// The receipts of the latest session, by the numbers of its deliveries.
    latest: Latest,
}

type Latest = Arc<Mutex<HashMap<u64, MemoryReceipt>>>;

impl<K: QueueKind> Source for Broken<K> {
    type Session = BrokenSession;

    const ABILITIES: Abilities = K::ABILITIES;

    fn name(&self) -> &str {
        self.source.name()
    }

    async fn open(&mut self, prefetch: Room) -> Result<OpenedSession<BrokenSession>, Error> {
        let OpenedSession { session, warnings } = self.source.open(prefetch).await?;
        self.latest.lock().unwrap().clear();
        let settler =
            BrokenSettler { settler: session.settler(), defect: self.defect, latest: self.latest.clone() };
        Ok(OpenedSession { session: BrokenSession { session, settler, received: 0 }, warnings })
    }
}

struct BrokenSession {
    session: MemorySession,
    settler: BrokenSettler,
    received: u64,
}

#[derive(Clone, Copy)]
struct BrokenReceipt {
    receipt: MemoryReceipt,
    number: u64,
}

impl Session for BrokenSession {
    type Receipt = BrokenReceipt;
    type Settler = BrokenSettler;

    fn settler(&self) -> BrokenSettler {
        self.settler.clone()
    }

    async fn next(&mut self, room: Room) -> Result<Vec<Received<BrokenReceipt>>, Error> {
        let defect = self.settler.defect;
        let room = match defect {
            Defect::IgnoresRoom => Room { messages: usize::MAX, bytes: usize::MAX },
            _ => room,
        };
        let received = match self.session.next(room).await {
            Err(_) if defect == Defect::HidesTheEndOfItsSession => std::future::pending().await,
            received => received?,
        };
        if defect == Defect::LosesWhatADroppedNextHasReceived {
            yield_now().await;
        }
        let mut deliveries = Vec::new();
        for Received { receipt, mut message } in received {
            self.received += 1;
            self.settler.latest.lock().unwrap().insert(self.received, receipt);
            if defect == Defect::AcknowledgesOnReceipt {
                self.settler.settler.settle(vec![decision(receipt, Settlement::Ack)]).await;
            }
            if defect == Defect::ChangesTheBody {
                message.body = String::from_utf8_lossy(&message.body).into_owned().into_bytes();
            }
            let receipt = BrokenReceipt { receipt, number: self.received };
            deliveries.push(Received { receipt, message });
        }
        Ok(deliveries)
    }

    fn extend_every(&self) -> Option<std::time::Duration> {
        self.session.extend_every()
    }

    async fn close(self) {
        match self.settler.defect {
            // Its connection stays open, and keeps what it was sent.
            Defect::StaysOpenAfterClose => std::mem::forget(self.session),
            _ => self.session.close().await,
        }
    }
}

#[derive(Clone)]
struct BrokenSettler {
    settler: MemorySettler,
    defect: Defect,
    latest: Latest,
}

fn decision(receipt: MemoryReceipt, settlement: Settlement) -> Decision<MemoryReceipt> {
    Decision { receipt, settlement, reason: None }
}

impl BrokenSettler {
    fn broken(&self, receipt: BrokenReceipt, settlement: Settlement) -> Vec<Decision<MemoryReceipt>> {
        let latest = self.latest.lock().unwrap();
        let settlement = match (settlement, self.defect) {
            (Settlement::Retry { .. }, Defect::RetriesAtOnce) => {
                Settlement::Retry { after: Some(std::time::Duration::ZERO) }
            }
            (Settlement::Reject, Defect::RejectsByAcknowledging) => Settlement::Ack,
            (settlement, _) => settlement,
        };
        match self.defect {
            Defect::SettlesStaleReceipts => {
                let same_number = latest.get(&receipt.number).copied().unwrap_or(receipt.receipt);
                vec![decision(same_number, settlement)]
            }
            Defect::SkipsPositions => {
                let earlier = (1..receipt.number).filter_map(|number| latest.get(&number).copied());
                let all = std::iter::once(receipt.receipt).chain(earlier);
                all.map(|receipt| decision(receipt, settlement)).collect()
            }
            _ => vec![decision(receipt.receipt, settlement)],
        }
    }
}

impl Settler for BrokenSettler {
    type Receipt = BrokenReceipt;

    async fn settle(&self, decisions: Vec<Decision<BrokenReceipt>>) -> Vec<Settled> {
        let mut results = Vec::new();
        for Decision { receipt, settlement, .. } in decisions {
            let broken = self.broken(receipt, settlement);
            let settled = self.settler.settle(broken).await.swap_remove(0);
            results.push(match self.defect {
                Defect::AcknowledgesOnReceipt | Defect::SkipsPositions => Settled::Done,
                _ => settled,
            });
        }
        if self.defect == Defect::ReturnsResultsInReverse {
            results.reverse();
        }
        results
    }

    async fn extend(&self, held: &[&BrokenReceipt]) -> Result<(), Error> {
        let held: Vec<_> = held.iter().map(|held| &held.receipt).collect();
        match self.defect {
            Defect::DoesNotExtend => Ok(()),
            _ => self.settler.extend(&held).await,
        }
    }
}

struct BrokenFixture<K: QueueKind> {
    memory: Memory<K>,
    defect: Defect,
    latest: Latest,
}

impl<K: QueueKind> BrokenFixture<K> {
    fn new(memory: Option<Memory<K>>, defect: Defect) -> Self {
        Self { memory: memory.unwrap(), defect, latest: Arc::default() }
    }
}

impl<K: QueueKind> BrokerFixture for BrokenFixture<K> {
    type Source = Broken<K>;

    fn source(&self) -> Broken<K> {
        Broken { source: self.memory.source(), defect: self.defect, latest: self.latest.clone() }
    }

    async fn publish(&self, messages: Vec<ReceivedMessage>) {
        self.memory.publish(messages).await;
    }

    async fn backlog(&self) -> usize {
        self.memory.backlog().await
    }

    async fn rejected(&self) -> Vec<ReceivedMessage> {
        self.memory.rejected().await
    }

    async fn end_sessions(&self) {
        self.memory.end_sessions().await;
    }

    fn now(&self) -> std::time::Instant {
        self.memory.now()
    }

    async fn pass(&self, time: std::time::Duration) {
        self.memory.pass(time).await;
    }
}

/// The behaviour fails with the defect, and passes without it.
macro_rules! finds {
    ($($defect:ident in $shape:ident: $($behaviour:ident),+;)*) => {
        $($(
            let broken = BrokenFixture::new(fixture::$shape("").await, Defect::$defect);
            let failed = tokio::spawn(behaviours::$behaviour(broken)).await;
            assert!(failed.is_err_and(|error| error.is_panic()), "{} passes {:?}", stringify!($behaviour), Defect::$defect);
            let sound = BrokenFixture::new(fixture::$shape("").await, Defect::None);
            behaviours::$behaviour(sound).await;
        )+)*
    };
}

#[tokio::test(start_paused = true)]
async fn each_defect_fails_the_behaviours_that_forbid_it() {
    finds! {
        AcknowledgesOnReceipt in work_queue:
            unsettled_messages_come_back_when_the_session_is_dropped,
            unsettled_messages_come_back_when_the_broker_ends_the_session,
            deliveries_without_a_settlement_are_counted,
            a_retry_does_not_hold_back_other_messages;
        LosesWhatADroppedNextHasReceived in plain_queue:
            next_can_be_dropped_at_any_await;
        SettlesStaleReceipts in work_queue:
            a_receipt_of_an_earlier_session_settles_nothing;
        SettlesStaleReceipts in stream:
            a_receipt_of_an_earlier_session_settles_nothing;
        IgnoresRoom in plain_queue:
            next_returns_no_more_messages_than_there_is_room_for,
            next_returns_no_more_bytes_than_there_is_room_for,
            a_body_larger_than_the_room_arrives_alone;
        ReturnsResultsInReverse in work_queue:
            a_receipt_of_an_earlier_session_settles_nothing;
        SkipsPositions in stream:
            a_position_counts_when_all_earlier_ones_are_settled;
        RetriesAtOnce in work_queue:
            a_retry_comes_back_after_its_delay;
        RejectsByAcknowledging in work_queue:
            rejected_messages_are_kept;
        DoesNotExtend in work_queue_with_a_deadline:
            an_extended_delivery_does_not_come_back;
        StaysOpenAfterClose in plain_queue:
            a_closed_session_returns_what_was_sent_ahead;
        HidesTheEndOfItsSession in work_queue:
            an_ended_session_returns_errors_and_open_works_again,
            unsettled_messages_come_back_when_the_broker_ends_the_session;
        ChangesTheBody in work_queue:
            a_message_arrives_unchanged;
    }
}
