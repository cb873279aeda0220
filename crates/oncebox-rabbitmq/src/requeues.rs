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
pub(crate) struct Requeues(Mutex<HashMap<u64, u32>>);

impl Requeues {
    /// How often this message was given back.
    pub(crate) fn count(&self, message: &Delivered) -> u32 {
        self.counts().get(&fingerprint(message)).copied().unwrap_or(0)
    }

    /// Counts that this message is given back.
    pub(crate) fn add(&self, message: &Delivered) {
        let mut counts = self.counts();
        if counts.len() >= CAPACITY {
            // Rare: so many different messages in retry. They count from 1 again.
            counts.clear();
        }
        let count = counts.entry(fingerprint(message)).or_default();
        *count = count.saturating_add(1);
    }

    /// Forgets a message that leaves the queue.
    pub(crate) fn forget(&self, message: &Delivered) {
        let mut counts = self.counts();
        if !counts.is_empty() {
            counts.remove(&fingerprint(message));
        }
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<u64, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fingerprint(message: &Delivered) -> u64 {
    let mut hash = DefaultHasher::new();
    message.properties.message_id().as_ref().map(ToString::to_string).hash(&mut hash);
    message.body.hash(&mut hash);
    hash.finish()
}
