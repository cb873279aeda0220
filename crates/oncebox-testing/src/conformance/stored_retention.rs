//! Pruning: messages that all handlers have passed leave the log after a while, and no others do.

use std::time::Duration;

use oncebox_core::store::{Place, Select, Upkeep};
use oncebox_core::{BoxError, Envelope, Failure, Inbox, InboxBuilder, LogStore, PruneReport, Retention};

use super::stored::{Conn, accept_new, one_lane, sample, with_effect};
use super::{Fixture, Sample};
use crate::operator;

const HOUR: Duration = Duration::from_secs(3600);
const KEEP: Duration = Duration::from_secs(24 * 3600);
const PERIOD: Duration = Duration::from_secs(3 * 24 * 3600);
/// The inbox's own timer stays out of the way: time moves by the test's hand.
const RETENTION: Retention = Retention::new().period(PERIOD).automatic(false).every(HOUR).batch(2);

fn kept_for<F: Fixture<Store: LogStore>>(fixture: &F, time: Duration) -> InboxBuilder<F::Store> {
    one_lane(fixture).retention(RETENTION).keep_messages(time)
}

/// Lets time pass with a live process.
pub(super) async fn live_for<F: Fixture>(fixture: &F, time: Duration) {
    let store = fixture.store();
    let mut left = time;
    store.beat(HOUR).await.unwrap();
    while !left.is_zero() {
        let step = left.min(HOUR / 2);
        fixture.travel(step);
        store.beat(HOUR).await.unwrap();
        left -= step;
    }
}

async fn keys<S: LogStore>(inbox: &Inbox<S>) -> Vec<String> {
    let messages = inbox.operators().messages(0, 0, 100).await.unwrap();
    let key = |key: &oncebox_core::Key| key.to_string();
    messages.iter().map(|found| found.message.key.as_ref().map(key).unwrap_or_default()).collect()
}

/// How many messages and accept markers a run of pruning deletes.
async fn pruned<S: LogStore>(inbox: &Inbox<S>) -> (u64, u64) {
    let report = inbox.prune().await.unwrap();
    (report.messages, report.markers)
}

/// Messages first, their markers later, the newest never.
pub async fn what_all_handlers_have_passed_is_pruned_after_its_time<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_effect(&fixture, kept_for(&fixture, KEEP), "ledger").build().await.unwrap();
    for id in ["a", "b", "c"] {
        accept_new(&inbox, sample(id)).await;
    }
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 3);
    live_for(&fixture, KEEP - HOUR).await;
    assert_eq!(inbox.prune().await.unwrap(), PruneReport::default(), "nothing is due yet");
    live_for(&fixture, HOUR * 2).await;
    // The newest message stays: without it, positions would begin again, below the handlers' progress.
    assert_eq!(pruned(&inbox).await, (2, 0));
    assert_eq!(keys(&inbox).await, ["c"]);
    let d = accept_new(&inbox, sample("d")).await;
    assert_eq!(d.pos, 4);
    assert_eq!(pruned(&inbox).await, (1, 0));
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    for id in ["a", "b", "c", "d"] {
        assert!(inbox.accept(sample(id)).await.unwrap().is_duplicate(), "{id}");
    }
    assert!(inbox.operators().message(Place { lane: 0, pos: 1 }).await.unwrap().is_none());

    live_for(&fixture, PERIOD).await;
    // The marker of a message that is still there stays, too.
    assert_eq!(pruned(&inbox).await, (0, 3));
    assert!(inbox.accept(sample("d")).await.unwrap().is_duplicate());
    assert_eq!(accept_new(&inbox, sample("a")).await.pos, 5, "a key is free again when its marker is gone");
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!((fixture.effects("ledger a").await, fixture.effects("ledger d").await), (2, 1));
}

/// A handler that is behind, a task, a dead letter, a kind without a handler.
pub async fn what_a_handler_still_needs_is_not_pruned<F: Fixture<Store: LogStore>>(fixture: F) {
    let effects = fixture.clone();
    let handler = async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), Failure> {
        effects.effect(conn, &sample.id).await?;
        match &*sample.id {
            "task" => Err(Failure::after(KEEP * 30, "much later")),
            "dead" => Err(Failure::permanent("never")),
            _ => Ok(()),
        }
    };
    let fast = kept_for(&fixture, KEEP).on("fast", handler).build().await.unwrap();
    let slow = with_effect(&fixture, kept_for(&fixture, KEEP), "slow").build().await.unwrap();
    accept_new(&fast, Envelope::new("unheard.of", "{}").with_key("unhandled")).await;
    for id in ["done", "task", "dead", "newest"] {
        accept_new(&fast, sample(id)).await;
    }
    fast.work_until_idle().await.unwrap();
    live_for(&fixture, KEEP * 2).await;
    assert_eq!(fast.prune().await.unwrap().messages, 0, "a handler is behind");
    assert_eq!(keys(&fast).await, ["unhandled", "done", "task", "dead", "newest"]);

    assert_eq!(slow.work_until_idle().await.unwrap().done, 4);
    assert_eq!(fast.prune().await.unwrap().messages, 1);
    assert_eq!(keys(&fast).await, ["unhandled", "task", "dead", "newest"]);
    assert_eq!(fast.operators().discard_dead(Select::all(), &operator("ann")).await.unwrap(), 1);
    assert_eq!(fast.prune().await.unwrap().messages, 1);
    assert_eq!(keys(&fast).await, ["unhandled", "task", "newest"]);

    // A handler for the kind that had none finds its message, then it goes.
    let raw = async |_: Envelope, _: &mut Conn<F>| -> Result<(), BoxError> { Ok(()) };
    let third = kept_for(&fixture, KEEP).on_raw("third", ["unheard.of"], raw).build().await.unwrap();
    assert_eq!(fast.prune().await.unwrap().messages, 0);
    assert_eq!(third.work_until_idle().await.unwrap().done, 1);
    assert_eq!(fast.prune().await.unwrap().messages, 1);
    assert_eq!(keys(&fast).await, ["task", "newest"]);

    // Pruning does not wait for a removed handler.
    assert!(fast.operators().remove_handler("fast", &operator("ann")).await.unwrap());
    assert_eq!(slow.prune().await.unwrap().messages, 1);
    assert_eq!(keys(&slow).await, ["newest"]);
}

/// Only time with a live process counts.
pub async fn downtime_prunes_nothing<F: Fixture<Store: LogStore>>(fixture: F) {
    if !fixture.capabilities().counts_live_time {
        return;
    }
    let inbox = with_effect(&fixture, kept_for(&fixture, KEEP), "ledger").build().await.unwrap();
    live_for(&fixture, PERIOD + KEEP).await;
    for id in ["a", "b"] {
        accept_new(&inbox, sample(id)).await;
    }
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
    fixture.travel(PERIOD * 2);
    live_for(&fixture, HOUR).await;
    assert_eq!(inbox.prune().await.unwrap(), PruneReport::default());
    assert!(inbox.accept(sample("a")).await.unwrap().is_duplicate());
    live_for(&fixture, KEEP).await;
    assert_eq!(pruned(&inbox).await, (1, 0));
    assert!(inbox.accept(sample("a")).await.unwrap().is_duplicate());
}

/// Sweeping markers must not forget the live time that messages, which are kept for longer, still need.
pub async fn messages_may_be_kept_for_longer_than_markers<F: Fixture<Store: LogStore>>(fixture: F) {
    if !fixture.capabilities().counts_live_time {
        return;
    }
    let inbox = with_effect(&fixture, kept_for(&fixture, PERIOD * 2 + HOUR), "ledger").build().await.unwrap();
    for id in ["a", "b"] {
        accept_new(&inbox, sample(id)).await;
    }
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
    // A process that is down for a while every two days, and sweeps.
    let mut pruned = 0;
    for stretch in 1..=4 {
        live_for(&fixture, KEEP * 2).await;
        inbox.sweep().await.unwrap();
        pruned += inbox.prune().await.unwrap().messages;
        assert_eq!(pruned, u64::from(stretch * 2 > 6), "after {} days", stretch * 2);
        fixture.travel(HOUR * 12);
    }
}

/// The timer of the inbox does all of this by itself.
pub async fn old_messages_go_by_themselves<F: Fixture<Store: LogStore>>(fixture: F) {
    let retention = RETENTION.automatic(true).every(Duration::from_millis(20));
    let builder = one_lane(&fixture).keep_messages(KEEP).retention(retention);
    let inbox = with_effect(&fixture, builder, "ledger").build().await.unwrap();
    for id in ["a", "b", "c"] {
        accept_new(&inbox, sample(id)).await;
    }
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 3);
    live_for(&fixture, KEEP + HOUR).await;
    while keys(&inbox).await != ["c"] {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    inbox.health().await.unwrap();
}
