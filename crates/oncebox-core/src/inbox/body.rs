//! Running the body of a handler: the same limits for every way in which a message reaches it.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

use crate::handler::{Delivery, Returned};
use crate::inbox::InboxStore;
use crate::inbox::engine::Engine;
use crate::inbox::registered::Registered;
use crate::{Error, ErrorKind, Failure};

/// The server ends a statement first, so that the handler sees the reason; the process steps in this much later.
const TIMEOUT_GRACE: Duration = Duration::from_millis(250);

/// How the body of a handler ended.
#[derive(Debug)]
pub(crate) enum BodyEnd {
    /// With a return value for each message.
    Returned(Vec<Returned>),
    /// With a failure, judged by the handler's own rules. A panic is one.
    Failed(Failure),
    /// With something else in the place of the transaction that it was lent.
    Broken(Error),
    /// Not at all within its time. The state of its connection is unknown.
    TimedOut,
}

/// Why a future did not end by itself.
pub(crate) enum Stopped {
    Panicked(Box<dyn Any + Send>),
    TimedOut,
}

impl<S: InboxStore> Engine<S> {
    /// The maximum duration of a handler's body.
    pub(crate) fn handler_timeout(&self, handler: &Registered<S>) -> Duration {
        handler.settings.timeout.unwrap_or(self.settings.handler_timeout)
    }

    /// Runs a handler's body on the connection of a transaction.
    pub(crate) async fn run_in(
        &self,
        tx: &mut S::Tx,
        handler: &Registered<S>,
        messages: Vec<Box<dyn Any + Send>>,
        deliveries: &[Delivery],
    ) -> BodyEnd {
        let limit = self.handler_timeout(handler).saturating_add(TIMEOUT_GRACE);
        let body = handler.handler.call(messages, deliveries, Some(S::connection(tx)));
        let ran = self.within(limit, body).await;
        // Of a body that did not end by itself nothing is known about the connection.
        if let Ok(ended) = &ran {
            match ended {
                Ok(_) => self.store.body_ended(tx, Ok(())),
                Err(failure) => self.store.body_ended(tx, Err(failure.error())),
            }
        }
        match body_end(handler, ran, deliveries.len()) {
            BodyEnd::Returned(_) if !S::is_lent(S::connection(tx)) => BodyEnd::Broken(not_lent()),
            end => end,
        }
    }

    /// Runs the body of a detached handler, outside of any transaction.
    pub(crate) async fn run_detached(
        &self,
        handler: &Registered<S>,
        messages: Vec<Box<dyn Any + Send>>,
        deliveries: &[Delivery],
    ) -> BodyEnd {
        let body = handler.handler.call(messages, deliveries, None);
        let ran = self.within(self.handler_timeout(handler), body).await;
        body_end(handler, ran, deliveries.len())
    }

    /// Runs the closure of `once` on the connection that it was lent.
    pub(crate) async fn run_closure<T>(&self, body: impl Future<Output = T>) -> Result<T, Stopped> {
        self.within(self.settings.handler_timeout.saturating_add(TIMEOUT_GRACE), body).await
    }

    /// Runs a future as a part of this inbox, no longer than `limit`, with panics caught.
    async fn within<T>(&self, limit: Duration, body: impl Future<Output = T>) -> Result<T, Stopped> {
        let body = self.inside(AssertUnwindSafe(body).catch_unwind());
        match tokio::time::timeout(limit, body).await {
            Ok(Ok(ended)) => Ok(ended),
            Ok(Err(panic)) => Err(Stopped::Panicked(panic)),
            Err(_elapsed) => Err(Stopped::TimedOut),
        }
    }
}

fn body_end<S: InboxStore>(
    handler: &Registered<S>,
    ran: Result<Result<Vec<Returned>, Failure>, Stopped>,
    expected: usize,
) -> BodyEnd {
    match ran {
        Ok(Ok(returned)) if returned.len() == expected => BodyEnd::Returned(returned),
        Ok(Ok(_)) => BodyEnd::Failed("the handler did not return a value for every message".into()),
        Ok(Err(failure)) => BodyEnd::Failed(handler.settings.judge(failure)),
        Err(Stopped::Panicked(panic)) => BodyEnd::Failed(panicked(&*panic)),
        Err(Stopped::TimedOut) => BodyEnd::TimedOut,
    }
}

/// A body that ran for too long, as a failure.
pub(crate) fn timed_out(limit: Duration) -> Failure {
    Failure::from(format!("the handler ran longer than {limit:?}"))
}

/// A panic as a failure.
fn panicked(panic: &(dyn Any + Send)) -> Failure {
    Failure::from(format!("the handler panicked: {}", panic_text(panic)))
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// The next handler would write outside of the transaction.
fn not_lent() -> Error {
    Error::new(
        ErrorKind::Transaction,
        "the handler left a nested transaction open, or put another connection in the place of the one that it was lent",
    )
}
