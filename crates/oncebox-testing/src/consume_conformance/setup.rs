//! An inbox with one handler on a store, and consumers that run on it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oncebox_core::source::{FieldLocation, ReceivedMessage, Source, SourceRules};
use oncebox_core::store::Store;
use oncebox_core::{
    BoxError, ConsumeReport, Consumer, ConsumerStatus, ConsumerWatch, Error, Failure, Inbox, InboxBuilder,
};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::conformance::{BoxFuture, Sample};
use crate::faulty::{Faults, Faulty, Point, cut};
use crate::source_conformance::{LIMIT, until};
use crate::{BrokerFixture, Fixture};

type Conn<F> = <<F as Fixture>::Store as Store>::Conn;
pub(super) type TestStore<F> = Faulty<<F as Fixture>::Store, Script>;
type ReadBacklog = dyn Fn() -> BoxFuture<'static, usize> + Send + Sync;
type Plan = dyn Fn(&str, usize) -> Result<(), Failure> + Send + Sync;

/// A place at which work stops until it may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Handler,
    AfterCommit,
}

/// What the handler and the store do, and what they have done. Clones share it.
// Not generic over the broker: each of them would compile the whole inbox again.
#[derive(Clone)]
pub(super) struct Script(Arc<Shared>);

struct Shared {
    read_backlog: Box<ReadBacklog>,
    read_clock: Box<dyn Fn() -> Instant + Send + Sync>,
    plan: Box<Plan>,
    runs: Mutex<Vec<(String, Instant)>>,
    /// The backlog of the broker before and after commits that follow a run.
    backlogs: Mutex<Option<Vec<(Point, usize)>>>,
    stops_at: watch::Sender<Option<Stop>>,
    is_store_away: watch::Sender<bool>,
    /// The message whose handler never ends.
    hangs: Mutex<Option<&'static str>>,
}

impl Script {
    fn new<B: BrokerFixture>(
        broker: Arc<B>,
        plan: impl Fn(&str, usize) -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Self {
        let clock = broker.clone();
        let read_backlog = move || -> BoxFuture<'static, usize> {
            let broker = broker.clone();
            Box::pin(async move { broker.backlog().await })
        };
        Self(Arc::new(Shared {
            read_backlog: Box::new(read_backlog),
            read_clock: Box::new(move || clock.now()),
            plan: Box::new(plan),
            runs: Mutex::default(),
            backlogs: Mutex::default(),
            stops_at: watch::Sender::new(None),
            is_store_away: watch::Sender::new(false),
            hangs: Mutex::default(),
        }))
    }

    async fn pass(&self, stop: Stop) {
        let mut stops_at = self.0.stops_at.subscribe();
        let _ = stops_at.wait_for(|at| *at != Some(stop)).await;
    }

    /// Writes down a run of the handler. Returns its number, counted for each message.
    fn run(&self, id: &str) -> usize {
        let mut runs = self.0.runs.lock().unwrap();
        runs.push((id.to_owned(), (self.0.read_clock)()));
        runs.iter().filter(|(run, _)| run == id).count()
    }

    async fn note_backlog(&self, point: Point) {
        let is_watched = self.0.backlogs.lock().unwrap().is_some() && !self.0.runs.lock().unwrap().is_empty();
        if is_watched {
            let backlog = (self.0.read_backlog)().await;
            self.0.backlogs.lock().unwrap().as_mut().unwrap().push((point, backlog));
        }
    }
}

impl Faults for Script {
    async fn at(&self, point: Point) -> Result<(), Error> {
        if *self.0.is_store_away.borrow() {
            return Err(cut());
        }
        match point {
            Point::BeforeCommit => self.note_backlog(point).await,
            Point::AfterCommit => {
                self.note_backlog(point).await;
                self.pass(Stop::AfterCommit).await;
            }
            Point::BeforeClaim | Point::AfterClaim => (),
        }
        Ok(())
    }
}

/// A broker, a store, and an inbox whose handler writes one effect for each message, named by its id.
pub(super) struct Setup<B: BrokerFixture, F: Fixture> {
    pub(super) broker: Arc<B>,
    pub(super) store: F,
    pub(super) inbox: Inbox<TestStore<F>>,
    script: Script,
}

impl<B: BrokerFixture, F: Fixture> Setup<B, F> {
    pub(super) async fn new(broker: B, store: F) -> Self {
        Self::with(broker, store, |_, _| Ok(()), |inbox| inbox).await
    }

    /// With a plan, which decides about each run of a message by the run's number.
    pub(super) async fn planned(
        broker: B,
        store: F,
        plan: impl Fn(&str, usize) -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Self {
        Self::with(broker, store, plan, |inbox| inbox).await
    }

    pub(super) async fn with(
        broker: B,
        store: F,
        plan: impl Fn(&str, usize) -> Result<(), Failure> + Send + Sync + 'static,
        options: impl FnOnce(InboxBuilder<TestStore<F>>) -> InboxBuilder<TestStore<F>>,
    ) -> Self {
        let broker = Arc::new(broker);
        let script = Script::new(broker.clone(), plan);
        let (effects, runs) = (store.clone(), script.clone());
        let handler = async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), Failure> {
            let run = runs.run(&sample.id);
            runs.pass(Stop::Handler).await;
            let hangs = *runs.0.hangs.lock().unwrap() == Some(&*sample.id);
            if hangs {
                std::future::pending::<()>().await;
            }
            (runs.0.plan)(&sample.id, run)?;
            Ok(effects.effect(conn, &sample.id).await.map_err(|error: BoxError| error)?)
        };
        let builder = Inbox::builder(Faulty::new(store.store(), script.clone()))
            // An outage is noticed soon; a handler may wait for as long as a test wants.
            .store_timeout(Duration::from_millis(100))
            .handler_timeout(Duration::from_secs(24 * 3600));
        let inbox = options(builder).on("ledger", handler).build().await.unwrap();
        Self { broker, store, inbox, script }
    }

    /// Publishes samples with these ids.
    pub(super) async fn publish(&self, ids: impl IntoIterator<Item = String>) {
        self.broker.publish(ids.into_iter().map(|id| sample(&id, "")).collect()).await;
    }

    /// Starts a consumer.
    pub(super) fn consume(&self) -> Running {
        self.consume_with(|consumer| consumer)
    }

    /// Starts a consumer with these options.
    pub(super) fn consume_with(
        &self,
        options: impl FnOnce(Consumer<TestStore<F>, B::Source>) -> Consumer<TestStore<F>, B::Source>,
    ) -> Running {
        let source = self.broker.source();
        let rules = SourceRules::new(source.name())
            .kind(FieldLocation::pointer("/kind"))
            .order_by(FieldLocation::pointer("/text"))
            .default_kind("sample");
        let consumer = self.inbox.consume(source).rules(rules).retry_after(Duration::from_millis(50));
        let consumer = options(consumer);
        let watch = consumer.watch();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move { _ = stopped.await };
        Running { watch, stop: Some(stop), task: tokio::spawn(consumer.run(shutdown)) }
    }

    /// Lets work stop at this place, or go on.
    pub(super) fn stop_at(&self, stop: Option<Stop>) {
        self.script.0.stops_at.send_replace(stop);
    }

    /// Lets the handler of this message hang, until its process is killed.
    pub(super) fn hang(&self, id: &'static str) {
        *self.script.0.hangs.lock().unwrap() = Some(id);
    }

    /// Lets the store fail, or respond again.
    pub(super) fn store_is_away(&self, is_away: bool) {
        self.script.0.is_store_away.send_replace(is_away);
    }

    pub(super) fn watch_backlog(&self) {
        *self.script.0.backlogs.lock().unwrap() = Some(Vec::new());
    }

    pub(super) fn backlogs(&self) -> Vec<(Point, usize)> {
        self.script.0.backlogs.lock().unwrap().clone().unwrap_or_default()
    }

    /// The ids of the messages that the handler has run, in their order.
    pub(super) fn runs(&self) -> Vec<String> {
        self.script.0.runs.lock().unwrap().iter().map(|(id, _)| id.clone()).collect()
    }

    /// The times of the runs on the broker's clock.
    pub(super) fn run_times(&self) -> Vec<Instant> {
        self.script.0.runs.lock().unwrap().iter().map(|(_, at)| *at).collect()
    }

    pub(super) async fn until(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        until(&*self.broker, what, is_so).await;
    }

    pub(super) async fn until_empty(&self) {
        self.until("the queue is empty", async || self.broker.backlog().await == 0).await;
    }

    /// Checks that each of these messages has taken effect once.
    pub(super) async fn assert_effects(&self, ids: impl IntoIterator<Item = String>) {
        for id in ids {
            let effects = self.store.effects(&id).await;
            // Without a transaction, an interrupted run leaves its effect.
            let is_right = effects == 1 || (effects > 1 && !self.store.capabilities().transactional);
            assert!(is_right, "message {id} has {effects} effects");
        }
    }
}

/// A consumer that runs.
pub(super) struct Running {
    pub(super) watch: ConsumerWatch,
    stop: Option<oneshot::Sender<()>>,
    pub(super) task: JoinHandle<Result<ConsumeReport, Error>>,
}

impl Running {
    pub(super) fn status(&self) -> ConsumerStatus {
        self.watch.status()
    }

    /// Requests the shutdown, and does not wait for its end.
    pub(super) fn shut_down(&mut self) {
        drop(self.stop.take());
    }

    /// Shuts down.
    pub(super) async fn end(mut self) -> ConsumeReport {
        self.shut_down();
        self.report().await
    }

    /// Waits for the end.
    pub(super) async fn report(self) -> ConsumeReport {
        tokio::time::timeout(LIMIT, self.task).await.expect("the consumer ends").unwrap().unwrap()
    }

    /// Ends it at any await, as a process that is killed.
    pub(super) async fn drop_it(self) {
        self.task.abort();
        assert!(self.task.await.is_err_and(|error| error.is_cancelled()));
    }
}

/// A sample with this id and ordering key.
pub(super) fn sample(id: &str, order_by: &str) -> ReceivedMessage {
    let body = match order_by {
        "" => format!(r#"{{"id":"{id}"}}"#),
        order_by => format!(r#"{{"id":"{id}","text":"{order_by}"}}"#),
    };
    let mut message = ReceivedMessage::new(body);
    message.message_id = Some(format!("m-{id}"));
    message
}

/// The ids of this number of messages.
pub(super) fn ids(count: usize) -> impl Iterator<Item = String> + Clone {
    (0..count).map(|n| format!("{n:04}"))
}
