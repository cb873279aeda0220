//! What a worker runs: the inboxes of its mode, and its outbox.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use oncebox::rabbitmq::RabbitMq;
use oncebox::store::{ReplayFrom, Select};
use oncebox::{Error, Inbox, InboxBuilder, Mode, Operators, Outbox, Relay, Retry};
use oncebox_testing::Faulty;
use oncebox_torture::event::{Backlog, TortureEvent};
use oncebox_torture::protocol::WorkerReport;
use oncebox_torture::queues::{BROKER_URL, NOTES_QUEUE, ORDERS_QUEUE, SALES_QUEUE};
use oncebox_torture::scenario::{EVENTS, LEASE, TortureMode};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::Store;
use crate::effects::EffectStore;
use crate::handlers::{HandlerContext, message_number, with_handlers};
use crate::queues::{Queue, broker};
use crate::receiver::{Carrier, Receiver};
use crate::report::report;
use crate::sender::{self, Till};

const LANES: u16 = 8;
const BATCH: usize = 32;
/// The maximum number of messages of a process that the receiver has not confirmed. Less than a backlog, so that a lane takes
/// several ranges.
const IN_FLIGHT: usize = 400;
/// A process refuses a message twice at most, by plan, and then a process that takes its place may do so again.
const SINK_ATTEMPTS: u32 = 100;
/// The maximum number of dead letters that are reported and retried at once.
const DEAD_LETTERS: u32 = 500;

/// The inboxes and the outbox of a worker.
pub(crate) struct Services<S: EffectStore> {
    /// It takes the deliveries.
    pub(crate) inbox: Inbox<Store<S>>,
    /// It takes the deliveries of transactions without a handler.
    pub(crate) till: Option<Till<S>>,
    outbox: Option<Outbox<Store<S>>>,
    /// The inboxes that read a log: one for each database, in the order in which messages pass them.
    logs: Vec<Inbox<Store<S>>>,
    /// The queues of the broker, and the inboxes that consume them.
    queues: Vec<(&'static str, Inbox<Store<S>>)>,
    broker: Option<RabbitMq>,
    context: HandlerContext,
    /// How many times consumers were to be dropped so far.
    drops: watch::Sender<u64>,
}

impl<S: EffectStore> Services<S> {
    /// Builds what the scenario's mode needs.
    pub(crate) async fn build(store: S, receiver: Option<S>, context: &HandlerContext) -> Result<Self> {
        let HandlerContext { scenario, points, .. } = context;
        let faulty = Faulty::new(store.clone(), points.clone());
        let builder = Inbox::builder(faulty.clone());
        let builder = match scenario.mode {
            TortureMode::Inline => inline(builder),
            TortureMode::Stored => stored(builder),
            TortureMode::Spill => with_log(builder.mode(Mode::inline().spill())),
            TortureMode::Outbox => {
                let receiver = receiver.context("the mode outbox needs RECEIVER, the second database")?;
                return Self::with_outbox(store, receiver, context).await;
            }
        };
        let inbox = with_handlers::<S>(builder, context).build().await?;
        let logs = if scenario.mode == TortureMode::Inline { Vec::new() } else { vec![inbox.clone()] };
        let broker = configured_broker()?;
        let queues = if broker.is_some() { vec![(ORDERS_QUEUE, inbox.clone())] } else { Vec::new() };
        let (context, drops) = (context.clone(), watch::Sender::new(0));
        Ok(Self { inbox, till: None, outbox: None, logs, queues, broker, context, drops })
    }

    async fn with_outbox(store: S, receiver: S, context: &HandlerContext) -> Result<Self> {
        let points = &context.points;
        let receiver = Receiver::build(Faulty::new(receiver, points.clone()), context).await?;
        let broker = configured_broker()?;
        let relay = Relay::new(EVENTS, Carrier::new(&receiver, broker.as_ref(), context.clone()))
            .retry(retry().max_attempts(SINK_ATTEMPTS))
            .in_flight(IN_FLIGHT);
        let outbox = Outbox::builder(Faulty::new(store.clone(), points.of_outbox()))
            .lanes(LANES)
            .lease(LEASE)
            .relay(relay)
            .build()
            .await?;
        let faulty = Faulty::new(store.clone(), points.clone());
        let inbox = sender::inbox(faulty.clone(), &outbox, context).await?;
        let audit = sender::audit(faulty, &outbox, context).await?;
        let till = Till::new(store, outbox.clone(), context.clone());
        let queues = match &broker {
            Some(_) => {
                vec![(SALES_QUEUE, receiver.stored.clone()), (NOTES_QUEUE, receiver.inline.clone())]
            }
            None => Vec::new(),
        };
        let (till, outbox, logs) = (Some(till), Some(outbox), vec![audit, receiver.stored]);
        let (context, drops) = (context.clone(), watch::Sender::new(0));
        Ok(Self { inbox, till, outbox, logs, queues, broker, context, drops })
    }

    /// Whether deliveries come from a queue, and not from the harness itself.
    pub(crate) fn takes_from_queue(&self) -> bool {
        self.outbox.is_none() && !self.queues.is_empty()
    }

    /// Drops the consumers with their deliveries in flight, that often, and starts others.
    pub(crate) fn drop_consumers(&self, times: u64) {
        self.drops.send_modify(|drops| *drops += times);
    }

    /// Lets the relay send again. The harness asks again if there is no report.
    pub(crate) async fn replay(&self, since_ms: u64) {
        let Some(outbox) = &self.outbox else { return };
        let since = ReplayFrom::Time(SystemTime::UNIX_EPOCH + Duration::from_millis(since_ms));
        match outbox.operators().replay(EVENTS, since, &oncebox_testing::operator("torture")).await {
            Ok(_) => report(&WorkerReport::Replayed),
            Err(error) => eprintln!("no replay: {error}"),
        }
    }

    /// Runs the workers, the consumers, the mover and the relay, until `stopped` is true.
    pub(crate) fn run(&self, stopped: &watch::Receiver<bool>) -> JoinSet<Result<(), Error>> {
        let mut running = JoinSet::new();
        for inbox in &self.logs {
            let (inbox, mut stopped) = (inbox.clone(), stopped.clone());
            running.spawn(async move {
                inbox.run(async move { drop(stopped.wait_for(|stop| *stop).await) }).await.map(drop)
            });
        }
        for ((name, inbox), broker) in self.queues.iter().zip(self.broker.iter().cycle()) {
            let (inbox, broker, context) = (inbox.clone(), broker.clone(), self.context.clone());
            let queue = Queue { inbox, name, broker, context, drops: self.drops.subscribe() };
            running.spawn(queue.consume(stopped.clone()));
        }
        running
    }

    pub(crate) async fn close(self) {
        for inbox in self.logs {
            inbox.close().await;
        }
        self.inbox.close().await;
    }

    /// Reports and retries dead letters. The harness repeats this until there are none, so an error is not fatal.
    pub(crate) async fn retry_dead_letters(&self) {
        for inbox in &self.logs {
            retry_dead_letters(inbox.operators()).await;
        }
    }

    pub(crate) async fn report_backlog(&self) {
        match self.backlog().await {
            Ok(backlog) => report(&WorkerReport::Backlog(backlog)),
            Err(error) => eprintln!("no backlog: {error}"),
        }
    }

    /// The harness asks again and again, so an error only means that there is no answer this time.
    pub(crate) async fn report_lag(&self) {
        if let Ok(backlog) = self.backlog().await {
            report(&WorkerReport::Lag(backlog.lag));
        }
    }

    /// The backlog, in the order in which messages pass: a message that has left one place is then found at the next.
    async fn backlog(&self) -> Result<Backlog, Error> {
        let mut backlog = Backlog::default();
        if let Some(outbox) = &self.outbox {
            backlog.lag += outbox.status().await?.waiting;
        }
        for inbox in &self.logs {
            for status in inbox.operators().handler_statuses().await? {
                backlog.lag += status.lag;
                backlog.tasks += status.tasks;
                backlog.dead += status.dead;
            }
        }
        Ok(backlog)
    }
}

/// The broker that the environment names.
fn configured_broker() -> Result<Option<RabbitMq>, Error> {
    std::env::var(BROKER_URL).ok().map(|url| broker(&url)).transpose()
}

async fn retry_dead_letters(operators: Operators) {
    let operator = oncebox_testing::operator("torture");
    for letter in operators.dead_letters(Select::all(), DEAD_LETTERS).await.unwrap_or_default() {
        let Some(message) = message_number(&letter.body) else {
            eprintln!("a dead letter without a message's number in its body");
            continue;
        };
        let (handler, error) = (letter.handler.clone(), letter.error);
        report(&WorkerReport::Event(TortureEvent::DeadLetter { message, handler, error }));
        // Only the one that was reported.
        let reported = Select::all().handler(letter.handler).at(letter.place);
        if let Err(error) = operators.retry_dead(reported, &operator).await {
            eprintln!("no retry: {error}");
        }
    }
}

/// Settings of an inbox whose handlers run at once.
pub(crate) fn inline<S: EffectStore>(builder: InboxBuilder<Store<S>>) -> InboxBuilder<Store<S>> {
    builder.lock_timeout(Duration::from_secs(2))
}

/// Settings of an inbox whose handlers read the log.
pub(crate) fn stored<S: EffectStore>(builder: InboxBuilder<Store<S>>) -> InboxBuilder<Store<S>> {
    with_log(builder.stored())
}

fn with_log<S: EffectStore>(builder: InboxBuilder<Store<S>>) -> InboxBuilder<Store<S>> {
    // Where processes crash without progress, messages run one by one, as many as a process may have had in flight.
    // Small batches keep that short.
    inline(builder)
        .retry(retry())
        .lease(LEASE)
        .poll_every(Duration::from_millis(100))
        .lanes(LANES)
        .work_batch(BATCH)
}

fn retry() -> Retry {
    // The third attempt succeeds by plan. An outage uses up no attempt, so few are enough: more would hide faults that do.
    Retry::new().max_attempts(6).first_delay(Duration::from_millis(20)).max_delay(Duration::from_millis(200))
}
