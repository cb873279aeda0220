//! The keepers: Oncebox, Milan Jovanović's inbox, and a queue of rows.

mod milan;
mod oncebox;
mod row_queue;
mod workers;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

pub(super) use self::milan::{Milan, TYPE as MILAN_TYPE};
pub(super) use self::oncebox::OnceboxKeeper;
pub(super) use self::row_queue::RowQueue;
use super::engine::Takes;
use crate::contenders::{Contender, Tally};
use crate::feed::Feed;

/// The names of the handlers.
pub(crate) const HANDLERS: [&str; 3] = ["ledger", "shipping", "mail"];

/// Messages that are filled in with one statement, or one call.
const CHUNK: u64 = 1_000;

/// A system that keeps messages, and works through them.
pub(crate) trait Keeper: Send + Sync {
    /// Accepts a message; it is durable when this returns.
    fn accept(&self, body: Vec<u8>) -> BoxFuture<'_, Result<()>>;

    /// Accepts a part of a backlog, as fast as it can.
    fn fill(&self, numbers: Range<u64>) -> BoxFuture<'_, Result<()>>;

    /// Works until the meter's goal is reached; returns the number of committed handler runs.
    fn work(&self) -> BoxFuture<'_, Result<u64>>;

    /// The number of waiting messages.
    fn waiting(&self) -> BoxFuture<'_, Result<u64>>;
}

/// The keepers by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KeeperName {
    Oncebox,
    OnceboxSet,
    /// A handler of sets that writes nothing.
    OnceboxIdle,
    /// With the mover of an outbox.
    OnceboxMoving,
    OnceboxMovingSet,
    Milan,
    /// With handlers that write in the processor's transaction.
    MilanInTx,
    RowQueue,
    /// With handlers that write a batch with one statement.
    RowQueueSet,
}

impl KeeperName {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            KeeperName::Oncebox => "oncebox",
            KeeperName::OnceboxSet => "oncebox-set",
            KeeperName::OnceboxIdle => "oncebox-idle",
            KeeperName::OnceboxMoving => "oncebox",
            KeeperName::OnceboxMovingSet => "oncebox-set",
            KeeperName::Milan => "milan",
            KeeperName::MilanInTx => "milan-in-tx",
            KeeperName::RowQueue => "row-queue",
            KeeperName::RowQueueSet => "row-queue-set",
        }
    }

    /// Whether it moves the messages of an outbox.
    pub(super) fn moves(self) -> bool {
        matches!(self, KeeperName::OnceboxMoving | KeeperName::OnceboxMovingSet)
    }

    /// The input of its handlers, if it is Oncebox.
    pub(super) fn takes(self) -> Option<Takes> {
        match self {
            KeeperName::Oncebox | KeeperName::OnceboxMoving => Some(Takes::Singles),
            KeeperName::OnceboxSet | KeeperName::OnceboxMovingSet => Some(Takes::Sets),
            KeeperName::OnceboxIdle => Some(Takes::Nothing),
            KeeperName::Milan | KeeperName::MilanInTx | KeeperName::RowQueue | KeeperName::RowQueueSet => {
                None
            }
        }
    }
}

impl fmt::Display for KeeperName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A keeper that accepts messages from callers.
pub(crate) struct Accepting(pub(crate) Arc<dyn Keeper>);

impl Contender for Accepting {
    fn deliver<'a>(&'a self, feed: &'a Feed) -> BoxFuture<'a, Result<Option<Tally>>> {
        async move {
            let Some(body) = feed.next() else { return Ok(None) };
            self.0.accept(body).await?;
            Ok(Some(Tally::DONE))
        }
        .boxed()
    }
}

/// A range in parts of one statement each.
fn chunks(numbers: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = numbers.end;
    (0..).map(move |n| numbers.start + n * CHUNK).take_while(move |&begin| begin < end).map(move |begin| {
        let next = begin + CHUNK;
        begin..next.min(end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_a_range() {
        assert_eq!(chunks(5..2_100).collect::<Vec<_>>(), [5..1_005, 1_005..2_005, 2_005..2_100]);
        assert_eq!(chunks(3..3).count(), 0);
    }
}
