//! Runs the body of a handler, with the same limits in every mode.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

use crate::handler::Settings;
use crate::handler::{Delivery, Returned};
use crate::inbox::InboxStore;
use crate::inbox::engine::Engine;
use crate::inbox::faults::Meaning;
use crate::inbox::registered::Registered;
use crate::outcome::Outcome;
use crate::store::Store;
use crate::{Envelope, Error, ErrorKind, Failure, Headers};

/// Time between the server's timeout and the process's own. The server ends a statement first, so that the handler sees
/// the reason.
const TIMEOUT_GRACE: Duration = Duration::from_millis(250);

/// The header beside `traceparent`, for a tracing system's own data.
const TRACESTATE: &str = "tracestate";

/// Why the body of a handler failed, or a statement of the inbox after it.
#[derive(Debug)]
pub(crate) enum BodyFailure {
    /// The handler failed or panicked. Running it again immediately would fail in the same way.
    Failed(Failure),
    /// The handler broke the transaction that it received.
    Broken(Error),
    /// The handler exceeded this time limit. The state of its connection is unknown.
    TimedOut(Duration),
    /// The transaction conflicted with others: a deadlock, a serialization failure or a lock timeout.
    Contended(Failure),
    /// The session of the connection is out of date. Another connection works.
    Session(Failure),
    /// A connection was lost: the transaction's own, or another one that the handler uses.
    Lost(Failure),
    /// The store has an outage. No message caused it.
    Outage(Failure),
}

impl BodyFailure {
    /// Judges an error of one of the inbox's own statements after a body.
    pub(crate) fn behind<S: Store>(error: Error) -> Self {
        match Meaning::of::<S>(&error) {
            Meaning::Broken => Self::Broken(error),
            meaning => Self::with(meaning, error.into()),
        }
    }

    fn with(meaning: Meaning, failure: Failure) -> Self {
        match meaning {
            Meaning::Contended => Self::Contended(failure),
            Meaning::Session => Self::Session(failure),
            Meaning::Lost => Self::Lost(failure),
            Meaning::Outage => Self::Outage(failure),
            Meaning::Broken | Meaning::Failed => Self::Failed(failure),
        }
    }

    /// The outcome of the delivery, if the body does not run again now.
    pub(crate) fn outcome(self) -> Outcome {
        match self {
            Self::Failed(failure)
            | Self::Contended(failure)
            | Self::Session(failure)
            | Self::Lost(failure)
            | Self::Outage(failure) => Outcome::failed(failure),
            Self::Broken(error) => Outcome::broken(error),
            Self::TimedOut(limit) => Outcome::failed(timed_out(limit)),
        }
    }
}

/// Why a future did not return.
pub(crate) enum BodyStopped {
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
    ) -> Result<Vec<Returned>, BodyFailure> {
        let limit = self.handler_timeout(handler);
        let body = handler.handler.call(messages, deliveries, Some(S::connection(tx)));
        // The grace lets the server's own timeout come first: its error names the statement.
        let ran = self.within(limit.saturating_add(TIMEOUT_GRACE), body).await;
        // After a panic or a timeout the state of the connection is unknown, so the store must not use it.
        if let Ok(ended) = &ran {
            match ended {
                Ok(_) => self.store.body_ended(tx, Ok(())),
                Err(failure) => self.store.body_ended(tx, Err(failure.error())),
            }
        }
        let mut returned = judge::<S>(&handler.settings, ran, deliveries.len(), limit)?;
        continue_traces(deliveries, &mut returned);
        if !S::is_lent(S::connection(tx)) {
            return Err(BodyFailure::Broken(not_lent()));
        }
        self.publish(tx, &mut returned).await?;
        Ok(returned)
    }

    /// Writes the messages that handlers returned to the outbox, in their transaction.
    async fn publish(&self, tx: &mut S::Tx, returned: &mut [Returned]) -> Result<(), BodyFailure> {
        let Some(outbox) = &self.outbox else { return Ok(()) };
        // Permanent: another attempt returns the same message.
        let captured =
            self.to_capture(returned).map_err(|error| BodyFailure::Failed(Failure::permanent(error)))?;
        if captured.is_empty() {
            return Ok(());
        }
        outbox.capture_in(tx, &captured).await.map_err(BodyFailure::behind::<S>)
    }

    /// Runs the body of a detached handler, outside of any transaction.
    pub(crate) async fn run_detached(
        &self,
        handler: &Registered<S>,
        messages: Vec<Box<dyn Any + Send>>,
        deliveries: &[Delivery],
    ) -> Result<Vec<Returned>, BodyFailure> {
        let limit = self.handler_timeout(handler);
        let body = handler.handler.call(messages, deliveries, None);
        // No grace: there is no statement that a server could end first.
        let ran = self.within(limit, body).await;
        let mut returned = judge::<S>(&handler.settings, ran, deliveries.len(), limit)?;
        continue_traces(deliveries, &mut returned);
        Ok(returned)
    }

    /// Runs the closure of `once` on the connection of its transaction.
    pub(crate) async fn run_closure<T>(&self, body: impl Future<Output = T>) -> Result<T, BodyStopped> {
        self.within(self.settings.handler_timeout.saturating_add(TIMEOUT_GRACE), body).await
    }

    /// Runs a future inside this inbox, with a time limit, and catches panics.
    async fn within<T>(&self, limit: Duration, body: impl Future<Output = T>) -> Result<T, BodyStopped> {
        let body = self.inside(AssertUnwindSafe(body).catch_unwind());
        match tokio::time::timeout(limit, body).await {
            Ok(Ok(ended)) => Ok(ended),
            Ok(Err(panic)) => Err(BodyStopped::Panicked(panic)),
            Err(_elapsed) => Err(BodyStopped::TimedOut),
        }
    }
}

/// Lets published messages continue the trace of the message that caused them, unless the handler has set one.
fn continue_traces(deliveries: &[Delivery], returned: &mut [Returned]) {
    for (delivery, returned) in deliveries.iter().zip(returned) {
        let received = delivery.envelope.headers();
        let Some(parent) = received.get(Headers::TRACEPARENT) else { continue };
        let untraced = |envelope: &&mut Envelope| envelope.headers.get(Headers::TRACEPARENT).is_none();
        for envelope in returned.published.iter_mut().filter(untraced) {
            envelope.headers.append(Headers::TRACEPARENT, parent);
            if let Some(state) = received.get(TRACESTATE) {
                envelope.headers.set(TRACESTATE, state);
            }
        }
    }
}

/// Judges the end of a body: first by the handler's own rules, then by the store's classification of the error. This is the
/// only place that does so, so that every mode has the same rules.
fn judge<S: Store>(
    settings: &Settings,
    ran: Result<Result<Vec<Returned>, Failure>, BodyStopped>,
    expected: usize,
    limit: Duration,
) -> Result<Vec<Returned>, BodyFailure> {
    match ran {
        Ok(Ok(returned)) if returned.len() == expected => Ok(returned),
        Ok(Ok(returned)) => {
            let count = returned.len();
            let text =
                format!("the handler returned {count} values for {expected} messages: return one for each");
            Err(BodyFailure::Failed(text.into()))
        }
        Ok(Err(failure)) => {
            // The handler's own rules come first: it may know that a transient error is permanent.
            let failure = settings.judge(failure);
            Err(BodyFailure::with(Meaning::of_failure::<S>(&failure), failure))
        }
        Err(BodyStopped::Panicked(panic)) => Err(BodyFailure::Failed(panicked(&*panic))),
        Err(BodyStopped::TimedOut) => Err(BodyFailure::TimedOut(limit)),
    }
}

/// The failure of a body that exceeded its time limit.
pub(crate) fn timed_out(limit: Duration) -> Failure {
    Failure::from(format!("the handler ran longer than {limit:?}"))
}

/// The failure of a body that panicked.
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

/// The error of a handler that returned without the connection of the transaction. The next handler would write outside of it.
fn not_lent() -> Error {
    Error::new(
        ErrorKind::Transaction,
        "the handler left a nested transaction open, or put another connection in the place of the one that it received",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Lease, MemoryStore};
    use crate::{Envelope, Inbox};

    type BodyResult = Result<Result<Vec<Returned>, Failure>, BodyStopped>;

    const LIMIT: Duration = Duration::from_secs(7);

    /// The error that the in-memory store classifies as a lost connection.
    fn lost() -> Error {
        Error::new(ErrorKind::Unavailable, "gone")
    }

    fn returned(count: usize) -> BodyResult {
        Ok(Ok((0..count).map(|_| Returned::default()).collect()))
    }

    #[test]
    fn every_end_of_a_body_has_one_judgement() {
        let settings = Settings::default();
        let table: Vec<(BodyResult, &str)> = vec![
            (returned(2), "returned"),
            (returned(1), "Failed: the handler returned 1 values for 2 messages: return one for each"),
            (returned(3), "Failed: the handler returned 3 values for 2 messages: return one for each"),
            (Ok(Err("no stock".into())), "Failed: no stock"),
            (Ok(Err(lost().into())), "Lost: gone"),
            (Ok(Err(Failure::permanent(lost()))), "Failed: gone"),
            (Ok(Err(Failure::after(LIMIT, lost()))), "Failed: gone"),
            (Err(BodyStopped::Panicked(Box::new("a text"))), "Failed: the handler panicked: a text"),
            (
                Err(BodyStopped::Panicked(Box::new("a string".to_owned()))),
                "Failed: the handler panicked: a string",
            ),
            (Err(BodyStopped::Panicked(Box::new(7))), "Failed: the handler panicked: no message"),
            (Err(BodyStopped::TimedOut), "TimedOut: 7s"),
        ];
        for (ran, expected) in table {
            let judged = match judge::<MemoryStore>(&settings, ran, 2, LIMIT) {
                Ok(_) => "returned".to_owned(),
                Err(BodyFailure::Failed(failure)) => format!("Failed: {failure}"),
                Err(BodyFailure::Lost(failure)) => format!("Lost: {failure}"),
                Err(BodyFailure::TimedOut(limit)) => format!("TimedOut: {limit:?}"),
                Err(other) => format!("{other:?}"),
            };
            assert_eq!(judged, expected);
        }
    }

    #[test]
    fn every_meaning_of_an_error_has_its_place() {
        for (meaning, expected) in [
            (Meaning::Broken, "Failed"),
            (Meaning::Contended, "Contended"),
            (Meaning::Session, "Session"),
            (Meaning::Lost, "Lost"),
            (Meaning::Outage, "Outage"),
            (Meaning::Failed, "Failed"),
        ] {
            let judged = format!("{:?}", BodyFailure::with(meaning, "x".into()));
            assert!(judged.starts_with(expected), "{meaning:?}: {judged}");
        }
        let broken = Error::new(ErrorKind::Transaction, "the handler ran COMMIT");
        assert!(matches!(BodyFailure::behind::<MemoryStore>(broken), BodyFailure::Broken(_)));
        assert!(matches!(BodyFailure::behind::<MemoryStore>(lost()), BodyFailure::Lost(_)));
    }

    async fn panics(_message: Envelope, _lease: &mut Lease) {
        panic!("no stock");
    }

    async fn hangs(_message: Envelope, _lease: &mut Lease) {
        std::future::pending::<()>().await;
    }

    #[tokio::test]
    async fn a_panic_and_an_overlong_body_are_failures() {
        let inbox = Inbox::builder(MemoryStore::in_memory())
            .on_raw("panics", ["a"], panics)
            .on_raw("hangs", ["b"], hangs)
            .handler_timeout(Duration::from_millis(1))
            .build()
            .await
            .unwrap();
        for (kind, expected) in
            [("a", "the handler panicked: no stock"), ("b", "the handler ran longer than 1ms")]
        {
            let report = inbox.process(Envelope::new(kind, "").with_key("k")).await.unwrap();
            let outcomes: Vec<Outcome> = report.outcomes().map(|(_, outcome)| outcome.clone()).collect();
            let [Outcome::Retry { after: None, cause }] = &outcomes[..] else { panic!("{outcomes:?}") };
            assert_eq!(cause.to_string(), expected);
        }
    }
}
