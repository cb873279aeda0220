//! Units: one handler's work on one message, as it is delivered.
//!
//! A unit passes the gate, where copies in this process wait; shares a transaction with others that wait, or has one of its own;
//! and ends with an outcome.

mod attempts;
mod batch;
mod gate;
mod once;
mod slots;
mod spill;
mod transaction;
mod unit;
mod wait;

use std::sync::Arc;

use attempts::Attempts;
pub(crate) use attempts::BODY_TRANSIENTS_MAX;
use batch::Batching;
use gate::Gate;
pub use once::Once;
pub(crate) use slots::Batches;
pub(crate) use spill::{SpillInto, Spilling, spill_boxed};
pub(crate) use wait::CopyWait;

use crate::inbox::InboxStore;
use crate::inbox::engine::Engine;
use crate::outcome::{Outcome, Rejection};
use crate::policy::KeyReuse;
use crate::store::{Marker, Unit};

/// How a unit ended.
#[derive(Clone, Debug)]
pub(crate) struct UnitEnd {
    pub(crate) outcome: Outcome,
    /// The handler's result, fresh or stored.
    pub(crate) result: Option<Vec<u8>>,
    /// Whether this is another copy's end. A failure was counted and logged there.
    pub(crate) shared: bool,
}

impl UnitEnd {
    /// The end of a unit whose marker was there.
    fn known(unit: &Unit, marker: Marker, key_reuse: KeyReuse) -> Self {
        let reused = matches!((unit.fingerprint, marker.fingerprint), (Some(new), Some(old)) if new != old);
        let outcome = match (reused, key_reuse) {
            (false, _) => Outcome::Duplicate,
            (true, KeyReuse::Skip) => Outcome::KeyReuse,
            (true, KeyReuse::Reject) => Outcome::Rejected(Rejection::KeyReuse),
        };
        Self { outcome, result: marker.result, shared: false }
    }
}

impl From<Outcome> for UnitEnd {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, result: None, shared: false }
    }
}

/// Runs units.
pub(crate) struct Units<S: InboxStore> {
    engine: Arc<Engine<S>>,
    gate: Gate,
    attempts: Arc<Attempts<S>>,
    batching: Arc<Batching<S>>,
    /// Where there is a log.
    spilling: Option<Spilling<S>>,
}

impl<S: InboxStore> Units<S> {
    pub(crate) fn new(engine: Arc<Engine<S>>, spilling: Option<Spilling<S>>) -> Self {
        let attempts = Arc::new(Attempts::new(engine.clone()));
        let batching = Arc::new(Batching::new(engine.clone(), attempts.clone()));
        Self { engine, gate: Gate::default(), attempts, batching, spilling }
    }
}
