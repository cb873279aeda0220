//! The deliveries in flight.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use anyhow::Result;
use oncebox::{Envelope, Error, Inbox, Report, Settlement};
use oncebox_torture::kill_point::KillPoint;
use oncebox_torture::protocol::WorkerReport;
use oncebox_torture::scenario::{MessageKind, Scenario, TILL, TortureMode};
use oncebox_workload::deliverer::DeliveryResult;
use oncebox_workload::random::draw;
use tokio::task::JoinSet;

use crate::Store;
use crate::effects::EffectStore;
use crate::handlers::{Letter, Order};
use crate::points::Points;
use crate::report::report;
use crate::sender::Till;
use crate::services::Services;

/// The maximum number of polls of a call that is cancelled.
const POLLS_MAX: u64 = 6;

/// The deliveries in flight of this process.
pub(crate) struct Calls<S: EffectStore> {
    inbox: Inbox<Store<S>>,
    till: Option<Till<S>>,
    scenario: Scenario,
    points: Points,
    to_cancel: u64,
    running: JoinSet<()>,
}

impl<S: EffectStore> Calls<S> {
    pub(crate) fn new(services: &Services<S>, scenario: Scenario, points: Points) -> Self {
        let (inbox, till) = (services.inbox.clone(), services.till.clone());
        Self { inbox, till, scenario, points, to_cancel: 0, running: JoinSet::new() }
    }

    /// Cancels that many of the next calls before they are complete.
    pub(crate) fn cancel(&mut self, calls: u64) {
        self.to_cancel = calls;
    }

    /// Passes a delivery to the inbox, and reports its result.
    pub(crate) fn begin(&mut self, delivery: u64, message: u64, copy: u32) -> Result<()> {
        let order = Order { id: message, account: self.scenario.plan().account(message) };
        let envelope = match self.scenario.kind(message) {
            MessageKind::Order => Envelope::of(&order)?,
            MessageKind::Letter => Envelope::of(&Letter { id: message })?,
        };
        let envelope = envelope.with_attempt(copy);
        let polls = self.polls(message);
        let (inbox, mode, points) = (self.inbox.clone(), self.scenario.mode, self.points.clone());
        let till = self.till.clone().filter(|_| self.scenario.sender(message) == TILL);
        self.running.spawn(async move {
            let handled = async {
                match till {
                    Some(till) => Ok(till.handle(&order, copy).await),
                    None => handle(&inbox, mode, envelope).await,
                }
            };
            let (result, outcome) = match polled(polls, handled).await {
                Some(Ok(handled)) => handled,
                Some(Err(error)) => (DeliveryResult::Retry, format!("{:?}", error.kind())),
                None => (DeliveryResult::Retry, "cancelled".to_owned()),
            };
            // The result is known here, but the source does not get it: it must deliver again.
            points.pass(KillPoint::BeforeAnswer);
            report(&WorkerReport::Settled { delivery, result, outcome });
        });
        // The set keeps every result until it is fetched, for the whole run.
        while self.running.try_join_next().is_some() {}
        Ok(())
    }

    /// The maximum number of polls of the next call.
    fn polls(&mut self, message: u64) -> u64 {
        if self.to_cancel == 0 {
            return u64::MAX;
        }
        self.to_cancel -= 1;
        1 + draw(self.scenario.seed, "polls", &[message, self.to_cancel]) % POLLS_MAX
    }

    /// Waits for all deliveries.
    pub(crate) async fn finish(mut self) {
        while self.running.join_next().await.is_some() {}
    }
}

async fn handle<S: EffectStore>(
    inbox: &Inbox<Store<S>>,
    mode: TortureMode,
    envelope: Envelope,
) -> Result<(DeliveryResult, String), Error> {
    match mode {
        TortureMode::Inline | TortureMode::Spill | TortureMode::Outbox => {
            Ok(result_of(&inbox.process(envelope).await?))
        }
        TortureMode::Stored => {
            let outcome = if inbox.accept(envelope).await?.is_new() { "accepted" } else { "known" };
            Ok((DeliveryResult::Ack, outcome.to_owned()))
        }
    }
}

fn result_of(report: &Report) -> (DeliveryResult, String) {
    let result = match report.settlement() {
        Settlement::Ack => DeliveryResult::Ack,
        Settlement::Retry { .. } => DeliveryResult::Retry,
        Settlement::Reject => DeliveryResult::Reject,
    };
    let outcomes: Vec<&str> = report.outcomes().map(|(_, outcome)| outcome.name()).collect();
    (result, outcomes.join("+"))
}

/// Polls a future up to that many times, then drops it, as a cancelled caller does.
pub(crate) async fn polled<T>(polls: u64, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(move |context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => {
            left -= 1;
            if left == 0 { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}
