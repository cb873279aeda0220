//! The registry: which handlers there are, durably, and where each began.

use std::fmt;

use crate::store::{Registration, Store};
use crate::{DeadHead, Error, Mode};

/// A handler's number in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandlerId(pub i32);

/// Whether a handler is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerState {
    /// It is.
    Active,
    /// An operator has stopped it for a while.
    Paused,
    /// It was removed; its name stays taken.
    Removed,
    /// Only a name that a handler had before; it stays taken.
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

    /// Whether there is a handler, not only a name that stays taken.
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
    /// The name under which it was registered first. It never changes: markers and effect ids are made with it. For a name that
    /// a handler had before, the name that the handler has now.
    pub origin: String,
    /// The kinds that it takes, sorted.
    pub kinds: Vec<String>,
    /// How messages reach it.
    pub mode: Mode,
    /// Whether it takes the messages of an ordering key in their order, and what a dead letter means there.
    pub ordered: Option<DeadHead>,
    /// Whether it is at work.
    pub state: HandlerState,
}

/// A handler's row in the database, before its names are read.
#[derive(Clone, Debug)]
pub struct HandlerRow<'r> {
    /// Its number.
    pub id: i32,
    /// Its name.
    pub name: String,
    /// Its first name; for a name that a handler had before, the name that the handler has now.
    pub origin: String,
    /// The kinds that it takes, sorted.
    pub kinds: Vec<String>,
    /// The name of its mode.
    pub mode: &'r str,
    /// The name of what a dead letter means, if it is ordered.
    pub ordered: Option<&'r str>,
    /// The name of its state.
    pub state: &'r str,
}

impl TryFrom<HandlerRow<'_>> for KnownHandler {
    type Error = UnknownName;

    fn try_from(row: HandlerRow<'_>) -> Result<Self, UnknownName> {
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

/// What the database fixes: the number of lanes, and each handler's number and first name, in the order of the
/// registrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How many lanes the log has; 0 where there is no log yet.
    pub lanes: u16,
    /// The handlers' numbers.
    pub handlers: Vec<HandlerId>,
    /// The names under which they were registered first.
    pub origins: Vec<String>,
}

/// Keeps the handlers' names, modes and kinds.
pub trait Registry: Store {
    /// Registers handlers, each by [`RegistryState::plan`](crate::store::RegistryState::plan); any number of processes may do so at
    /// once. Writes nothing where all of them are known. With `log`, also makes the lanes of the log: as many as asked for, else
    /// [`LaneCount::DEFAULT`]. Without it, all handlers are inline.
    fn register(
        &self,
        log: Option<LaneCount>,
        handlers: &[Registration],
    ) -> impl Future<Output = Result<Layout, Error>> + Send;
}

/// How many lanes a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneCount(pub Option<u16>);

impl LaneCount {
    /// How many a log has whose makers did not say.
    pub const DEFAULT: u16 = 8;

    /// How many a new log gets.
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
