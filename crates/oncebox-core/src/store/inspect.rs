//! Reads markers for support, operators and metrics.

use std::time::SystemTime;

use crate::store::{Store, Unit};
use crate::{Error, Fingerprint, Key};

/// The state of a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerState {
    /// The handler's effect is committed.
    Done,
    /// Known and not done: the message is in the log, and its effect is still to come.
    Spilled,
    /// The message was accepted into the log. Only markers of the reserved handler `@accept` have this state.
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
    /// The state.
    pub state: MarkerState,
    /// The time at which the message arrived.
    pub received_at: SystemTime,
    /// The time at which the handler ran.
    pub processed_at: SystemTime,
    /// The stored result, if the handler returned one.
    pub result: Option<Vec<u8>>,
}

/// Reads markers; never writes.
pub trait Inspect: Store {
    /// The marker of a unit.
    fn marker(&self, unit: &Unit) -> impl Future<Output = Result<Option<Marker>, Error>> + Send {
        async { Ok(self.markers(std::slice::from_ref(unit)).await?.pop().flatten()) }
    }

    /// The markers of several units, in their order; one statement where the store can.
    fn markers(&self, units: &[Unit]) -> impl Future<Output = Result<Vec<Option<Marker>>, Error>> + Send;
}
