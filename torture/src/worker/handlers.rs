//! The handlers, with their planned failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncebox::{Attempt, BoxError, Failure, InboxBuilder, Message};
use oncebox_torture::event::TortureEvent;
use oncebox_torture::kill_point::KillPoint;
use oncebox_torture::protocol::WorkerReport;
use oncebox_torture::scenario::{
    BOOKS, LEDGER, MAIL, PlannedFailure, STATEMENT, Scenario, SinkFailure, TortureMode,
};
use serde::{Deserialize, Serialize};

use crate::Store;
use crate::effects::EffectStore;
use crate::points::Points;
use crate::report::{monotonic_nanos, report};

/// How long a slow handler takes.
const SLOW: Duration = Duration::from_millis(20);

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "order", key = "id", order_by = "account")]
pub(crate) struct Order {
    pub(crate) id: u64,
    pub(crate) account: u64,
}

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "letter", key = "id")]
pub(crate) struct Letter {
    pub(crate) id: u64,
}

/// What every kind of message has.
#[derive(Deserialize)]
struct Numbered {
    id: u64,
}

/// The number of an encoded message.
pub(crate) fn message_number(body: &[u8]) -> Option<u64> {
    serde_json::from_slice(body).ok().map(|Numbered { id }| id)
}

/// The effect of one run of a handler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effect {
    /// The number of the message.
    pub(crate) id: u64,
    pub(crate) attempt: u32,
    /// With an outbox: the transaction of the sender that the effect comes from.
    pub(crate) token: Option<i64>,
}

/// The state that all handlers share.
#[derive(Clone, Debug)]
pub(crate) struct HandlerContext {
    pub(crate) scenario: Scenario,
    pub(crate) points: Points,
    is_permanent_stopped: Arc<AtomicBool>,
}

impl HandlerContext {
    pub(crate) fn new(scenario: Scenario, points: Points) -> Self {
        Self { scenario, points, is_permanent_stopped: Arc::default() }
    }

    /// Lets messages succeed that failed permanently.
    pub(crate) fn stop_permanent_failures(&self) {
        self.is_permanent_stopped.store(true, Ordering::SeqCst);
    }

    /// Whether and how the sink fails with a message.
    pub(crate) fn sink_failure(&self, message: u64, sending: u32) -> Option<SinkFailure> {
        let is_permanent_stopped = self.is_permanent_stopped.load(Ordering::SeqCst);
        self.scenario.sink_failure(message, sending, is_permanent_stopped)
    }

    pub(crate) async fn write<S: EffectStore>(
        &self,
        handler: &'static str,
        Effect { id, attempt, token }: Effect,
        conn: &mut <S as oncebox::store::Store>::Conn,
    ) -> Result<(), Failure> {
        let enter = monotonic_nanos();
        let deallocates = self.points.must_deallocate();
        // For half of the messages the handler's own statements fail first, for the others those of the inbox.
        if deallocates && id.is_multiple_of(2) {
            deallocate::<S>(conn).await?;
        }
        S::effect(conn, handler, i64::try_from(id)?, token).await?;
        // The transaction is open when a statement is sent that succeeds. Its response may be read long after that, when the server has
        // terminated the session and another worker runs the handler.
        let mut leave = monotonic_nanos();
        S::read_back(conn).await?;
        self.points.pass(KillPoint::InBody);
        if self.scenario.is_slow(handler, id) {
            tokio::time::sleep(SLOW).await;
            // A run whose transaction was lost meanwhile must not be reported: it would look like an overlap with the
            // next run.
            leave = monotonic_nanos();
            S::prove(conn).await?;
        }
        if deallocates && !id.is_multiple_of(2) {
            deallocate::<S>(conn).await?;
        }
        self.end(handler, id, attempt, (enter, leave))
    }

    async fn post(&self, id: u64, attempt: u32) -> Result<(), Failure> {
        let enter = monotonic_nanos();
        self.points.pass(KillPoint::InBody);
        if self.scenario.is_slow(MAIL, id) {
            tokio::time::sleep(SLOW).await;
        }
        self.end(MAIL, id, attempt, (enter, monotonic_nanos()))
    }

    /// Reports that the handler has run, and fails by plan.
    fn end(
        &self,
        handler: &str,
        message: u64,
        attempt: u32,
        (enter, leave): (u64, u64),
    ) -> Result<(), Failure> {
        // Before the planned failure: the transaction of a failed run was open too, so it counts for overlaps.
        report(&WorkerReport::Event(TortureEvent::Body { message, handler: handler.into(), enter, leave }));
        let is_permanent_stopped = self.is_permanent_stopped.load(Ordering::SeqCst);
        match self.scenario.failure(handler, message, attempt, is_permanent_stopped) {
            None => Ok(()),
            Some(PlannedFailure::Transient) => Err(BoxError::from("a planned transient failure").into()),
            Some(PlannedFailure::Permanent) => Err(Failure::permanent("a planned permanent failure")),
        }
    }
}

async fn deallocate<S: EffectStore>(conn: &mut <S as oncebox::store::Store>::Conn) -> Result<(), Failure> {
    S::deallocate(conn).await?;
    report(&WorkerReport::Deallocated);
    Ok(())
}

/// Adds the handlers of a mode without an outbox.
pub(crate) fn with_handlers<S: EffectStore>(
    builder: InboxBuilder<Store<S>>,
    context: &HandlerContext,
) -> InboxBuilder<Store<S>> {
    let writing = |handler: &'static str| {
        let context = context.clone();
        async move |order: Order,
                    Attempt(attempt): Attempt,
                    conn: &mut <S as oncebox::store::Store>::Conn|
                    -> Result<(), Failure> {
            context.write::<S>(handler, Effect { id: order.id, attempt, token: None }, conn).await
        }
    };
    let builder = builder.on(BOOKS, writing(BOOKS));
    if context.scenario.mode != TortureMode::Stored {
        return builder.on(LEDGER, writing(LEDGER));
    }
    let context = context.clone();
    let post = move |letter: Letter, Attempt(attempt): Attempt| {
        let context = context.clone();
        async move { context.post(letter.id, attempt).await }
    };
    builder.on_with(STATEMENT, writing(STATEMENT), |options| options.ordered()).on_with(
        MAIL,
        post,
        |options| options.detached(),
    )
}
