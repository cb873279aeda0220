//! The seam that stores implement.
//!
//! A store implements one trait per role, in the order of a message's life:
//!
//! | trait | role | needed for |
//! |---|---|---|
//! | [`Store`] | opens and ends transactions | everything |
//! | [`Registry`] | keeps the handlers | everything |
//! | [`Claims`] | decides who runs a message | everything |
//! | [`Inspect`] | reads markers | everything |
//! | [`Upkeep`] | deletes what expired | everything |
//! | [`Log`] | appends messages and prunes them | stored messages |
//! | [`Work`] | hands messages out and records the outcome | stored messages |
//! | [`Care`] | finds messages that crash processes; has defaults that do nothing | stored messages |
//! | [`Processes`] | keeps heartbeats and leases | stored messages |
//! | [`DeadLetters`], [`Operate`] | carry out what operators do | stored messages |
//! | [`Survey`] | reads the state of handlers and messages | stored messages |
//!
//! A store without transactions that handlers can share implements [`Leases`](crate::lease::Leases) instead and becomes a store
//! through [`Leased`](crate::lease::Leased). Run `oncebox_testing::conformance!` against your own implementation.
//!
//! The rules are here and not in the stores: a store carries out plans ([`RegistrationPlan`], [`OperationPlan`], [`ActionPlan`],
//! [`AccountStep`]), reads rows by [`row`], and refuses with [`refusal`]. [`statement`] finds SQL statements by name in files that
//! are compiled in.
//!
//! **Stability.** These traits are how the engine speaks to its own stores. They change with it, in any minor version and without a
//! period of deprecation. A store of your own works: pin the exact version, and run the conformance suite with every update.

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

pub use care::Care;
pub use claims::{Claimed, Claims, Unit};
pub use dead_letters::{Acted, Action, ActionPlan, AuditEntry, DeadLetter, DeadLetters, MarkerStep, Select};
pub use failed_attempt::FailedAttempt;
pub use inspect::{Inspect, Marker, MarkerState};
pub use life::{Event, LIFE, Stage, Transition};
pub use lingering::Lingering;
pub use log::{Appended, LaneChoice, Log, NewMessage, Place, Pruned, Spill, Spilled};
pub use operate::{Affected, Operate, Operation, OperationEntry, OperationPlan, OperationStep};
pub use processes::{NewProcess, Peer, ProcessId, Processes};
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
    Account, AccountStep, Batch, Completion, End, Fence, Look, Progress, SetApart, StoredMessage, TakeLimits,
    Taker, TaskLimits, Waiting, Work,
};

use crate::Error;
pub use crate::backoff::Retries;

/// How strong a store's promise is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// Marker and effect commit in one transaction: exactly one effect.
    Exactly,
    /// Nothing spans marker and effect: a crash between the two can repeat the effect. Idempotent writes
    /// under the deterministic effect id make it exact.
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
    /// How long a claim may wait for another transaction that holds the same key.
    pub lock_timeout: Duration,
    /// How long a statement of the handlers may wait for a lock; `None` leaves that to the database. Batches set it, since
    /// two of them can wait for each other's rows.
    pub body_lock_timeout: Option<Duration>,
    /// How long the handlers may run. The server must end a statement that runs longer.
    pub handler_timeout: Duration,
}

/// What an error means for the unit that met it. Found by error codes, never by text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection or the server is gone; a commit under way may or may not have happened.
    Connection,
    /// The session of this connection is out of date: a plan or a prepared statement that the driver relies on is gone, as after
    /// a schema change. Another connection will do.
    Session,
    /// The store is out of disk or of connections: an outage, whichever statement meets it. No message is to blame.
    Outage,
    /// Another attempt may succeed: deadlock, serialization failure, a busy file.
    Transient,
    /// A lock was not available in time.
    LockTimeout,
    /// A statement ran longer than it may.
    StatementTimeout,
    /// Anything else: the statement or its caller is at fault.
    Other,
}

/// The failure of a body whose error cannot be looked into: it is of the caller's own type.
#[derive(Clone, Copy, Debug)]
pub struct Unseen;

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a failure of the caller's own type")
    }
}

impl StdError for Unseen {}

/// Opens and ends transactions, and lends the connection to handlers.
// Here and in the other traits: `impl Future + Send` and not `async fn`, because the engine spawns these futures, and the
// future of an `async fn` in a trait is not known to be `Send`.
pub trait Store: Clone + Send + Sync + 'static {
    /// The store's name in logs and status.
    const NAME: &'static str;
    /// How strong the store's promise is.
    const GUARANTEE: Guarantee;
    /// What handlers are lent. It has no lifetime parameter, so that handlers can be plain async functions.
    type Conn: Send + 'static;
    /// An open transaction. Dropping it rolls back.
    type Tx: Send + 'static;

    /// How many transactions it can have in flight. Where more units come at once they share transactions.
    fn capacity(&self) -> usize;

    /// Whether the schema is the one that this version needs and the settings keep what is acknowledged.
    /// Changes nothing.
    fn check(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Opens a transaction. The caller may be dropped at any await: nothing is left half open. A store may keep warm connections for
    /// this, or transactions that it began ahead: see [`Lingering`].
    fn begin(&self, limits: Limits) -> impl Future<Output = Result<Self::Tx, Error>> + Send;

    /// The connection inside the transaction.
    fn connection(tx: &mut Self::Tx) -> &mut Self::Conn;

    /// Makes ready for handlers: time limits, and what [`guard`](Store::guard) compares later. Called after the
    /// claim, which may have done it already.
    fn arm(&self, tx: &mut Self::Tx) -> impl Future<Output = Result<(), Error>> + Send;

    /// Proves that the transaction is still ours and healthy, before anything else of ours is written behind a handler. It may
    /// have swallowed an SQL error or ended the transaction itself: then this fails with
    /// [`ErrorKind::Transaction`](crate::ErrorKind::Transaction).
    fn guard(&self, tx: &mut Self::Tx) -> impl Future<Output = Result<(), Error>> + Send;

    /// Commits, with the proof of [`guard`](Store::guard) right before it, unless that was given already. An error with
    /// [`Fault::Connection`] means that the outcome is unknown.
    fn commit(&self, tx: Self::Tx) -> impl Future<Output = Result<(), Error>> + Send;

    /// Rolls back; the connection stays in use.
    fn rollback(&self, tx: Self::Tx) -> impl Future<Output = ()> + Send;

    /// Gives up on a handler that overstayed: ends its statement on the server and closes the connection.
    fn abandon(&self, tx: Self::Tx) -> impl Future<Output = ()> + Send;

    /// A handler's body has ended on the transaction's connection, well or with an error. The store decides whether the connection
    /// is kept: one on which body after body fails is not. An error that cannot be looked into is [`Unseen`].
    fn body_ended(&self, tx: &mut Self::Tx, ended: Result<(), &(dyn StdError + 'static)>) {
        let _ = (tx, ended);
    }

    /// Whether the connection that handlers were lent is still the one of the transaction. A handler can exchange it for another
    /// one: then nothing more may run on it. Costs no round trip.
    fn is_lent(conn: &mut Self::Conn) -> bool {
        let _ = conn;
        true
    }

    /// What an error means, looked up along its chain of causes.
    fn classify(error: &(dyn StdError + 'static)) -> Fault;

    /// Whether an error is about the data of a statement: text that the database cannot encode, a value out of range, a constraint.
    /// The same data will meet it again, on every connection.
    fn is_about_data(error: &(dyn StdError + 'static)) -> bool {
        let _ = error;
        false
    }
}

/// The first cause in the chain that `read` makes something of; for implementations of
/// [`Store::classify`].
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
