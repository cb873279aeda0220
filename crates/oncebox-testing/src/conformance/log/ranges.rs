//! Leased lanes: a relay reads and settles ranges of messages under the fence of its lease.

use std::time::Duration;

use oncebox_core::store::{
    Account, Batch, Fence, NewMessage, ProcessId, Progress, Ranges, Registration, ReplayFrom, TakeLimits,
};
use oncebox_core::{DeadHead, LogStore, MessageId, Mode, OutboxStore};

use crate::Fixture;
use crate::one_handler::{self, OneHandler};

fn events() -> Registration {
    Registration {
        mode: Mode::Relay,
        ordered: Some(DeadHead::Hold),
        keep: Some(Duration::ZERO),
        ..one_handler::stored("events", &["a"])
    }
}

const ALL: TakeLimits = TakeLimits { messages: 100, positions: 100, bytes: 1 << 20, open_tasks: None };

/// A relay and its lane 0, driven as the engine drives it.
struct LeasedLane<'a, F: Fixture<Store: LogStore>>(&'a OneHandler<F>);

impl<F: Fixture<Store: LogStore>> LeasedLane<'_, F> {
    async fn lease(&self, process: ProcessId) -> Option<Fence> {
        self.0.fixture.store().lease_lane(self.0.taker(0), process).await.unwrap()
    }

    async fn read(&self, fence: Fence) -> Option<Batch> {
        self.0.fixture.store().read_range(self.0.taker(0), fence, 0, ALL).await.unwrap()
    }

    async fn settle(&self, fence: Fence, pos: i64) -> bool {
        let progress = Progress { handler: self.0.handler, lane: 0, epoch: 0, pos };
        let account = Account::default();
        self.0.fixture.store().settle_range(self.0.taker(0), fence, &account, Some(progress)).await.unwrap()
    }
}

/// Under the newest fence only, and only while the lease holds.
pub async fn a_lane_has_one_lease_and_its_fence_decides<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let relay = OneHandler::of(fixture, events()).await;
    let published = NewMessage { message_id: Some(MessageId::default()), ..one_handler::message("a", "1") };
    relay.append(0, &[published, one_handler::message("a", "accepted")]).await;
    let lane = LeasedLane(&relay);
    let (one, two) = (relay.enter().await, relay.enter().await);
    let first = lane.lease(one).await.unwrap();
    assert!(lane.lease(two).await.is_none(), "the lane is leased");
    let batch = lane.read(first).await.unwrap();
    assert_eq!(
        (batch.messages.len(), batch.reached, batch.head),
        (1, 2, 2),
        "what was accepted is not for relays"
    );
    let again = lane.lease(one).await.unwrap();
    assert!(again > first);
    assert!(lane.read(first).await.is_none() && !lane.settle(first, 2).await, "an older fence");
    relay.crash(one).await;
    assert!(lane.read(again).await.is_none() && !lane.settle(again, 2).await, "its process is gone");
    assert!(lane.lease(one).await.is_none(), "a removed process leases nothing");
    let two = match relay.beat(two).await {
        true => two,
        false => relay.enter().await,
    };
    let newest = lane.lease(two).await.unwrap();
    assert!(newest > again);
    assert!(lane.settle(newest, 2).await);
    assert!(lane.read(newest).await.unwrap().messages.is_empty());
    relay.leave(two).await;
    assert!(!lane.settle(newest, 2).await, "its process has left");
}

/// Paused, replayed and registered differently: nothing that was read before is settled.
pub async fn an_operation_on_a_relay_ends_its_leases<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let mut relay = OneHandler::of(fixture, events()).await;
    let published =
        |key: &str| NewMessage { message_id: Some(MessageId::default()), ..one_handler::message("a", key) };
    relay.append(0, &[published("1"), published("2")]).await;
    let process = relay.enter().await;
    let fence = LeasedLane(&relay).lease(process).await.unwrap();
    assert!(LeasedLane(&relay).settle(fence, 1).await);
    relay.replay(ReplayFrom::Beginning).await;
    assert!(!LeasedLane(&relay).settle(fence, 2).await, "replayed");
    let fence = LeasedLane(&relay).lease(process).await.unwrap();
    assert_eq!(LeasedLane(&relay).read(fence).await.unwrap().messages.len(), 2);
    relay.pause("events", true).await.unwrap();
    assert!(!LeasedLane(&relay).settle(fence, 2).await, "paused");
    assert!(LeasedLane(&relay).lease(process).await.is_none());
    relay.pause("events", false).await.unwrap();
    let fence = LeasedLane(&relay).lease(process).await.unwrap();
    let before = relay.clone();
    relay.change(|wanted| wanted.kinds = vec!["b".into()]).await.unwrap();
    assert!(!LeasedLane(&before).settle(fence, 2).await, "registered differently");
    assert!(LeasedLane(&before).lease(process).await.is_none());
    assert!(LeasedLane(&relay).lease(process).await.is_some());
}
