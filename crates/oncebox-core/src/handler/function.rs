//! Async functions and closures as handlers.

use futures_util::future::BoxFuture;

use crate::Failure;
use crate::handler::Handler;
use crate::handler::extract::{Delivery, FromBatch, FromDelivery};
use crate::handler::input::Input;
use crate::handler::returns::{IntoReturned, Returned};
use crate::handler::state::Requirement;
use crate::store::Store;

/// The marker type of handlers of one message.
#[derive(Debug)]
pub struct One;

/// The marker type of handlers of a set of messages.
#[derive(Debug)]
pub struct Set;

/// The marker type of handlers of one message that take no connection.
#[derive(Debug)]
pub struct Detached;

/// The items of `Handler` that all kinds of functions share: whether it takes sets, whether it is detached, its extractors, and
/// how it runs.
macro_rules! handler_items {
    (
        $takes_sets:literal, $is_detached:literal; $($A:ident),*;
        |$handler:ident, $messages:ident, $deliveries:ident, $db:ident| $run:block
    ) => {
        type Input = M;
        const TAKES_SETS: bool = $takes_sets;
        const IS_DETACHED: bool = $is_detached;
        const PUBLISHES: bool = O::PUBLISHES;

        fn requirements() -> Vec<Requirement> {
            #[allow(unused_mut, reason = "without extractors there is nothing to add")]
            let mut all = Vec::new();
            $( all.extend($A::requirements()); )*
            all
        }

        fn call<'t>(
            &'t self,
            $messages: Vec<M>,
            $deliveries: &'t [Delivery],
            $db: Option<&'t mut S::Conn>,
        ) -> BoxFuture<'t, Result<Vec<Returned>, Failure>> {
            let $handler = self;
            Box::pin(async move $run)
        }
    };
}

/// Implements handlers with this number of parameters.
///
/// Each number has a wrapper trait of its own. It names the future, because stable Rust has no other way to require `Send`.
/// The tuple `(One, M, …)` makes the implementations distinct: without it, those for all functions `F` would overlap.
macro_rules! arity {
    ($Wrapper:ident; $($A:ident),*) => {
        #[doc(hidden)]
        pub trait $Wrapper<M, $($A,)* C>: FnOnce(M, $($A,)* C) -> <Self as $Wrapper<M, $($A,)* C>>::Fut {
            type Fut: Future<Output = <Self as $Wrapper<M, $($A,)* C>>::Out> + Send;
            type Out;
        }

        impl<F, Fut, M, $($A,)* C> $Wrapper<M, $($A,)* C> for F
        where
            F: FnOnce(M, $($A,)* C) -> Fut,
            Fut: Future + Send,
        {
            type Fut = Fut;
            type Out = Fut::Output;
        }

        #[allow(non_snake_case, unused_variables, reason = "type parameters name the values they type")]
        impl<S, F, M, O, $($A,)*> Handler<S, (One, M, $($A,)* O)> for F
        where
            S: Store,
            M: Input,
            O: IntoReturned,
            $($A: FromDelivery,)*
            // For every lifetime: the engine lends the connection again for each message.
            F: for<'t> $Wrapper<M, $($A,)* &'t mut S::Conn, Out = O> + Clone + Send + Sync + 'static,
        {
            handler_items!(false, false; $($A),*; |handler, messages, deliveries, db| {
                let db = db.ok_or_else(no_connection)?;
                let mut returned = Vec::with_capacity(messages.len());
                // One after the other: they share one connection, which runs one statement at a time.
                for (message, delivery) in messages.into_iter().zip(deliveries) {
                    // The previous run may have left another connection here, which is outside the transaction.
                    if !returned.is_empty() && !S::is_lent(db) {
                        return Err(connection_exchanged());
                    }
                    $( let $A = $A::from_delivery(delivery)?; )*
                    // `FnOnce` on a clone: async closures that borrow their captures do not implement `Fn`.
                    returned.push((handler.clone())(message, $($A,)* &mut *db).await.into_returned()?);
                }
                Ok(returned)
            });
        }

        #[allow(non_snake_case, unused_variables, reason = "type parameters name the values they type")]
        impl<S, F, M, O, $($A,)*> Handler<S, (Set, M, $($A,)* O)> for F
        where
            S: Store,
            M: Input,
            O: IntoReturned,
            $($A: FromBatch,)*
            F: for<'t> $Wrapper<Vec<M>, $($A,)* &'t mut S::Conn, Out = O> + Clone + Send + Sync + 'static,
        {
            handler_items!(true, false; $($A),*; |handler, messages, deliveries, db| {
                let db = db.ok_or_else(no_connection)?;
                let units = messages.len();
                $( let $A = $A::from_batch(deliveries)?; )*
                let returned = (handler.clone())(messages, $($A,)* db).await.into_returned()?;
                // A result is stored with one message's marker, and this one belongs to the whole set.
                if returned.result.is_some() {
                    return Err(Failure::permanent("a set handler cannot return a Reply: return () or a Result"));
                }
                // All messages of the set go with its first one: the set commits as a whole.
                let mut all: Vec<Returned> = (0..units).map(|_| Returned::default()).collect();
                if let Some(first) = all.first_mut() {
                    *first = returned;
                }
                Ok(all)
            });
        }

        #[allow(non_snake_case, unused_variables, reason = "type parameters name the values they type")]
        impl<S, F, Fut, M, O, $($A,)*> Handler<S, (Detached, M, $($A,)* O)> for F
        where
            S: Store,
            M: Input,
            O: IntoReturned,
            $($A: FromDelivery,)*
            F: FnOnce(M, $($A,)*) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output = O> + Send,
        {
            handler_items!(false, true; $($A),*; |handler, messages, deliveries, _db| {
                let mut returned = Vec::with_capacity(messages.len());
                for (message, delivery) in messages.into_iter().zip(deliveries) {
                    $( let $A = $A::from_delivery(delivery)?; )*
                    returned.push((handler.clone())(message, $($A,)*).await.into_returned()?);
                }
                Ok(returned)
            });
        }
    };
}

fn connection_exchanged() -> Failure {
    // Permanent: the same code does the same at every attempt.
    Failure::permanent(
        "the handler replaced its connection or left a nested transaction open: use the connection as it is, and commit or \
         drop nested transactions",
    )
}

fn no_connection() -> Failure {
    Failure::permanent(
        "internal error: the handler takes a connection, but was called without one. Please report it",
    )
}

// `#[debug_handler]` repeats this maximum of five extractors.
arity!(Function0;);
arity!(Function1; A1);
arity!(Function2; A1, A2);
arity!(Function3; A1, A2, A3);
arity!(Function4; A1, A2, A3, A4);
arity!(Function5; A1, A2, A3, A4, A5);

/// An async closure that borrows the connection and returns a future that can be required to be `Send`.
///
/// [`Inbox::once`](crate::Inbox::once) takes such closures. Every matching async closure implements it.
pub trait AsyncFunc<T, R>: AsyncFnOnce(T) -> R + FnOnce(T) -> <Self as AsyncFunc<T, R>>::Fut {
    /// The future that the closure returns.
    type Fut: Future<Output = R>;
}

impl<F, T, Fut, R> AsyncFunc<T, R> for F
where
    F: AsyncFnOnce(T) -> R + FnOnce(T) -> Fut,
    Fut: Future<Output = R>,
{
    type Fut = Fut;
}
