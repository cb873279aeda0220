//! Plain async functions and closures as handlers.

use futures_util::future::BoxFuture;

use crate::Failure;
use crate::handler::Handler;
use crate::handler::extract::{Delivery, FromBatch, FromDelivery};
use crate::handler::input::Input;
use crate::handler::returns::{IntoReturned, Returned};
use crate::handler::state::Requirement;
use crate::store::Store;

/// Marks a handler of one message.
#[derive(Debug)]
pub struct One;

/// Marks a handler of a set of messages.
#[derive(Debug)]
pub struct Set;

/// Marks a handler of one message that takes no connection.
#[derive(Debug)]
pub struct Detached;

/// One wrapper trait per number of parameters: naming the future lets it be bounded `Send` on stable Rust.
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
            F: for<'t> $Wrapper<M, $($A,)* &'t mut S::Conn, Out = O> + Clone + Send + Sync + 'static,
        {
            type Input = M;
            const TAKES_SETS: bool = false;
            const IS_DETACHED: bool = false;

            fn requirements() -> Vec<Requirement> {
                #[allow(unused_mut, reason = "without extractors there is nothing to add")]
                let mut all = Vec::new();
                $( all.extend($A::requirements()); )*
                all
            }

            fn call<'t>(
                &'t self,
                messages: Vec<M>,
                deliveries: &'t [Delivery],
                db: Option<&'t mut S::Conn>,
            ) -> BoxFuture<'t, Result<Vec<Returned>, Failure>> {
                Box::pin(async move {
                    let db = db.ok_or_else(no_connection)?;
                    let mut returned = Vec::with_capacity(messages.len());
                    for (message, delivery) in messages.into_iter().zip(deliveries) {
                        // The one before may have left another connection here, outside of the transaction.
                        if !returned.is_empty() && !S::is_lent(db) {
                            return Err(connection_exchanged());
                        }
                        $( let $A = $A::from_delivery(delivery)?; )*
                        returned.push((self.clone())(message, $($A,)* &mut *db).await.into_returned()?);
                    }
                    Ok(returned)
                })
            }
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
            type Input = M;
            const TAKES_SETS: bool = true;
            const IS_DETACHED: bool = false;

            fn requirements() -> Vec<Requirement> {
                #[allow(unused_mut, reason = "without extractors there is nothing to add")]
                let mut all = Vec::new();
                $( all.extend($A::requirements()); )*
                all
            }

            fn call<'t>(
                &'t self,
                messages: Vec<M>,
                deliveries: &'t [Delivery],
                db: Option<&'t mut S::Conn>,
            ) -> BoxFuture<'t, Result<Vec<Returned>, Failure>> {
                Box::pin(async move {
                    let db = db.ok_or_else(no_connection)?;
                    let units = messages.len();
                    $( let $A = $A::from_batch(deliveries)?; )*
                    let returned = (self.clone())(messages, $($A,)* db).await.into_returned()?;
                    if returned.result.is_some() {
                        return Err(Failure::permanent("a set handler cannot give a Reply: it has many messages"));
                    }
                    Ok((0..units).map(|_| Returned::default()).collect())
                })
            }
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
            type Input = M;
            const TAKES_SETS: bool = false;
            const IS_DETACHED: bool = true;

            fn requirements() -> Vec<Requirement> {
                #[allow(unused_mut, reason = "without extractors there is nothing to add")]
                let mut all = Vec::new();
                $( all.extend($A::requirements()); )*
                all
            }

            fn call<'t>(
                &'t self,
                messages: Vec<M>,
                deliveries: &'t [Delivery],
                _db: Option<&'t mut S::Conn>,
            ) -> BoxFuture<'t, Result<Vec<Returned>, Failure>> {
                Box::pin(async move {
                    let mut returned = Vec::with_capacity(messages.len());
                    for (message, delivery) in messages.into_iter().zip(deliveries) {
                        $( let $A = $A::from_delivery(delivery)?; )*
                        returned.push((self.clone())(message, $($A,)*).await.into_returned()?);
                    }
                    Ok(returned)
                })
            }
        }
    };
}

fn connection_exchanged() -> Failure {
    Failure::permanent(
        "a handler put another connection in the place of the one that it was lent, or left a nested transaction open",
    )
}

fn no_connection() -> Failure {
    Failure::permanent("a handler that takes a connection was run without one")
}

arity!(Function0;);
arity!(Function1; A1);
arity!(Function2; A1, A2);
arity!(Function3; A1, A2, A3);
arity!(Function4; A1, A2, A3, A4);
arity!(Function5; A1, A2, A3, A4, A5);

/// The closure level: an async closure that borrows the connection, with a future that is `Send`.
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
