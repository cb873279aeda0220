//! The registry: the handlers in the database, with their names, modes and kinds.

use std::fmt;
use std::time::Duration;

use crate::store::row::duration_from_ms;
use crate::store::{Registration, Store};
use crate::{DeadHead, Error, Mode};

/// A handler's number in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandlerId(pub i32);

/// The state of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerState {
    /// It takes messages.
    Active,
    /// An operator has paused it.
    Paused,
    /// It was removed; its name stays taken.
    Removed,
    /// A former name of a handler; it stays taken.
    // Kept, so that a program that starts under the old name receives an error with the new one.
    Renamed,
}

impl HandlerState {
    /// The state's name in the database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Removed => "removed",
            Self::Renamed => "renamed",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Active, Self::Paused, Self::Removed, Self::Renamed]
            .into_iter()
            .find(|state| state.name() == name)
    }

    /// Whether a handler exists, and not only a name that stays taken.
    pub const fn is_registered(self) -> bool {
        matches!(self, Self::Active | Self::Paused)
    }
}

/// A handler as the database knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHandler {
    /// Its number.
    pub id: HandlerId,
    /// Its name.
    pub name: String,
    /// The name of its first registration. It never changes, because markers and effect ids contain it. For a former name of a
    /// handler it is the handler's present name.
    pub origin: String,
    /// The kinds that it takes, sorted.
    pub kinds: Vec<String>,
    /// How messages reach it.
    pub mode: Mode,
    /// The policy for dead letters if it is ordered; `None` if it is not.
    // In the database, so that all workers agree: programs with another setting do not run the handler.
    pub ordered: Option<DeadHead>,
    /// Its state.
    pub state: HandlerState,
    /// How long a relay keeps sent messages; `None` for a handler.
    pub keep: Option<Duration>,
}

/// A handler's row in the database, before its names are read.
#[derive(Clone, Debug)]
pub struct HandlerRow<'r> {
    /// Its number.
    pub id: i32,
    /// Its name.
    pub name: String,
    /// The name of its first registration; for a former name of a handler, the handler's present name.
    pub origin: String,
    /// The kinds that it takes, sorted.
    pub kinds: Vec<String>,
    /// The name of its mode.
    pub mode: &'r str,
    /// The name of its policy for dead letters, if it is ordered.
    pub ordered: Option<&'r str>,
    /// The name of its state.
    pub state: &'r str,
    /// How long a relay keeps sent messages.
    pub keep_ms: Option<i64>,
}

impl TryFrom<HandlerRow<'_>> for KnownHandler {
    type Error = UnknownName;

    fn try_from(row: HandlerRow<'_>) -> Result<Self, UnknownName> {
        // A newer program may have written a name that this version does not know.
        let unknown = |what, name: &str| UnknownName { what, name: name.to_owned() };
        let dead_head = |name| DeadHead::from_name(name).ok_or_else(|| unknown("order", name));
        Ok(Self {
            id: HandlerId(row.id),
            name: row.name,
            origin: row.origin,
            kinds: row.kinds,
            mode: Mode::from_name(row.mode).ok_or_else(|| unknown("mode", row.mode))?,
            ordered: row.ordered.map(dead_head).transpose()?,
            state: HandlerState::from_name(row.state).ok_or_else(|| unknown("state", row.state))?,
            keep: row.keep_ms.map(duration_from_ms),
        })
    }
}

/// A name in a handler's row that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    what: &'static str,
    name: String,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a handler has the unknown {} {:?}: update the program", self.what, self.name)
    }
}

impl std::error::Error for UnknownName {}

/// The values that the database decides: the number of lanes, and each handler's number and first name, in the order of the
/// registrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The number of lanes of the log; 0 if there is no log yet.
    pub lanes: u16,
    /// The handlers' numbers.
    pub handlers: Vec<HandlerId>,
    /// The names of their first registrations.
    pub origins: Vec<String>,
}

/// Keeps the handlers' names, modes and kinds.
pub trait Registry: Store {
    /// Registers handlers by [`RegistryState::plan`](crate::store::RegistryState::plan). Any number of processes may do so at
    /// once. Writes nothing if all handlers are known. With `log`, it also creates the lanes of the log; their number is
    /// [`LaneCount::DEFAULT`] if the program does not set it. Without `log`, all handlers are inline.
    fn register(
        &self,
        log: Option<LaneCount>,
        handlers: &[Registration],
    ) -> impl Future<Output = Result<Layout, Error>> + Send;
}

/// The number of lanes that a program requests, if it sets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneCount(pub Option<u16>);

impl LaneCount {
    /// The number of lanes of a log whose program did not set it.
    pub const DEFAULT: u16 = 8;

    /// Refuses a number that a log cannot have.
    pub(crate) fn check(self) -> Result<(), Error> {
        match self.0 {
            Some(lanes) if !(1..=1_024).contains(&lanes) => {
                Err(Error::configuration("lanes: choose a number from 1 to 1024"))
            }
            _ => Ok(()),
        }
    }

    /// The number of lanes of a new log.
    pub fn to_make(self) -> u16 {
        self.0.unwrap_or(Self::DEFAULT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_by_its_names() {
        let row = || HandlerRow {
            id: 7,
            name: "book".into(),
            origin: "ledger".into(),
            kinds: vec!["a".into()],
            mode: "mixed",
            ordered: Some("skip"),
            state: "paused",
            keep_ms: None,
        };
        let known = KnownHandler::try_from(row()).unwrap();
        assert_eq!((known.id, known.mode, known.ordered), (HandlerId(7), Mode::Mixed, Some(DeadHead::Skip)));
        assert_eq!((&*known.name, &*known.origin, known.state), ("book", "ledger", HandlerState::Paused));
        for (row, what) in [
            (HandlerRow { mode: "x", ..row() }, "mode"),
            (HandlerRow { ordered: Some("x"), ..row() }, "order"),
            (HandlerRow { state: "x", ..row() }, "state"),
        ] {
            let unknown = KnownHandler::try_from(row).unwrap_err();
            assert_eq!(
                unknown.to_string(),
                format!("a handler has the unknown {what} \"x\": update the program")
            );
        }
    }
}
