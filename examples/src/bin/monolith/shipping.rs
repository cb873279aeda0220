//! Shipping books a parcel with a carrier that cannot always be reached.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use oncebox::{EffectId, Failure, State};
use sqlx::SqliteConnection;

use crate::OrderPlaced;
use crate::runs::RunCounts;

pub(crate) const HANDLER: &str = "shipping";
pub(crate) const TABLE: &str = "create table parcels (order_id text not null, tracking text not null)";

/// Writes the parcel down, then books it. If booking fails, the row is rolled back with everything else.
///
/// The carrier is outside of the transaction, where a run can be repeated after it was heard: the effect id is
/// the same in every run, for the carrier to recognise.
pub(crate) async fn book_parcel(
    order: OrderPlaced,
    effect: EffectId,
    State(carrier): State<Carrier>,
    State(runs): State<RunCounts>,
    db: &mut SqliteConnection,
) -> Result<(), Failure> {
    runs.count(HANDLER);
    sqlx::query("insert into parcels (order_id, tracking) values (?, ?)")
        .bind(order.order_id.to_string())
        .bind(effect.to_string())
        .execute(db)
        .await?;
    carrier.book(effect)?;
    Ok(())
}

/// The client of a carrier.
#[derive(Clone, Debug)]
pub(crate) struct Carrier {
    failures_to_come: Arc<AtomicU32>,
}

impl Carrier {
    pub(crate) fn that_fails_at_first(times: u32) -> Self {
        Self { failures_to_come: Arc::new(AtomicU32::new(times)) }
    }

    /// Books a parcel under this id; the same id again is the same parcel.
    fn book(&self, _id: EffectId) -> io::Result<()> {
        let next = |left: u32| left.checked_sub(1);
        match self.failures_to_come.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) {
            Ok(_) => Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the carrier does not answer")),
            Err(_none_left) => Ok(()),
        }
    }
}
