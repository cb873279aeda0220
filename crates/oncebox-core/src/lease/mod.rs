//! Stores with no transaction to share: claim, then complete or release.
//!
//! A claim is a lease with a fence, a number that only grows. Work is completed with the fence in hand: if the
//! lease ran out and somebody else has claimed since, the completion is refused as
//! [`LeaseLost`](crate::ErrorKind::LeaseLost), never silently ignored. Because nothing spans effect and marker the
//! guarantee is [`Effectively`](crate::Guarantee::Effectively): pass [`EffectId`](crate::EffectId) on.

mod leased;
mod memory;

use std::time::Duration;

pub use leased::{Lease, LeaseTx, Leased};
pub use memory::{Memory, MemoryStore};

use crate::store::{Marker, Unit};
use crate::{Error, StoredKey};

/// Grows with every claim; a completion must carry the one of its claim.
pub type Fence = i64;

/// The answer to a leased claim.
#[derive(Clone, Debug)]
pub enum LeaseClaim {
    /// Ours until the lease ends.
    Ours(Fence),
    /// Done before.
    Known(Marker),
    /// Somebody else's lease has not ended.
    Held,
}

/// The protocol of a store with no transaction to share.
pub trait Leases: Clone + Send + Sync + 'static {
    /// The store's name in logs and status.
    const NAME: &'static str;

    /// Claims a unit for the length of a lease.
    fn claim(&self, unit: &Unit, lease: Duration) -> impl Future<Output = Result<LeaseClaim, Error>> + Send;

    /// Marks a unit as done; `false` if the lease was lost, and then nothing is changed.
    fn complete(
        &self,
        unit: &Unit,
        fence: Fence,
        result: Option<&[u8]>,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Gives a unit back undone. A lost lease is left alone.
    fn release(&self, unit: &Unit, fence: Fence) -> impl Future<Output = Result<(), Error>> + Send;

    /// Returns when a held unit may be free, or after `max`. A hint only.
    fn wait(&self, unit: &Unit, max: Duration) -> impl Future<Output = ()> + Send;

    /// The marker of a unit that is done.
    fn marker(&self, unit: &Unit) -> impl Future<Output = Result<Option<Marker>, Error>> + Send;

    /// Marks units as done that were handled elsewhere; how many were new.
    fn import_processed(
        &self,
        handler: &str,
        kind: &str,
        keys: &[StoredKey],
    ) -> impl Future<Output = Result<u64, Error>> + Send;

    /// The store's time, in milliseconds since 1970.
    fn now_ms(&self) -> impl Future<Output = Result<i64, Error>> + Send;

    /// Deletes at most `limit` markers processed before this time; how many it were.
    fn sweep(&self, before_ms: i64, limit: u32) -> impl Future<Output = Result<u64, Error>> + Send;
}
