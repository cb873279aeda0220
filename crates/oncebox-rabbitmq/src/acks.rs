//! Which acknowledgements to send: one for all deliveries up to a point, where that is right. Pure.

use std::collections::BTreeSet;

/// The deliveries of a channel that are not settled yet, by their tags.
#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    tags: BTreeSet<u64>,
}

/// An acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) tag: u64,
    /// Whether it is one for all unsettled deliveries up to this one.
    pub(crate) is_multiple: bool,
}

impl Unsettled {
    /// Adds a delivery.
    pub(crate) fn delivered(&mut self, tag: u64) {
        self.tags.insert(tag);
    }

    /// Whether a delivery is unsettled.
    pub(crate) fn contains(&self, tag: u64) -> bool {
        self.tags.contains(&tag)
    }

    /// Removes a delivery that is settled otherwise. False if it was settled before.
    pub(crate) fn remove(&mut self, tag: u64) -> bool {
        self.tags.remove(&tag)
    }

    /// Settles deliveries, and returns the acknowledgements that do it. Deliveries that were settled before are left out: the broker
    /// closes a channel that acknowledges one twice.
    pub(crate) fn acks(&mut self, done: &[u64]) -> Vec<Ack> {
        let mut done: BTreeSet<u64> = done.iter().copied().filter(|tag| self.tags.contains(tag)).collect();
        let prefix: Vec<u64> = self.tags.iter().copied().take_while(|tag| done.contains(tag)).collect();
        let mut acks = Vec::new();
        if let (Some(&tag), is_multiple) = (prefix.last(), prefix.len() > 1) {
            acks.push(Ack { tag, is_multiple });
        }
        for tag in prefix {
            self.tags.remove(&tag);
            done.remove(&tag);
        }
        for tag in done {
            self.tags.remove(&tag);
            acks.push(Ack { tag, is_multiple: false });
        }
        acks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(delivered: impl IntoIterator<Item = u64>) -> Unsettled {
        let mut unsettled = Unsettled::default();
        delivered.into_iter().for_each(|tag| unsettled.delivered(tag));
        unsettled
    }

    fn one(tag: u64) -> Ack {
        Ack { tag, is_multiple: false }
    }

    fn up_to(tag: u64) -> Ack {
        Ack { tag, is_multiple: true }
    }

    #[test]
    fn only_the_contiguous_prefix_is_acknowledged_together() {
        assert_eq!(after(1..=5).acks(&[3, 1, 2]), [up_to(3)]);
        assert_eq!(after(1..=5).acks(&[2, 3]), [one(2), one(3)]);
        assert_eq!(after(1..=5).acks(&[1, 2, 4]), [up_to(2), one(4)]);
        assert_eq!(after(1..=5).acks(&[1]), [one(1)]);
        assert_eq!(after(1..=5).acks(&[]), []);
    }

    #[test]
    fn settled_deliveries_make_no_gap_and_are_not_acknowledged_again() {
        let mut unsettled = after(1..=6);
        assert_eq!(unsettled.acks(&[2, 4]), [one(2), one(4)]);
        assert!(unsettled.remove(3));
        assert!(!unsettled.remove(3));
        assert_eq!(unsettled.acks(&[1, 2, 5]), [up_to(5)]);
        assert_eq!(unsettled.acks(&[5, 7]), []);
        assert!(unsettled.contains(6));
        assert_eq!(unsettled.acks(&[6]), [one(6)]);
        assert!(!unsettled.contains(6));
    }
}
