//! Consuming the queues of a broker. A kill point and a report surround each settlement.

use std::time::Duration;

use oncebox::rabbitmq::{Declare, RabbitMq, RabbitReceipt, RabbitSession, RabbitSettler, RabbitSource};
use oncebox::source::{
    Abilities, Decision, FieldLocation, OpenedSession, Received, Room, Session, Settled, Settler, Source,
    SourceRules,
};
use oncebox::{Error, Inbox, Settlement};
use oncebox_torture::kill_point::KillPoint;
use oncebox_torture::protocol::WorkerReport;
use oncebox_torture::queues::{DELIVERY_HEADER, ID_HEADER, SALES_QUEUE};
use oncebox_workload::deliverer::DeliveryResult;
use oncebox_workload::random::draw;
use tokio::sync::watch;

use crate::Store;
use crate::calls::polled;
use crate::effects::EffectStore;
use crate::handlers::HandlerContext;
use crate::points::Points;
use crate::report::{report, take_progress};

/// Shorter than the default: faults of the broker last for seconds.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Less than the source has in flight, so that every worker gets messages.
const PREFETCH: usize = 100;
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The maximum number of polls of a consumer that is dropped. After a few it connects, after some more it has messages.
const POLLS_MAX: u64 = 400;

/// The broker of a worker.
pub(crate) fn broker(url: &str) -> Result<RabbitMq, Error> {
    Ok(RabbitMq::new(url)?.timeout(TIMEOUT))
}

/// A queue and the inbox that consumes it.
pub(crate) struct Queue<S: EffectStore> {
    pub(crate) inbox: Inbox<Store<S>>,
    pub(crate) name: &'static str,
    pub(crate) broker: RabbitMq,
    pub(crate) context: HandlerContext,
    /// How many times the consumer was to be dropped so far.
    pub(crate) drops: watch::Receiver<u64>,
}

impl<S: EffectStore> Queue<S> {
    /// Consumes until `stopped` is true.
    pub(crate) async fn consume(mut self, mut stopped: watch::Receiver<bool>) -> Result<(), Error> {
        let mut dropped = *self.drops.borrow_and_update();
        loop {
            let consumer = self
                .inbox
                .consume(self.source())
                .rules(SourceRules::new(self.name).key(FieldLocation::header(ID_HEADER)))
                .prefetch(PREFETCH)
                // The shortest queue for retries: those of the source grow to minutes.
                .retry_after(RETRY_AFTER);
            let running = consumer.run(async { drop(stopped.wait_for(|stop| *stop).await) });
            let requested = *self.drops.borrow_and_update();
            let polls = if dropped < requested { self.polls(dropped) } else { u64::MAX };
            tokio::select! {
                ended = polled(polls, running) => if let Some(ended) = ended {
                    return ended.map(drop);
                },
                // An error means that the worker ends.
                Ok(()) = self.drops.changed(), if polls == u64::MAX => {}
            }
            dropped += 1;
            report(&WorkerReport::ConsumerDropped);
        }
    }

    fn polls(&self, dropped: u64) -> u64 {
        1 + draw(self.context.scenario.seed, "consumer polls", &[dropped]) % POLLS_MAX
    }

    fn source(&self) -> TracedSource {
        let source = self.broker.queue(self.name).declare(Declare::Create);
        // Sales must keep their order.
        let inner = if self.name == SALES_QUEUE { source.single_active_consumer() } else { source };
        TracedSource { inner, points: self.context.points.clone() }
    }
}

/// A queue whose deliveries are reported to the harness when they are settled.
#[derive(Debug)]
struct TracedSource {
    inner: RabbitSource,
    points: Points,
}

#[derive(Debug)]
struct TracedSession {
    inner: RabbitSession,
    points: Points,
}

#[derive(Debug)]
struct TracedReceipt {
    inner: RabbitReceipt,
    /// The number of the delivery, if the harness has published it.
    delivery: Option<u64>,
}

#[derive(Clone, Debug)]
struct TracedSettler {
    inner: RabbitSettler,
    points: Points,
}

impl Source for TracedSource {
    type Session = TracedSession;

    const ABILITIES: Abilities = RabbitSource::ABILITIES;

    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn open(&mut self, prefetch: Room) -> Result<OpenedSession<TracedSession>, Error> {
        let OpenedSession { session, warnings } = self.inner.open(prefetch).await?;
        let session = TracedSession { inner: session, points: self.points.clone() };
        Ok(OpenedSession { session, warnings })
    }
}

impl Session for TracedSession {
    type Receipt = TracedReceipt;
    type Settler = TracedSettler;

    fn settler(&self) -> TracedSettler {
        TracedSettler { inner: self.inner.settler(), points: self.points.clone() }
    }

    async fn next(&mut self, room: Room) -> Result<Vec<Received<TracedReceipt>>, Error> {
        let received = self.inner.next(room).await?;
        let traced = received.into_iter().map(|Received { receipt, message }| {
            let delivery = message.headers.headers.get(DELIVERY_HEADER).and_then(|text| text.parse().ok());
            Received { receipt: TracedReceipt { inner: receipt, delivery }, message }
        });
        Ok(traced.collect())
    }

    async fn close(self) {
        self.inner.close().await;
    }
}

impl Settler for TracedSettler {
    type Receipt = TracedReceipt;

    async fn settle(&self, decisions: Vec<Decision<TracedReceipt>>) -> Vec<Settled> {
        let mut unreported = Unreported::default();
        let mut inner = Vec::with_capacity(decisions.len());
        for Decision { receipt, settlement, reason } in decisions {
            unreported.0.push((receipt.delivery, settlement));
            inner.push(Decision { receipt: receipt.inner, settlement, reason });
        }
        // The outcome is durable, and the broker does not know it: it must deliver again.
        self.points.pass(KillPoint::BeforeAnswer);
        let settled = self.inner.settle(inner).await;
        unreported.report(&settled);
        settled
    }
}

/// Deliveries that are being settled. If this is dropped before it is known whether the broker has received the settlement, the
/// harness publishes them again.
#[derive(Default)]
struct Unreported(Vec<(Option<u64>, Settlement)>);

impl Unreported {
    fn report(&mut self, settled: &[Settled]) {
        for ((delivery, settlement), settled) in std::mem::take(&mut self.0).into_iter().zip(settled) {
            let Some(delivery) = delivery else { continue };
            match (settlement, settled) {
                (Settlement::Ack, Settled::Done) => {
                    let outcome = if take_progress() { "done" } else { "known" };
                    settle(delivery, DeliveryResult::Ack, outcome);
                }
                (Settlement::Reject, Settled::Done) => settle(delivery, DeliveryResult::Reject, "rejected"),
                (_, Settled::Unknown(_)) => settle(delivery, DeliveryResult::Retry, "unknown"),
                // The broker delivers it again.
                _ => {}
            }
        }
    }
}

impl Drop for Unreported {
    fn drop(&mut self) {
        for (delivery, _) in self.0.drain(..) {
            if let Some(delivery) = delivery {
                settle(delivery, DeliveryResult::Retry, "dropped");
            }
        }
    }
}

fn settle(delivery: u64, result: DeliveryResult, outcome: &str) {
    report(&WorkerReport::Settled { delivery, result, outcome: outcome.to_owned() });
}
