//! The in-memory store, whose content is lost when the process ends.

use std::collections::HashMap;
use std::collections::hash_map::Entry::Vacant;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;

use crate::lease::{Fence, LeaseClaim, Leased, Leases};
use crate::store::{Marker, MarkerState, TestTime, Unit};
use crate::{Error, Key, StoredKey};

/// A store in the memory of one process, for API endpoints and tests.
///
/// A copy waits for the first one and receives its result. All markers and results are lost when the process ends.
pub type MemoryStore = Leased<Memory>;

impl MemoryStore {
    /// Creates an empty store.
    pub fn in_memory() -> Self {
        Self::new(Memory::default())
    }
}

/// The lease protocol of [`MemoryStore`].
#[derive(Clone, Debug, Default)]
pub struct Memory {
    shared: Arc<MemoryLeases>,
}

#[derive(Debug, Default)]
struct MemoryLeases {
    // A blocking mutex is enough: no lock is held across an `await`.
    table: Mutex<Table>,
    // One for all units: `wait` is only a hint, so waking the waiters of other units is harmless.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Id, LeaseEntry>,
    // One for all units: an entry disappears on release, and its own count would begin again.
    last_fence: Fence,
    /// The time by which tests have moved the clock.
    travelled: Duration,
}

type Id = (String, String, StoredKey);

#[derive(Debug)]
enum LeaseEntry {
    // `ends` is an `Instant`: a jump of the system clock neither prolongs nor ends a lease.
    Leased { fence: Fence, ends: Instant, arrived: SystemTime },
    Done(Marker),
}

impl Memory {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change of the table is a single insert or removal, so a panic leaves it valid.
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TestTime for Memory {
    fn travel(&self, time: Duration) {
        self.table().travelled += time;
        // Leases may have expired by the new time, and callers wait for them by the real clock.
        self.shared.changed.notify_waiters();
    }
}

impl Table {
    fn now(&self) -> Instant {
        Instant::now() + self.travelled
    }

    fn wall_clock(&self) -> SystemTime {
        SystemTime::now() + self.travelled
    }
}

fn id_of(unit: &Unit) -> Id {
    (unit.handler.clone(), unit.kind.clone(), unit.key.clone())
}

fn marker((handler, kind, key): &Id, received_at: SystemTime, processed_at: SystemTime) -> Marker {
    let key = StoredKey::read(key.as_bytes(), key.original().map(Key::as_bytes));
    Marker {
        handler: handler.clone(),
        kind: kind.clone(),
        // Always readable: the key of an id was made by `Key::stored`.
        key: key.unwrap_or_else(|| Key::new([])),
        fingerprint: None,
        state: MarkerState::Done,
        received_at,
        processed_at,
        result: None,
    }
}

fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Leases for Memory {
    const NAME: &'static str = "memory";

    async fn claim(&self, unit: &Unit, lease: Duration) -> Result<LeaseClaim, Error> {
        let mut table = self.table();
        let now = table.now();
        match table.entries.get(&id_of(unit)) {
            Some(LeaseEntry::Done(marker)) => return Ok(LeaseClaim::Known(marker.clone())),
            Some(LeaseEntry::Leased { ends, .. }) if *ends > now => return Ok(LeaseClaim::Held),
            Some(LeaseEntry::Leased { .. }) | None => {}
        }
        table.last_fence.0 += 1;
        let fence = table.last_fence;
        let arrived = table.wall_clock() - unit.waited;
        // An expired lease is replaced. Its holder cannot complete any more, because its fence is not the newest.
        table.entries.insert(id_of(unit), LeaseEntry::Leased { fence, ends: now + lease, arrived });
        Ok(LeaseClaim::Ours(fence))
    }

    async fn complete(&self, unit: &Unit, fence: Fence, result: Option<&[u8]>) -> Result<bool, Error> {
        let mut table = self.table();
        let processed_at = table.wall_clock();
        let id = id_of(unit);
        let Some(LeaseEntry::Leased { fence: held, arrived, .. }) = table.entries.get(&id) else {
            return Ok(false);
        };
        if *held != fence {
            return Ok(false);
        }
        let done = Marker {
            fingerprint: unit.fingerprint,
            result: result.map(<[u8]>::to_vec),
            ..marker(&id, *arrived, processed_at)
        };
        table.entries.insert(id, LeaseEntry::Done(done));
        // Before the notification: tasks that wake up take this lock at once.
        drop(table);
        self.shared.changed.notify_waiters();
        Ok(true)
    }

    async fn release(&self, unit: &Unit, fence: Fence) -> Result<(), Error> {
        let mut table = self.table();
        let id = id_of(unit);
        // With another fence the lease is not ours any more: it expired, and another caller claimed the unit.
        if matches!(table.entries.get(&id), Some(LeaseEntry::Leased { fence: held, .. }) if *held == fence) {
            table.entries.remove(&id);
        }
        drop(table);
        self.shared.changed.notify_waiters();
        Ok(())
    }

    async fn wait(&self, unit: &Unit, max: Duration) {
        let changed = self.shared.changed.notified();
        tokio::pin!(changed);
        // Listen first, look second: otherwise a change between the two would be missed.
        changed.as_mut().enable();
        let ends = match self.table().entries.get(&id_of(unit)) {
            Some(LeaseEntry::Leased { ends, .. }) => *ends,
            _ => return,
        };
        let left = ends.saturating_duration_since(self.table().now());
        // Limited by the lease: its end wakes no waiter.
        let _ = tokio::time::timeout(max.min(left), changed).await;
    }

    async fn marker(&self, unit: &Unit) -> Result<Option<Marker>, Error> {
        Ok(match self.table().entries.get(&id_of(unit)) {
            Some(LeaseEntry::Done(marker)) => Some(marker.clone()),
            _ => None,
        })
    }

    async fn import_processed(&self, handler: &str, kind: &str, keys: &[StoredKey]) -> Result<u64, Error> {
        let mut table = self.table();
        let now = table.wall_clock();
        let mut new = 0;
        for key in keys {
            let id = (handler.to_owned(), kind.to_owned(), key.clone());
            // A lease in progress stays: without its entry, its holder could not complete.
            if let Vacant(entry) = table.entries.entry(id) {
                let done = marker(entry.key(), now, now);
                entry.insert(LeaseEntry::Done(done));
                new += 1;
            }
        }
        Ok(new)
    }

    async fn now_ms(&self) -> Result<i64, Error> {
        Ok(millis(self.table().wall_clock()))
    }

    async fn sweep(&self, before_ms: i64, limit: u32) -> Result<u64, Error> {
        let mut table = self.table();
        // Only done units: a lease ends by itself, and without it a copy would run beside its holder.
        let due: Vec<Id> = table
            .entries
            .iter()
            .filter(
                |(_, entry)| matches!(entry, LeaseEntry::Done(marker) if millis(marker.processed_at) < before_ms),
            )
            .take(limit as usize)
            .map(|(id, _)| id.clone())
            .collect();
        for id in &due {
            table.entries.remove(id);
        }
        Ok(due.len() as u64)
    }
}
