//! Handlers as trait objects, so that one inbox can hold handlers of different messages.

use std::any::Any;
use std::marker::PhantomData;

use futures_util::future::BoxFuture;

use crate::handler::options::{Selector, Selectors};
use crate::handler::{Delivery, Handler, Input, Returned};
use crate::outcome::{Rejection, cause};
use crate::store::Store;
use crate::{Envelope, Failure, Key};

/// A decoded message with its keys.
pub(crate) struct Prepared {
    pub(crate) message: Box<dyn Any + Send>,
    /// The key from the handler's selector, else from the inbox's.
    pub(crate) selected: Option<Key>,
    /// The key from the message's fields.
    // Apart from `selected`, because the key of the envelope ranks between the two.
    pub(crate) own: Option<Key>,
    pub(crate) order_by: Option<Key>,
}

/// A handler without its message type.
// `dyn` needs methods without type parameters, hence `Any` for messages and a boxed future.
pub(crate) trait Erased<S: Store>: Send + Sync {
    /// Decodes a body and reads its keys.
    // Separate from `call`: the claim needs the key, and comes before the run.
    fn prepare(&self, envelope: &Envelope, selectors: &Selectors) -> Result<Prepared, Rejection>;

    /// Whether the handler takes several messages as one set, which succeeds or fails as a whole.
    fn takes_sets(&self) -> bool;

    /// Whether the handler takes no connection.
    fn is_detached(&self) -> bool;

    /// Whether the handler can publish messages.
    fn publishes(&self) -> bool;

    /// Whether the handler has its own key selector.
    fn selects_keys(&self) -> bool;

    /// Runs the handler on messages from `prepare`.
    fn call<'t>(
        &'t self,
        messages: Vec<Box<dyn Any + Send>>,
        deliveries: &'t [Delivery],
        db: Option<&'t mut S::Conn>,
    ) -> BoxFuture<'t, Result<Vec<Returned>, Failure>>;
}

struct Typed<H, Marker, M> {
    handler: H,
    selector: Option<Selector<M>>,
    // A function type: it is `Send` and `Sync` whatever the marker is.
    marker: PhantomData<fn() -> Marker>,
}

pub(crate) fn erase<S, H, Marker>(handler: H, selector: Option<Selector<H::Input>>) -> Box<dyn Erased<S>>
where
    S: Store,
    H: Handler<S, Marker>,
    Marker: 'static,
{
    Box::new(Typed { handler, selector, marker: PhantomData::<fn() -> Marker> })
}

impl<S, H, Marker> Erased<S> for Typed<H, Marker, H::Input>
where
    S: Store,
    H: Handler<S, Marker>,
    Marker: 'static,
{
    fn prepare(&self, envelope: &Envelope, selectors: &Selectors) -> Result<Prepared, Rejection> {
        let message = H::Input::decode(envelope).map_err(|error| Rejection::Undecodable(cause(error)))?;
        let select = |selector: &Selector<H::Input>| selector(&message, envelope.headers());
        let selected =
            self.selector.as_ref().and_then(select).or_else(|| selectors.get::<H::Input>().and_then(select));
        // A rejection, not a retry: the same content has no key at the next delivery either.
        let own = message.own_key().map_err(|error| Rejection::BadKey(cause(error)))?;
        let order_by = message.own_order();
        Ok(Prepared { message: Box::new(message), selected, own, order_by })
    }

    fn takes_sets(&self) -> bool {
        H::TAKES_SETS
    }

    fn is_detached(&self) -> bool {
        H::IS_DETACHED
    }

    fn publishes(&self) -> bool {
        H::PUBLISHES
    }

    fn selects_keys(&self) -> bool {
        self.selector.is_some()
    }

    fn call<'t>(
        &'t self,
        messages: Vec<Box<dyn Any + Send>>,
        deliveries: &'t [Delivery],
        db: Option<&'t mut S::Conn>,
    ) -> BoxFuture<'t, Result<Vec<Returned>, Failure>> {
        // The engine passes back what `prepare` returned, so the types match unless it has a bug.
        let messages: Option<Vec<H::Input>> =
            messages.into_iter().map(|message| message.downcast().ok().map(|message| *message)).collect();
        match messages {
            Some(messages) => self.handler.call(messages, deliveries, db),
            // Permanent: another attempt would meet the same bug.
            None => Box::pin(async {
                Err(Failure::permanent(
                    "internal error: a message of another type reached this handler. Please report it",
                ))
            }),
        }
    }
}
