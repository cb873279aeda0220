//! Reading only: what support, operators and metrics ask.

use std::time::SystemTime;

use crate::store::{Store, Unit};
use crate::{Error, Fingerprint, Key};

/// How far a marker has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerState {
    /// The handler's effect is committed.
    Done,
    /// The message is known and set apart; the effect is still to come.
    Spilled,
    /// The message is in the log, or was: what `@accept` marks.
    Accepted,
}

impl MarkerState {
    /// The state's name in a database.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Spilled => "spilled",
            Self::Accepted => "accepted",
        }
    }

    /// The state of that name in a database.
    pub fn from_name(name: &str) -> Self {
        match name {
            "done" => Self::Done,
            "accepted" => Self::Accepted,
            _ => Self::Spilled,
        }
    }
}

/// The proof that a handler took effect for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The handler's name.
    pub handler: String,
    /// The message's kind.
    pub kind: String,
    /// The message's key.
    pub key: Key,
    /// The body's fingerprint; `None` for a marker that was imported or claimed without a body.
    pub fingerprint: Option<Fingerprint>,
    /// How far it has come.
    pub state: MarkerState,
    /// When the message arrived.
    pub received_at: SystemTime,
    /// When the handler was run.
    pub processed_at: SystemTime,
    /// The stored result, if the handler gave one.
    pub result: Option<Vec<u8>>,
}

/// Answers questions; never writes.
pub trait Inspect: Store {
    /// The marker of a unit.
    fn marker(&self, unit: &Unit) -> impl Future<Output = Result<Option<Marker>, Error>> + Send {
        async { Ok(self.markers(std::slice::from_ref(unit)).await?.pop().flatten()) }
    }

    /// The markers of several units, in their order; one statement where the store can.
    fn markers(&self, units: &[Unit]) -> impl Future<Output = Result<Vec<Option<Marker>>, Error>> + Send;
}
