//! The traits that a store implements.
//!
//! A store implements one trait per role, in the order of a message's life:
//!
//! | trait | role | needed for |
//! |---|---|---|
//! | [`Store`] | opens and ends transactions | everything |
//! | [`Registry`] | keeps the handlers | everything |
//! | [`Claims`] | decides which transaction runs a message | everything |
//! | [`Inspect`] | reads markers | everything |
//! | [`Upkeep`] | deletes expired markers | everything |
//! | [`Log`] | appends messages and prunes them | stored messages |
//! | [`Work`] | hands messages out and records the outcome | stored messages |
//! | [`Care`] | finds messages that crash processes; has defaults that do nothing | stored messages |
//! | [`Processes`] | keeps heartbeats and leases | stored messages |
//! | [`DeadLetters`], [`Operate`] | carry out the actions of operators | stored messages |
//! | [`Capture`] | keeps messages that a transaction publishes, and moves them to the log | the outbox |
//! | [`Ranges`] | leases lanes to relays, and settles ranges of messages | the outbox |
//! | [`Survey`] | reads the state of handlers and messages | stored messages |
//!
//! A store without transactions that handlers can share implements [`Leases`](crate::lease::Leases) instead and becomes a store
//! through [`Leased`](crate::lease::Leased). Run `oncebox_testing::conformance!` against your own implementation.
//!
//! The rules are in this module and not in the stores. A store carries out plans ([`RegistrationPlan`], [`OperationPlan`], [`ActionPlan`],
//! [`AccountStep`]), reads rows by [`row`], and refuses with [`refusal`]. [`statement`] finds SQL statements by name in files that
//! are compiled in.
//!
//! **Stability.** These traits are the interface between the engine and its own stores. They can change in any minor version,
//! without a period of deprecation. For a store of your own, pin the exact version and run the conformance suite with every
//! update.

mod capture;
mod care;
mod claims;
mod dead_letters;
pub mod doing;
mod failed_attempt;
mod inspect;
mod life;
mod lingering;
mod log;
mod operate;
mod processes;
mod ranges;
pub mod refusal;
mod registration;
mod registry;
mod replay;
pub mod row;
pub mod statement;
mod survey;
mod test_time;
mod upkeep;
mod work;

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

pub use capture::{
    Capture, Captured, MoveLimits, MoveWindow, Moved, OutboxSize, OutboxStatus, WaitingMessage,
    lane_of_captured,
};
pub use care::Care;
pub use claims::{Claimed, Claims, Unit};
pub use dead_letters::{Acted, Action, ActionPlan, AuditEntry, DeadLetter, DeadLetters, MarkerStep, Select};
pub use failed_attempt::FailedAttempt;
pub use inspect::{Inspect, Marker, MarkerState};
pub use life::{Event, LIFE, Stage, Transition};
pub use lingering::Lingering;
pub use log::{Appended, LaneChoice, Log, NewMessage, Place, PruneRange, Pruned, Spill, Spilled};
pub use operate::{Affected, Operate, Operation, OperationEntry, OperationPlan, OperationStep};
pub use processes::{NewProcess, Peer, ProcessId, Processes};
pub use ranges::Ranges;
pub use registration::{
    HandlerPlan, LaneStep, Leftovers, LogLayout, Registration, RegistrationPlan, RegistryState, RowStep,
};
pub use registry::{
    HandlerId, HandlerRow, HandlerState, KnownHandler, LaneCount, Layout, Registry, UnknownName,
};
pub use replay::{ReplayEpoch, ReplayFrom, ReplayLane, Replayed};
pub use survey::{HandlerStatus, MessageState, MessageStatus, Survey, Task, UnhandledKind, Waits};
pub use test_time::TestTime;
pub use upkeep::{LiveTime, Upkeep};
pub use work::{
    Account, AccountStep, Batch, Completion, DueLanes, End, Fence, Progress, StoredMessage, TakeLimits,
    Taker, TaskLimits, Unfinished, Waiting, Work,
};

use crate::Error;
pub use crate::backoff::Retries;

/// The strength of a store's promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// Marker and effect commit in one transaction: exactly one effect.
    Exactly,
    /// No transaction spans marker and effect: a crash between the two can repeat the effect. Writes that are idempotent
    /// under the effect id make it exact.
    Effectively,
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exactly => "exactly once",
            Self::Effectively => "effectively once",
        })
    }
}

/// Time limits of one transaction.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum wait of a claim for another transaction that holds the same key.
    pub lock_timeout: Duration,
    /// The maximum wait of a handler's statement for a lock; `None` leaves that to the database. Batches set it, because
    /// two batches can wait for each other's rows.
    pub body_lock_timeout: Option<Duration>,
    /// The maximum run time of the handlers. The server must end a statement that runs longer.
    pub handler_timeout: Duration,
}

/// The class of an error, which decides what happens to its unit. Stores find it by error codes, never by text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection or the server is lost. A commit in progress may or may not have happened.
    Connection,
    /// The session of this connection is outdated: a plan or a prepared statement of the driver is invalid, as after a schema
    /// change. Another connection works.
    Session,
    /// The disk is full, or no connection is left: an outage for every statement, and the fault of no message.
    Outage,
    /// Another attempt may succeed: deadlock, serialization failure, a busy file.
    Transient,
    /// A lock was not available in time.
    LockTimeout,
    /// A statement exceeded its time limit.
    StatementTimeout,
    /// Any other error: the statement or its caller is at fault.
    Other,
}

/// The failure of a handler's body whose error has a type of the caller, so that stores cannot inspect it.
#[derive(Clone, Copy, Debug)]
pub struct OpaqueError;

impl fmt::Display for OpaqueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a failure of the caller's own type")
    }
}

impl StdError for OpaqueError {}

/// Opens and ends transactions, and lends the connection to handlers.
// Here and in the other traits: `impl Future + Send` and not `async fn`, because the engine spawns these futures, and the
// future of an `async fn` in a trait is not known to be `Send`.
pub trait Store: Clone + Send + Sync + 'static {
    /// The store's name in logs and status.
    const NAME: &'static str;
    /// The strength of the store's promise.
    const GUARANTEE: Guarantee;
    /// The connection that handlers receive. It has no lifetime parameter, so that handlers can be plain async functions.
    type Conn: Send + 'static;
    /// An open transaction. Dropping it rolls back.
    type Tx: Send + 'static;

    /// The maximum number of transactions in flight. If more units arrive at once, they share transactions.
    fn capacity(&self) -> usize;

    /// Checks that the schema has the version that this program needs, and that the settings do not lose acknowledged
    /// messages. Changes nothing.
    fn check(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Opens a transaction. If the caller is dropped at any await point, no transaction stays open. A store may keep warm
    /// connections for this, or transactions that it began ahead: see [`Lingering`].
    fn begin(&self, limits: Limits) -> impl Future<Output = Result<Self::Tx, Error>> + Send;

    /// The connection inside the transaction.
    fn connection(tx: &mut Self::Tx) -> &mut Self::Conn;

    /// Prepares the transaction for handlers: sets the time limits, and reads what [`guard`](Store::guard) compares later. It is
    /// called after the claim, which may have done it already.
    fn arm(&self, tx: &mut Self::Tx) -> impl Future<Output = Result<(), Error>> + Send;

    /// Checks that the transaction is still the engine's and healthy, before the engine writes anything after a handler. If the
    /// handler ignored an SQL error or ended the transaction, this fails with
    /// [`ErrorKind::Transaction`](crate::ErrorKind::Transaction).
    fn guard(&self, tx: &mut Self::Tx) -> impl Future<Output = Result<(), Error>> + Send;

    /// Commits, with the check of [`guard`](Store::guard) right before it, unless that check was already made. An error with
    /// [`Fault::Connection`] means that the outcome is unknown.
    fn commit(&self, tx: Self::Tx) -> impl Future<Output = Result<(), Error>> + Send;

    /// Rolls back; the connection stays in use.
    fn rollback(&self, tx: Self::Tx) -> impl Future<Output = ()> + Send;

    /// Ends a handler that exceeded its time limit: stops its statement on the server and closes the connection.
    // A rollback would have to wait for the handler's statement, which is still running.
    fn abandon(&self, tx: Self::Tx) -> impl Future<Output = ()> + Send;

    /// Reports how a handler's body ended on the transaction's connection. The store decides whether it keeps the connection: one
    /// on which body after body fails is closed. An error that cannot be inspected is [`OpaqueError`].
    // A kept connection carries session state, such as a role or a search path, from one handler to the next.
    fn body_ended(&self, tx: &mut Self::Tx, ended: Result<(), &(dyn StdError + 'static)>) {
        let _ = (tx, ended);
    }

    /// Whether the connection that handlers received is still the transaction's own. A handler can replace it by another one:
    /// then nothing more may run on it. Costs no round trip.
    fn is_lent(conn: &mut Self::Conn) -> bool {
        let _ = conn;
        true
    }

    /// Classifies an error by its chain of causes.
    fn classify(error: &(dyn StdError + 'static)) -> Fault;

    /// Whether an error is about the data of a statement: text that the database cannot encode, a value out of range, a constraint.
    /// The same data fails again on every connection.
    fn is_about_data(error: &(dyn StdError + 'static)) -> bool {
        let _ = error;
        false
    }
}

/// The first result of `read` along the chain of causes; for implementations of [`Store::classify`].
pub fn find_cause<T>(
    error: &(dyn StdError + 'static),
    read: impl Fn(&(dyn StdError + 'static)) -> Option<T>,
) -> Option<T> {
    // Handlers return database errors inside errors of their own, at any depth.
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = read(error) {
            return Some(found);
        }
        next = error.source();
    }
    None
}
