//! Ranges: a relay leases a lane, reads its messages without a transaction, and settles them under the fence of the lease.

use std::future::ready;

use crate::Error;
use crate::store::{Account, Batch, Fence, ProcessId, Progress, Store, TakeLimits, Taker};

/// Leases lanes to processes, for handlers that run outside of transactions and settle whole ranges of messages.
///
/// The defaults are for a store without an outbox, which has no relays.
///
/// A lease ends when its process leaves or is removed, and when the handler is paused, removed, replayed or registered
/// differently. Then nothing that was read under it is settled.
pub trait Ranges: Store {
    /// Leases a lane to a process, under a new fence. A process that has the lease already gets a newer one.
    ///
    /// `None` if another process has it, if the process is not registered, or if the handler is removed, paused or registered
    /// differently from the taker.
    fn lease_lane(
        &self,
        taker: Taker<'_>,
        process: ProcessId,
    ) -> impl Future<Output = Result<Option<Fence>, Error>> + Send {
        let _ = (taker, process);
        ready(Ok(None))
    }

    /// Reads the next published messages of a leased lane, behind `after` or the handler's progress, whichever is further. It locks
    /// nothing. `None` if the lease has ended.
    fn read_range(
        &self,
        taker: Taker<'_>,
        fence: Fence,
        after: i64,
        limits: TakeLimits,
    ) -> impl Future<Output = Result<Option<Batch>, Error>> + Send {
        let _ = (taker, fence, after, limits);
        ready(Ok(None))
    }

    /// Writes the outcome of a range and the progress in one transaction, and returns `true`. If the lease has ended, it writes
    /// nothing and returns `false`.
    fn settle_range(
        &self,
        taker: Taker<'_>,
        fence: Fence,
        account: &Account,
        progress: Option<Progress>,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        let _ = (taker, fence, account, progress);
        ready(Ok(false))
    }

    /// Ends a lease, so that another process can have the lane at once.
    fn release_lane(&self, taker: Taker<'_>, fence: Fence) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = (taker, fence);
        ready(Ok(()))
    }
}
