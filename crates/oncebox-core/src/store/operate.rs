//! What operators do with handlers: each action in one transaction with its entry in the audit.

use std::fmt;
use std::time::SystemTime;

use crate::Error;
use crate::store::{Place, Store};

/// From where a handler runs on messages again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayFrom {
    /// From the oldest message that is still there.
    Beginning,
    /// From the first message of each lane that was received at this time or later.
    Time(SystemTime),
    /// From this message on, in its lane only.
    Place(Place),
}

impl fmt::Display for ReplayFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beginning => f.write_str("the beginning"),
            Self::Time(time) => {
                let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                write!(f, "{} ms since 1970", since.as_millis())
            }
            Self::Place(place) => write!(f, "position {} of lane {}", place.pos, place.lane),
        }
    }
}

/// What a replay comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// How many positions the handler goes over again, those of other kinds included.
    pub positions: u64,
    /// How many tasks became waiting messages again.
    pub tasks: u64,
    /// How many dead letters did.
    pub dead: u64,
}

/// What operators may do with handlers. Each waits until nobody works in a transaction of the handler.
pub trait Operate: Store {
    /// Stops a handler, or lets it go on; whether there was one in the other state. One that only handles inline is refused.
    fn pause_handler(
        &self,
        name: &str,
        paused: bool,
        operator: &str,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Moves a handler back: in every lane where it has come further than that, a new epoch begins right before the first message
    /// that is meant. Its tasks and dead letters from there on are absorbed, except those of messages that are for this handler
    /// alone: the lane does not bring these again. `None` if there is no such handler; one that does not read the log is refused.
    fn replay(
        &self,
        name: &str,
        from: ReplayFrom,
        operator: &str,
    ) -> impl Future<Output = Result<Option<Replayed>, Error>> + Send;

    /// Gives a handler another name; the old one stays taken. Whether there was one. A name that is taken is refused, unless it is
    /// one that this very handler had before.
    fn rename_handler(
        &self,
        name: &str,
        new_name: &str,
        operator: &str,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Removes a handler: its tasks and dead letters go, its name stays taken. Markers of what was set apart count as done, so
    /// that they are swept. Whether there was one.
    fn remove_handler(&self, name: &str, operator: &str) -> impl Future<Output = Result<bool, Error>> + Send;
}
