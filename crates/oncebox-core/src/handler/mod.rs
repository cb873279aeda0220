//! Handlers: named functions whose effect happens once per message.

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
pub use returns::{IntoReturned, Publish, Reply, Returned};
pub(crate) use state::States;
pub use state::{Requirement, State};

use crate::Failure;
use crate::store::Store;

/// A function that handles messages.
///
/// It is an async function or closure that takes the message first, then any extractors, and the connection last.
///
/// ```ignore
/// async fn post_to_ledger(order: OrderPaid, Attempt(n): Attempt, db: &mut SqliteConnection) -> Result<(), sqlx::Error>
/// async fn bulk(orders: Vec<OrderPaid>, db: &mut SqliteConnection) -> Result<(), sqlx::Error>
/// async fn send_mail(order: OrderPaid, id: EffectId) -> Result<(), MailError>   // detached: no connection
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler for this store",
    label = "not a handler",
    note = "a handler is `async fn(message, extractors…, &mut Conn) -> ()`, `Reply<T>`, `Publish<M>` or `Result` of these, and \
            is `Clone + Send + Sync + 'static`",
    note = "without a connection it is a detached handler, which runs outside of any transaction",
    note = "the message implements `Message` (or is `Vec<Message>`), the connection is the store's own, e.g. \
            `&mut SqliteConnection` or `&mut PgConnection`",
    note = "extractors are `Attempt`, `Headers`, `State<T>` where `T: Clone`, …; `#[oncebox::debug_handler]` on the function \
            shows which part does not fit",
    note = "closures that use the connection must be async closures: `async |order: OrderPaid, db: &mut PgConnection| …`"
)]
pub trait Handler<S: Store, Marker>: Send + Sync + 'static {
    /// The type of the message parameter.
    type Input: Input;

    /// Whether the handler takes several messages as one set, which succeeds or fails as a whole.
    const TAKES_SETS: bool;

    /// Whether the handler takes no connection and runs outside any transaction.
    const IS_DETACHED: bool;

    /// Whether the handler can publish messages by its return value.
    const PUBLISHES: bool = false;

    /// The states that the handler's parameters need.
    fn requirements() -> Vec<Requirement>;

    /// Runs the handler, with a connection unless it is detached.
    // Boxed: the future's type differs for each lifetime of the connection, and the inbox stores handlers as `dyn` anyway.
    fn call<'t>(
        &'t self,
        messages: Vec<Self::Input>,
        deliveries: &'t [Delivery],
        db: Option<&'t mut S::Conn>,
    ) -> BoxFuture<'t, Result<Vec<Returned>, Failure>>;
}
