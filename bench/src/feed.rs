//! The deliveries of one measurement.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::message::OrderPaid;

/// The order in which messages arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeedKind {
    /// Each message once, without end.
    Fresh,
    /// Every second delivery is a copy of one that arrived this many deliveries before it.
    HalfDuplicates { lag: u64 },
    /// Each of this many messages once.
    Known { count: u64 },
}

/// Hands out deliveries to all callers.
#[derive(Debug)]
pub(crate) struct Feed {
    order: FeedKind,
    next: AtomicU64,
}

impl Feed {
    pub(crate) fn new(order: FeedKind) -> Feed {
        Feed { order, next: AtomicU64::new(0) }
    }

    /// The body of the next delivery, or `None` when all were handed out.
    pub(crate) fn next(&self) -> Option<Vec<u8>> {
        let delivery = self.next.fetch_add(1, Ordering::Relaxed);
        message_of(self.order, delivery).map(OrderPaid::body)
    }
}

// The number of the message that the n-th delivery carries.
fn message_of(order: FeedKind, delivery: u64) -> Option<u64> {
    match order {
        FeedKind::Fresh => Some(delivery),
        FeedKind::HalfDuplicates { lag } if delivery % 2 == 1 && delivery > lag => {
            // Even numbers are messages that arrive for the first time.
            Some((delivery - lag) & !1)
        }
        FeedKind::HalfDuplicates { .. } => Some(delivery),
        FeedKind::Known { count } => (delivery < count).then_some(delivery),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_second_delivery_is_a_copy_of_an_earlier_one() {
        let order = FeedKind::HalfDuplicates { lag: 128 };
        let mut seen = HashSet::new();
        let copies = (0..10_000).filter(|&n| !seen.insert(message_of(order, n).unwrap())).count();
        assert!((4_900..=5_000).contains(&copies), "{copies} copies");
    }

    #[test]
    fn known_messages_end() {
        let feed = Feed::new(FeedKind::Known { count: 2 });
        assert!(feed.next().is_some() && feed.next().is_some() && feed.next().is_none());
    }
}
