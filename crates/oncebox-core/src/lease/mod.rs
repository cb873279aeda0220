//! Stores without a shared transaction: claim, then complete or release.
//!
//! A claim is a lease with a fence, a number that only grows. A completion carries the fence of its claim. If the lease has
//! expired and another caller has claimed the unit, the completion is refused as
//! [`LeaseLost`](crate::ErrorKind::LeaseLost). Effect and marker have no common transaction, so the guarantee is
//! [`Effectively`](crate::Guarantee::Effectively): pass the [`EffectId`](crate::EffectId) to other systems.

mod leased;
mod memory;

use std::time::Duration;

pub use leased::{Lease, LeaseTx, Leased};
pub use memory::{Memory, MemoryStore};

pub use crate::store::Fence;

use crate::store::{Marker, Unit};
use crate::{Error, StoredKey};

/// The result of a claim.
#[derive(Clone, Debug)]
pub enum LeaseClaim {
    /// The caller holds the unit until the lease expires.
    Ours(Fence),
    /// The unit was done before.
    Known(Marker),
    /// Another caller holds a lease that has not expired.
    Held,
}

/// The protocol of a store without a shared transaction.
pub trait Leases: Clone + Send + Sync + 'static {
    /// The store's name in logs and status.
    const NAME: &'static str;

    /// Claims a unit for the duration of a lease.
    fn claim(&self, unit: &Unit, lease: Duration) -> impl Future<Output = Result<LeaseClaim, Error>> + Send;

    /// Marks a unit as done; returns `false` and changes nothing if the lease was lost.
    fn complete(
        &self,
        unit: &Unit,
        fence: Fence,
        result: Option<&[u8]>,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Releases a unit that is not done. A lost lease stays unchanged.
    fn release(&self, unit: &Unit, fence: Fence) -> impl Future<Output = Result<(), Error>> + Send;

    /// Waits until a held unit may be free, or for `max`. This is a hint only.
    fn wait(&self, unit: &Unit, max: Duration) -> impl Future<Output = ()> + Send;

    /// The marker of a unit that is done.
    fn marker(&self, unit: &Unit) -> impl Future<Output = Result<Option<Marker>, Error>> + Send;

    /// Marks units as done that were handled elsewhere, and returns the number of new ones.
    fn import_processed(
        &self,
        handler: &str,
        kind: &str,
        keys: &[StoredKey],
    ) -> impl Future<Output = Result<u64, Error>> + Send;

    /// The store's time, in milliseconds since 1970.
    fn now_ms(&self) -> impl Future<Output = Result<i64, Error>> + Send;

    /// Deletes up to `limit` markers processed before this time, and returns their number.
    fn sweep(&self, before_ms: i64, limit: u32) -> impl Future<Output = Result<u64, Error>> + Send;
}
