//! Pruning: deletes messages that all handlers have passed, after `keep_messages`.

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::Error;
use crate::inbox::stored::LogStore;
use crate::observe::Observer;
use crate::retention::{Retention, cutoff};
use crate::store::PruneRange;

/// The number of positions that one transaction examines.
const POSITIONS: u32 = 5_000;

/// The result of pruning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PruneReport {
    /// The number of deleted messages.
    pub messages: u64,
    /// The number of deleted accept markers. Their keys would be accepted again.
    pub markers: u64,
}

/// The settings of pruning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pruning {
    pub(crate) lanes: u16,
    pub(crate) keep_messages: Duration,
    pub(crate) retention: Retention,
}

/// The prune function of an inbox. A function pointer, because stores without a log have none.
pub(crate) type Prune<S> = fn(S, Pruning, Observer) -> BoxFuture<'static, Result<PruneReport, Error>>;

/// The [`Prune`] of stores with a log.
pub(crate) fn prune_boxed<S: LogStore>(
    store: S,
    pruning: Pruning,
    observer: Observer,
) -> BoxFuture<'static, Result<PruneReport, Error>> {
    Box::pin(async move { prune(&store, pruning, observer).await })
}

pub(crate) async fn prune<S: LogStore>(
    store: &S,
    pruning: Pruning,
    observer: Observer,
) -> Result<PruneReport, Error> {
    let Pruning { lanes, keep_messages, retention } = pruning;
    let mut report = PruneReport::default();
    let (live, _now_ms) = store.live_time().await?;
    if let Some(before_ms) = cutoff(live.clone(), keep_messages) {
        for lane in 0..lanes {
            report.messages += prune_lane(store, lane, Some(before_ms), observer).await?;
        }
    }
    if let Some(before_ms) = cutoff(live, retention.period) {
        loop {
            let deleted = store.sweep_accepted(before_ms, retention.batch).await?;
            report.markers += deleted;
            // A batch that is not full was the last one.
            if deleted < u64::from(retention.batch) {
                break;
            }
        }
    }
    tracing::debug!(messages = report.messages, markers = report.markers, "pruned the log");
    Ok(report)
}

/// Deletes sent messages that no handler reads, when their relays need not keep them any longer. Returns their number.
pub(crate) async fn prune_sent<S: LogStore>(store: &S, lanes: u16, observer: Observer) -> Result<u64, Error> {
    let mut messages = 0;
    for lane in 0..lanes {
        messages += prune_lane(store, lane, None, observer).await?;
    }
    Ok(messages)
}

async fn prune_lane<S: LogStore>(
    store: &S,
    lane: u16,
    before_ms: Option<i64>,
    observer: Observer,
) -> Result<u64, Error> {
    let mut messages = 0;
    // Each transaction covers a bounded range, so that a long lane does not cause a long transaction.
    let mut behind = Some(0);
    while let Some(from) = behind {
        let range = PruneRange { behind: from, positions: POSITIONS, before_ms };
        let pruned = store.prune(lane, range).await?;
        messages += pruned.deleted;
        observer.pruned(pruned.deleted);
        behind = pruned.next;
    }
    Ok(messages)
}
