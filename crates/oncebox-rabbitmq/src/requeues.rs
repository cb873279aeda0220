//! Deliveries that this process has given back to the queue itself.
//!
//! A quorum queue counts them like those of a process that crashed. Only the memory of this process tells them apart.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::message::Delivered;

/// The maximum number of messages that are remembered.
const CAPACITY: usize = 65_536;

/// How often messages were given back, by what they are known by.
#[derive(Debug, Default)]
pub(crate) struct Requeues(Mutex<HashMap<u64, Count>>);

/// How often one message was given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// After a handler has failed.
    pub(crate) failed: u32,
    /// Before any handler has received it.
    pub(crate) unhandled: u32,
}

impl Count {
    pub(crate) fn total(self) -> u32 {
        self.failed.saturating_add(self.unhandled)
    }
}

impl Requeues {
    /// How often this message was given back.
    pub(crate) fn count(&self, message: &Delivered) -> Count {
        let counts = self.counts();
        if counts.is_empty() {
            Count::default()
        } else {
            counts.get(&fingerprint(message)).copied().unwrap_or_default()
        }
    }

    /// Counts that this message is given back after a handler has failed.
    pub(crate) fn add_failed(&self, message: &Delivered) {
        self.update(message, |count| count.failed = count.failed.saturating_add(1));
    }

    /// Counts that this message is given back unhandled.
    pub(crate) fn add_unhandled(&self, message: &Delivered) {
        self.update(message, |count| count.unhandled = count.unhandled.saturating_add(1));
    }

    fn update(&self, message: &Delivered, update: impl FnOnce(&mut Count)) {
        let mut counts = self.counts();
        if counts.len() >= CAPACITY {
            // Rare: that many messages in retry at the same time. They count from 1 again.
            counts.clear();
        }
        update(counts.entry(fingerprint(message)).or_default());
    }

    /// Forgets a message that leaves the queue.
    pub(crate) fn forget(&self, message: &Delivered) {
        let mut counts = self.counts();
        if !counts.is_empty() {
            counts.remove(&fingerprint(message));
        }
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<u64, Count>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fingerprint(message: &Delivered) -> u64 {
    let mut hash = DefaultHasher::new();
    message.properties.message_id().as_ref().map(ToString::to_string).hash(&mut hash);
    message.body.hash(&mut hash);
    hash.finish()
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;

    use super::*;

    #[test]
    fn messages_are_counted_apart_until_they_leave() {
        let message = |id: &str| Delivered {
            exchange: "".into(),
            routing_key: "q".into(),
            properties: BasicProperties::default().with_message_id(id.into()),
            body: b"{}".to_vec(),
        };
        let requeues = Requeues::default();
        requeues.add_failed(&message("1"));
        requeues.add_failed(&message("1"));
        requeues.add_unhandled(&message("1"));
        requeues.add_unhandled(&message("2"));
        assert_eq!(requeues.count(&message("1")), Count { failed: 2, unhandled: 1 });
        assert_eq!(requeues.count(&message("1")).total(), 3);
        assert_eq!(requeues.count(&message("2")), Count { failed: 0, unhandled: 1 });
        requeues.forget(&message("1"));
        assert_eq!(requeues.count(&message("1")), Count::default());
    }
}
