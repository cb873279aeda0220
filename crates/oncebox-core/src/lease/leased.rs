//! A lease protocol as a [`Store`]: its transactions are sets of leases.

use std::error::Error as StdError;
use std::fmt;
use std::time::{Duration, Instant};

use crate::lease::{Fence, LeaseClaim, Leases};
use crate::store::{
    Claimed, Claims, Fault, Guarantee, HandlerId, Inspect, LaneCount, Layout, Limits, LiveTime, Marker,
    Registration, Registry, Store, TestTime, Unit, Upkeep, find_cause,
};
use crate::{EffectId, Error, ErrorKind, StoredKey};

/// The time between a handler's timeout and the end of its lease.
///
/// Because of it, a handler within its timeout never runs at the same time as its successor.
const LEASE_MARGIN: Duration = Duration::from_secs(5);

/// A store on top of a lease protocol.
#[derive(Clone, Debug)]
pub struct Leased<L> {
    leases: L,
}

impl<L: Leases> Leased<L> {
    /// Creates a store on top of this lease protocol.
    pub fn new(leases: L) -> Self {
        Self { leases }
    }

    /// The lease protocol.
    pub fn leases(&self) -> &L {
        &self.leases
    }
}

impl<L: TestTime> TestTime for Leased<L> {
    fn travel(&self, time: Duration) {
        self.leases.travel(time);
    }
}

/// The connection parameter of handlers of a leased store.
#[derive(Debug)]
pub struct Lease {
    held: Vec<HeldLease>,
    limits: Limits,
    ends: Instant,
}

#[derive(Debug)]
struct HeldLease {
    unit: Unit,
    fence: Fence,
    result: Option<Vec<u8>>,
}

impl Lease {
    /// The fences of the claims that this lease covers.
    pub fn fences(&self) -> impl Iterator<Item = Fence> {
        self.held.iter().map(|held| held.fence)
    }

    /// The time until the lease expires.
    pub fn remaining(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }

    /// The effect ids of the claims that this lease covers; pass them to other systems as idempotency keys.
    pub fn effect_ids(&self) -> impl Iterator<Item = EffectId> {
        self.held.iter().filter_map(|held| {
            let unit = &held.unit;
            let key = StoredKey::read(unit.key.as_bytes(), unit.key.original().map(crate::Key::as_bytes))?;
            Some(EffectId::of(&unit.handler, &unit.kind, &key))
        })
    }
}

/// A set of leases that are completed or released together.
pub struct LeaseTx<L: Leases> {
    leases: L,
    lease: Lease,
}

impl<L: Leases> LeaseTx<L> {
    // `LeaseTx` implements `Drop`, so its fields cannot be moved out. An empty list leaves `drop` nothing to release.
    fn take_held(&mut self) -> Vec<HeldLease> {
        std::mem::take(&mut self.lease.held)
    }
}

impl<L: Leases> fmt::Debug for LeaseTx<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lease.fmt(f)
    }
}

impl<L: Leases> Drop for LeaseTx<L> {
    /// Releases the leases of a cancelled caller; without a runtime they expire by themselves.
    fn drop(&mut self) {
        let held = self.take_held();
        if held.is_empty() {
            return;
        }
        // `drop` cannot await.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let leases = self.leases.clone();
            runtime.spawn(async move { release(&leases, held).await });
        }
    }
}

async fn release<L: Leases>(leases: &L, held: Vec<HeldLease>) {
    for held in held {
        if let Err(error) = leases.release(&held.unit, held.fence).await {
            tracing::warn!(%error, "could not release a lease; it expires by itself");
        }
    }
}

/// Another caller holds the lease.
#[derive(Debug)]
struct LeaseHeld;

impl fmt::Display for LeaseHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another caller holds the lease")
    }
}

impl StdError for LeaseHeld {}

impl<L: Leases> Store for Leased<L> {
    const NAME: &'static str = L::NAME;
    const GUARANTEE: Guarantee = Guarantee::Effectively;
    type Conn = Lease;
    type Tx = LeaseTx<L>;

    /// Leases are claimed one by one, so that a shared transaction would save nothing.
    fn capacity(&self) -> usize {
        usize::MAX
    }

    async fn check(&self) -> Result<(), Error> {
        // The cheapest call that shows whether the store responds.
        self.leases.now_ms().await.map(drop)
    }

    async fn begin(&self, limits: Limits) -> Result<Self::Tx, Error> {
        let ends = Instant::now() + limits.handler_timeout;
        Ok(LeaseTx { leases: self.leases.clone(), lease: Lease { held: Vec::new(), limits, ends } })
    }

    fn connection(tx: &mut Self::Tx) -> &mut Lease {
        &mut tx.lease
    }

    async fn arm(&self, _tx: &mut Self::Tx) -> Result<(), Error> {
        Ok(())
    }

    // There is no transaction that a handler could end or break.
    async fn guard(&self, _tx: &mut Self::Tx) -> Result<(), Error> {
        Ok(())
    }

    async fn commit(&self, mut tx: Self::Tx) -> Result<(), Error> {
        let mut held = tx.take_held().into_iter();
        // No transaction spans them: units that are completed before an error stay done.
        while let Some(one) = held.next() {
            let completed = self.leases.complete(&one.unit, one.fence, one.result.as_deref()).await;
            let lost = match completed {
                Ok(true) => continue,
                Ok(false) => Error::new(
                    ErrorKind::LeaseLost,
                    format!(
                        "the lease of handler {:?} expired during its run, and another worker has the message: make \
                         the handler faster or raise handler_timeout",
                        one.unit.handler
                    ),
                ),
                Err(error) => error,
            };
            // Without this, copies of the remaining units would wait until the leases expire.
            release(&self.leases, held.collect()).await;
            return Err(lost);
        }
        Ok(())
    }

    async fn rollback(&self, mut tx: Self::Tx) {
        release(&self.leases, tx.take_held()).await;
    }

    async fn abandon(&self, tx: Self::Tx) {
        // No server runs a statement for the handler that would have to be stopped.
        self.rollback(tx).await;
    }

    fn classify(error: &(dyn StdError + 'static)) -> Fault {
        find_cause(error, |cause| {
            if cause.is::<LeaseHeld>() {
                // The same fault as a claim in a database that waits too long for another copy.
                return Some(Fault::LockTimeout);
            }
            let error = cause.downcast_ref::<Error>()?;
            // Each lease protocol has errors of its own; only the kind shows an outage.
            (error.kind() == ErrorKind::Unavailable).then_some(Fault::Connection)
        })
        .unwrap_or(Fault::Other)
    }
}

impl<L: Leases> Claims for Leased<L> {
    async fn claim(&self, tx: &mut Self::Tx, units: &[Unit]) -> Result<Vec<Claimed>, Error> {
        let mut claimed = Vec::with_capacity(units.len());
        // If a claim fails, the caller's rollback releases the earlier ones, which are in `held` by then.
        for unit in units {
            claimed.push(self.claim_in(&mut tx.lease, unit).await?);
        }
        Ok(claimed)
    }

    async fn claim_in(&self, lease: &mut Lease, unit: &Unit) -> Result<Claimed, Error> {
        let give_up = Instant::now() + lease.limits.lock_timeout;
        // No heartbeat renews this lease, so it must outlast the longest run.
        let length = lease.limits.handler_timeout.saturating_add(LEASE_MARGIN);
        loop {
            match self.leases.claim(unit, length).await? {
                LeaseClaim::Ours(fence) => {
                    lease.held.push(HeldLease { unit: unit.clone(), fence, result: None });
                    lease.ends = Instant::now() + length;
                    return Ok(Claimed::Fresh);
                }
                LeaseClaim::Known(marker) => return Ok(Claimed::Known(marker)),
                LeaseClaim::Held => {
                    let left = give_up.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Error::new(
                            ErrorKind::Busy,
                            "another copy of the message is in flight: try again later",
                        )
                        .with_source(LeaseHeld));
                    }
                    // Only a hint that the unit may be free: the next claim decides.
                    self.leases.wait(unit, left).await;
                }
            }
        }
    }

    // A lease store has no savepoints: it cannot undo a handler's effects, and only releases leases.
    async fn isolate(&self, _tx: &mut Self::Tx) -> Result<(), Error> {
        Ok(())
    }

    async fn keep(&self, _tx: &mut Self::Tx, _next: bool) -> Result<(), Error> {
        Ok(())
    }

    async fn undo(&self, tx: &mut Self::Tx, unit: Option<&Unit>, _next: bool) -> Result<(), Error> {
        let given_back = tx.lease.held.extract_if(.., |held| Some(&held.unit) == unit).collect();
        release(&self.leases, given_back).await;
        Ok(())
    }

    async fn record_results(&self, tx: &mut Self::Tx, results: &[(&Unit, &[u8])]) -> Result<(), Error> {
        for (unit, result) in results {
            match tx.lease.held.iter_mut().find(|held| held.unit == **unit) {
                // Kept until `commit`: one call stores marker and result, so no duplicate misses the result.
                Some(held) => held.result = Some(result.to_vec()),
                None => {
                    let handler = &unit.handler;
                    let message = format!("cannot store a result of handler {handler:?}: no lease is held");
                    return Err(Error::new(ErrorKind::LeaseLost, message));
                }
            }
        }
        Ok(())
    }

    async fn import_processed(&self, handler: &str, kind: &str, keys: &[StoredKey]) -> Result<u64, Error> {
        self.leases.import_processed(handler, kind, keys).await
    }
}

impl<L: Leases> Inspect for Leased<L> {
    async fn marker(&self, unit: &Unit) -> Result<Option<Marker>, Error> {
        self.leases.marker(unit).await
    }

    async fn markers(&self, units: &[Unit]) -> Result<Vec<Option<Marker>>, Error> {
        let mut markers = Vec::with_capacity(units.len());
        for unit in units {
            markers.push(self.leases.marker(unit).await?);
        }
        Ok(markers)
    }
}

/// A leased store keeps no registrations: there is nothing to compare with.
impl<L: Leases> Registry for Leased<L> {
    async fn register(&self, _log: Option<LaneCount>, handlers: &[Registration]) -> Result<Layout, Error> {
        let origins = handlers.iter().map(|handler| handler.name.clone()).collect();
        // The numbers need to differ within this process only.
        let handlers = (1..).map(HandlerId).take(handlers.len()).collect();
        Ok(Layout { lanes: 0, handlers, origins })
    }
}

impl<L: Leases> Upkeep for Leased<L> {
    // No heartbeats: all time is live time here, see `live_time`.
    async fn beat(&self, _tolerance: Duration) -> Result<(), Error> {
        Ok(())
    }

    /// All time counts as live time: results in a cache expire by the clock.
    async fn live_time(&self) -> Result<(Vec<LiveTime>, i64), Error> {
        let now = self.leases.now_ms().await?;
        Ok((vec![LiveTime { from_ms: 0, until_ms: now }], now))
    }

    async fn sweep(&self, before_ms: i64, limit: u32) -> Result<u64, Error> {
        self.leases.sweep(before_ms, limit).await
    }

    async fn forget_live_time(&self, _before_ms: i64) -> Result<(), Error> {
        Ok(())
    }
}
