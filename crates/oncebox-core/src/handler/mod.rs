//! Handlers: named functions that take effect once per message.

mod cancellation;
mod erased;
mod extract;
mod function;
mod input;
mod options;
mod returns;
mod state;

use futures_util::future::BoxFuture;

pub(crate) use cancellation::Cancel;
pub use cancellation::Cancellation;
pub(crate) use erased::{Erased, Prepared, erase};
pub use extract::{Attempt, Delivery, EffectId, FromBatch, FromDelivery, Replay};
pub use function::{AsyncFunc, Detached, One, Set};
pub use input::Input;
pub use options::HandlerOptions;
pub(crate) use options::{Detachment, Selectors, Settings};
pub use returns::{IntoReturned, Reply, Returned};
pub(crate) use state::States;
pub use state::{Requirement, State};

use crate::Failure;
use crate::store::Store;

/// A function that handles messages.
///
/// Any async function or closure of this form is one: the message first, then what it wants to know about the
/// delivery, the connection last.
///
/// ```ignore
/// async fn post_to_ledger(order: OrderPaid, Attempt(n): Attempt, db: &mut SqliteConnection) -> Result<(), sqlx::Error>
/// async fn bulk(orders: Vec<OrderPaid>, db: &mut SqliteConnection) -> Result<(), sqlx::Error>
/// async fn send_mail(order: OrderPaid, id: EffectId) -> Result<(), MailError>   // detached: no connection
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler for this store",
    label = "not a handler",
    note = "a handler is `async fn(message, extractors…, &mut Conn) -> ()`, `Reply<T>` or `Result` of these, and is \
            `Clone + Send + Sync + 'static`",
    note = "without a connection it is a detached handler, which runs outside of any transaction",
    note = "the message implements `Message` (or is `Vec<Message>`), the connection is the store's own, e.g. \
            `&mut SqliteConnection` or `&mut PgConnection`",
    note = "extractors are `Attempt`, `Headers`, `State<T>` where `T: Clone`, …; `#[oncebox::debug_handler]` on the function \
            shows which part does not fit",
    note = "closures that use the connection must be async closures: `async |order: OrderPaid, db: &mut PgConnection| …`"
)]
pub trait Handler<S: Store, Marker>: Send + Sync + 'static {
    /// What it takes as its message.
    type Input: Input;

    /// Whether it takes several messages as one set, and fails as one.
    const TAKES_SETS: bool;

    /// Whether it takes no connection, and runs outside of any transaction.
    const IS_DETACHED: bool;

    /// The states that its parameters ask for.
    fn requirements() -> Vec<Requirement>;

    /// Runs it; with a connection, unless it is detached.
    fn call<'t>(
        &'t self,
        messages: Vec<Self::Input>,
        deliveries: &'t [Delivery],
        db: Option<&'t mut S::Conn>,
    ) -> BoxFuture<'t, Result<Vec<Returned>, Failure>>;
}
