//! Units: one handler's work on one message, inline.
//!
//! A unit passes the gate, where copies in this process wait. It shares a transaction with other waiting units, or has one of its
//! own. It ends with an outcome.

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

/// The end of a unit.
#[derive(Clone, Debug)]
pub(crate) struct UnitEnd {
    pub(crate) outcome: Outcome,
    /// The handler's result, new or from the marker.
    pub(crate) result: Option<Vec<u8>>,
    /// Whether this is the end of another copy, which has counted and logged a failure already.
    pub(crate) shared: bool,
}

impl UnitEnd {
    /// The end of a unit whose marker exists.
    fn known(unit: &Unit, marker: Marker, key_reuse: KeyReuse) -> Self {
        // Imported markers and manual claims have no fingerprint, so their key cannot be checked for reuse.
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

/// Runs units inline.
pub(crate) struct Units<S: InboxStore> {
    engine: Arc<Engine<S>>,
    gate: Gate,
    attempts: Arc<Attempts<S>>,
    batching: Arc<Batching<S>>,
    /// Moves messages to the log; `None` without a log.
    spilling: Option<Spilling<S>>,
}

impl<S: InboxStore> Units<S> {
    pub(crate) fn new(engine: Arc<Engine<S>>, spilling: Option<Spilling<S>>) -> Self {
        let attempts = Arc::new(Attempts::new(engine.clone()));
        let batching = Arc::new(Batching::new(engine.clone(), attempts.clone()));
        Self { engine, gate: Gate::default(), attempts, batching, spilling }
    }
}
