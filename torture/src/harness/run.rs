//! One seed, from the empty database to the verdict.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oncebox_servers::process::{Signal, describe};
use oncebox_torture::event::{Backlog, TortureEvent};
use oncebox_torture::protocol::{WorkerCommand, WorkerReport};
use oncebox_torture::queues::BROKER_URL;
use oncebox_torture::scenario::{NOTES, Scenario, TortureMode};
use oncebox_workload::deliverer::{Deliverer, DeliveryResult, SentCopy};
use oncebox_workload::random::Random;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout, timeout_at};

use crate::broker::{Broker, BrokerName};
use crate::checker::check;
use crate::clock::FakeClock;
use crate::database::{Database, Side};
use crate::disk::Disk;
use crate::fault::{Schedule, TortureFault};
use crate::history::{Event, History, read};
use crate::injection::ActiveFault;
use crate::keep;
use crate::publisher::Publisher;
use crate::recovery::Recovery;
use crate::seed::{SeedResult, SeedSettings};
use crate::workers::{Worker, WorkerOutput, WorkerSettings};

/// The worker with a clock of its own.
pub(crate) const WITH_CLOCK: usize = 0;
/// The worker with a small connection pool.
pub(crate) const WITH_SMALL_POOL: usize = 1;
const WORKERS: usize = 4;
const CONNECTIONS: u32 = 8;
/// A run without progress for this time is stuck.
const STALL_LIMIT: Duration = Duration::from_secs(90);
const TICK: Duration = Duration::from_millis(10);
/// The maximum time for a worker to report the backlog.
const BACKLOG_LIMIT: Duration = Duration::from_secs(5);
/// The pause before a worker that could not start is started again: the database may be down.
const RESTART_PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of failed starts in a row. No fault lasts that long.
const FAILED_STARTS_MAX: u32 = 100;
/// Messages that are added while faults are still to come: they must happen under load.
const MORE_MESSAGES: u64 = 1_000;
const MEBIBYTE: u64 = 1 << 20;
/// With more messages on their way to the receiver the source pauses. Otherwise a relay, which is slower than the source, would lag
/// further and further behind, and faults would meet the source only.
const LAG_MAX: u64 = 2_000;
/// The same during a fault, which must happen under load.
const LAG_IN_FAULT_MAX: u64 = 4 * LAG_MAX;
/// The time between two questions for the lag.
const LAG_PAUSE: Duration = Duration::from_millis(200);

/// Whether a worker takes deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerState {
    /// It has not reported that it is ready.
    Starting,
    Open,
    /// It was asked to end.
    Ending,
    /// It will kill itself, and works until then.
    Doomed,
    /// It was killed.
    Killed,
}

impl WorkerState {
    fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Doomed)
    }

    /// Whether a worker in this state is expected to end with this status.
    fn is_end_expected(self, status: ExitStatus) -> bool {
        match self {
            Self::Open => false,
            Self::Ending => status.success(),
            // Without a database it cannot start.
            Self::Starting | Self::Doomed | Self::Killed => true,
        }
    }
}

/// What every message has.
#[derive(serde::Deserialize)]
struct Numbered {
    id: u64,
}

/// The worker with a certain number. When it has ended, another process takes its place.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) worker: Worker,
    pub(crate) state: WorkerState,
}

/// Everything that takes part in a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) scenario: Scenario,
    pub(crate) database: Database,
    /// What messages pass on their way to the inbox, if anything.
    pub(crate) broker: Option<Broker>,
    /// Publishes copies of messages, where they do not go to a certain worker.
    publisher: Option<Publisher>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) deliverer: Deliverer,
    pub(crate) random: Random,
    pub(crate) clock: Option<FakeClock>,
    pub(crate) history: History,
    log: PathBuf,
    /// The last report of the worker with a clock of its own.
    pub(crate) clock_seconds: Option<u64>,
    /// Calls that were cancelled.
    pub(crate) cancelled: u64,
    /// Sessions whose prepared statements were dropped.
    pub(crate) deallocated: u64,
    /// Handler calls of all workers.
    pub(crate) bodies: u64,
    /// Commits whose result was lost.
    pub(crate) commits_unknown: u64,
    /// Commits of movers and relays whose result was lost.
    pub(crate) outbox_results_lost: u64,
    /// Whether the relay sends again, after the last request for that.
    pub(crate) replayed: bool,
    /// How often many processes have started at once.
    pub(crate) starters: usize,
    /// How many messages are on their way to the receiver, and when a worker was asked last.
    lag: u64,
    lag_asked: Instant,
    /// The worker that is asked next.
    lag_worker: usize,
    /// Columns that were added to the table of effects.
    pub(crate) columns: usize,
    failed_starts: u32,
    backlog: Option<Backlog>,
    output_sender: mpsc::UnboundedSender<WorkerOutput>,
    output: mpsc::UnboundedReceiver<WorkerOutput>,
    schedule: Schedule,
    active_fault: Option<ActiveFault>,
    recovery: Recovery,
    last_progress: Instant,
    verbose: bool,
}

/// Runs a seed.
pub(crate) async fn run(settings: &SeedSettings) -> Result<SeedResult> {
    let folder = tempfile::Builder::new().prefix("oncebox-torture-").tempdir()?;
    // Twice the space of the messages: more are sent while faults are still to come.
    let bytes_each = if settings.mode == TortureMode::Outbox { 16 * 1024 } else { 8 * 1024 };
    let (disk, no_small_disk) = Disk::create(1024 * MEBIBYTE + settings.messages * bytes_each)?;
    let clock = FakeClock::create(folder.path(), settings.may_install);
    let no_clock = clock.as_ref().err().map(|error| format!("{error:#}"));
    let unavailable = [(TortureFault::DiskFull, no_small_disk), (TortureFault::ClockJump, no_clock)];
    let (possible, left_out) = possible_faults(settings, unavailable);
    let database = Database::start(settings.store, settings.scenario(), disk).await?;
    let broker = match settings.broker {
        Some(BrokerName::Rabbitmq) => Some(Broker::start(settings.mode).await?),
        None => None,
    };
    let mut run = Run::new(settings, database, broker, clock.ok(), folder.path(), &possible)?;
    for number in 0..WORKERS {
        let slot = run.start_worker(number)?;
        run.slots.push(slot);
    }
    run.deliver_all().await?;
    run.work_off().await?;
    run.end_workers().await?;

    let Run { mut database, history, log, .. } = run;
    let history = history.finish()?;
    let effects = database.effects().await?;
    // From the file, not from memory, so that others can repeat the check on the same events.
    let (verdict, violations) = check(settings.scenario(), read(&history)?, &effects)?;
    if let Some(folder) = &settings.keep {
        database.stop()?;
        let files = keep::Files { history: &history, log: &log, database: database.disk().path() };
        keep::keep(&folder.join(settings.name()), settings, files, &effects, &verdict)?;
    }
    Ok(SeedResult { verdict, violations, left_out })
}

/// The faults that can happen, and why others cannot.
fn possible_faults(
    settings: &SeedSettings,
    unavailable: [(TortureFault, Option<String>); 2],
) -> (Vec<TortureFault>, Vec<String>) {
    let mut possible = settings.possible_faults();
    let mut left_out = Vec::new();
    for (fault, reason) in unavailable {
        if let Some(reason) = reason.filter(|_| possible.contains(&fault)) {
            possible.retain(|other| *other != fault);
            left_out.push(format!("{}: {reason}", fault.id()));
        }
    }
    (possible, left_out)
}

impl Run {
    fn new(
        settings: &SeedSettings,
        database: Database,
        broker: Option<Broker>,
        clock: Option<FakeClock>,
        folder: &Path,
        possible: &[TortureFault],
    ) -> Result<Self> {
        let (scenario, seed) = (settings.scenario(), settings.seed);
        let (output_sender, output) = mpsc::unbounded_channel();
        // With an outbox the relay publishes.
        let publisher = broker.as_ref().filter(|_| scenario.mode != TortureMode::Outbox);
        let publisher = publisher.map(|broker| Publisher::start(broker.url().to_owned(), scenario));
        Ok(Self {
            scenario,
            database,
            broker,
            publisher,
            slots: Vec::new(),
            deliverer: Deliverer::new(scenario.plan(), WORKERS, settings.messages),
            random: Random::new(seed, "faults"),
            clock,
            history: History::create(folder.join("history.jsonl"))?,
            log: folder.join("workers.log"),
            clock_seconds: None,
            cancelled: 0,
            deallocated: 0,
            bodies: 0,
            commits_unknown: 0,
            outbox_results_lost: 0,
            replayed: false,
            starters: 0,
            lag: 0,
            lag_asked: Instant::now(),
            lag_worker: 0,
            columns: 0,
            failed_starts: 0,
            backlog: None,
            output_sender,
            output,
            schedule: Schedule::new(seed, settings.faults, settings.messages, possible),
            active_fault: None,
            recovery: Recovery::complete(),
            last_progress: Instant::now(),
            verbose: settings.verbose,
        })
    }

    fn start_worker(&self, number: usize) -> Result<Slot> {
        let mut environment = match &self.clock {
            Some(clock) if number == WITH_CLOCK => clock.environment().to_vec(),
            _ => Vec::new(),
        };
        environment.extend(self.broker.as_ref().map(|broker| (BROKER_URL, broker.url().to_owned())));
        let settings = WorkerSettings {
            url: self.database.url(Side::Sender),
            schema: self.database.schema().into(),
            receiver: self.database.receiver_url(),
            scenario: self.scenario,
            connections: if number == WITH_SMALL_POOL { self.small_pool() } else { CONNECTIONS },
            environment,
            log: self.log.clone(),
        };
        let worker = Worker::start(number, &settings, self.output_sender.clone())?;
        Ok(Slot { worker, state: WorkerState::Starting })
    }

    /// Two connections, or the minimum of an inbox with a log on PostgreSQL.
    fn small_pool(&self) -> u32 {
        if self.database.proxy().is_some() && self.scenario.mode != TortureMode::Inline { 4 } else { 2 }
    }

    /// The file for the standard error of workers.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// The workers that take deliveries.
    pub(crate) fn open(&self) -> Vec<usize> {
        let is_open = |number: &usize| self.slots[*number].state.is_open();
        (0..self.slots.len()).filter(is_open).collect()
    }

    /// A random worker that takes deliveries.
    pub(crate) fn random_worker(&mut self) -> Option<usize> {
        let open = self.open();
        self.random.choose(&open)
    }

    /// Sends a command to a worker.
    pub(crate) fn send(&self, worker: usize, command: WorkerCommand) -> Result<()> {
        self.slots[worker].worker.send(command)
    }

    /// Kills a worker.
    pub(crate) fn kill(&mut self, worker: usize) {
        self.slots[worker].state = WorkerState::Killed;
        self.slots[worker].worker.signal(Signal::KILL);
    }

    /// Asks a worker to finish its in-flight work and end.
    pub(crate) fn terminate(&mut self, worker: usize) {
        self.slots[worker].state = WorkerState::Ending;
        self.slots[worker].worker.signal(Signal::TERM);
    }

    /// The time since the last first acknowledgement of a message.
    pub(crate) fn time_without_progress(&self) -> Duration {
        self.last_progress.elapsed()
    }

    /// Runs until every message is acknowledged and every fault has happened.
    async fn deliver_all(&mut self) -> Result<()> {
        loop {
            self.deliver()?;
            self.inject_faults().await?;
            let faults_are_over =
                self.schedule.left() == 0 && self.active_fault.is_none() && self.recovery.is_complete();
            if self.deliverer.is_exhausted() && !faults_are_over {
                self.deliverer.extend(MORE_MESSAGES);
            }
            if self.deliverer.is_done() && faults_are_over {
                return Ok(());
            }
            let overdue = self.recovery.take_overdue(STALL_LIMIT, Instant::now());
            for worker in overdue.workers {
                self.history.add(TortureEvent::Idle { worker })?;
            }
            for worker in overdue.consumers {
                self.history.add(TortureEvent::Idle { worker })?;
            }
            for handler in overdue.handlers {
                self.history.add(TortureEvent::IdleHandler { handler: handler.into() })?;
            }
            if self.time_without_progress() > STALL_LIMIT {
                // No error: the checker counts it as a violation, and still examines the database.
                return self.history.add(TortureEvent::Stalled { faults: self.schedule.left() });
            }
            self.receive().await?;
        }
    }

    fn deliver(&mut self) -> Result<()> {
        self.ask_for_lag()?;
        let open = self.open();
        let lag_max = if self.active_fault.is_some() { LAG_IN_FAULT_MAX } else { LAG_MAX };
        let most = if self.lag > lag_max { self.deliverer.sent() } else { u64::MAX };
        // A queue takes copies whether workers run or not, and gives them to any of them.
        let open = if self.publisher.is_some() { (0..WORKERS).collect() } else { open };
        let deliveries = self.deliverer.deliveries(&open, most, Instant::now());
        self.send_deliveries(&deliveries)
    }

    /// Asks one worker after the other, because some may be stopped.
    fn ask_for_lag(&mut self) -> Result<()> {
        if self.scenario.mode != TortureMode::Outbox || self.lag_asked.elapsed() < LAG_PAUSE {
            return Ok(());
        }
        self.lag_asked = Instant::now();
        self.lag_worker = (self.lag_worker + 1) % self.slots.len();
        if self.slots[self.lag_worker].state.is_open() {
            self.send(self.lag_worker, WorkerCommand::ReportLag)?;
        }
        Ok(())
    }

    /// Sends copies of messages to workers, or to their queue.
    pub(crate) fn send_deliveries(&mut self, deliveries: &[SentCopy]) -> Result<()> {
        for delivery in deliveries {
            self.history.add_all(Event::of_delivery(delivery, self.scenario.plan()))?;
            let SentCopy { number, worker, message, copy } = *delivery;
            match &self.publisher {
                Some(publisher) => publisher.publish(*delivery),
                None => self.send(worker, WorkerCommand::Deliver { delivery: number, message, copy })?,
            }
        }
        Ok(())
    }

    /// Begins and ends faults on schedule, one at a time.
    async fn inject_faults(&mut self) -> Result<()> {
        if let Some(mut active) = self.active_fault.take() {
            if active.is_over(self).await? {
                self.print("end", active.fault());
                self.history.add(TortureEvent::TortureFault { id: active.fault().id().into() })?;
                // With an outbox only a part of the messages comes by a queue.
                let is_part = self.broker.is_some() && self.publisher.is_none();
                let consumers = if is_part { self.slots.len() } else { 0 };
                self.recovery = Recovery::of(
                    self.slots.len(),
                    consumers,
                    self.scenario.receiver_handlers(),
                    Instant::now(),
                );
            } else {
                self.active_fault = Some(active);
            }
            return Ok(());
        }
        // All workers must work again, or a worker that does not recover from one fault would be hidden by the next.
        let all_open = self.slots.iter().all(|slot| slot.state == WorkerState::Open);
        if self.recovery.is_care_unknown(Instant::now())
            // While the database restarts the query fails.
            && matches!(self.database.needs_crash_care().await, Ok(false))
        {
            self.recovery.end_care();
        }
        if all_open
            && self.recovery.is_complete()
            && self.recovery.is_care_over(Instant::now())
            && let Some(fault) = self.schedule.due(self.deliverer.acknowledged())
        {
            self.print("begin", fault);
            self.active_fault = Some(ActiveFault::begin(fault, self).await?);
        }
        Ok(())
    }

    fn print(&self, what: &str, fault: TortureFault) {
        if self.verbose {
            eprintln!("{:>8} acknowledged: {what} {}", self.deliverer.acknowledged(), fault.id());
        }
    }

    /// Handles all output of the workers, and waits a moment for the first.
    async fn receive(&mut self) -> Result<()> {
        let mut next = timeout(TICK, self.output.recv()).await.ok().flatten();
        while let Some(copy) = self.publisher.as_mut().and_then(Publisher::next_lost) {
            self.settle(copy.worker, copy.number, DeliveryResult::Retry, "not confirmed".to_owned())?;
        }
        while let Some(output) = next {
            self.handle_output(output).await?;
            next = self.output.try_recv().ok();
        }
        Ok(())
    }

    async fn handle_output(&mut self, WorkerOutput { worker, line }: WorkerOutput) -> Result<()> {
        let Some(line) = line else { return self.replace(worker).await };
        let report = serde_json::from_str(&line);
        match report.with_context(|| format!("invalid line of worker {worker}: {line}"))? {
            WorkerReport::Ready => {
                let state = &mut self.slots[worker].state;
                // A worker that was killed while it started stays killed: its end is expected.
                if *state == WorkerState::Starting {
                    *state = WorkerState::Open;
                }
            }
            WorkerReport::Settled { delivery, result, outcome } => {
                self.settle(worker, delivery, result, outcome)?;
            }
            WorkerReport::Event(event) => {
                match &event {
                    TortureEvent::Body { handler, .. } => {
                        if handler == NOTES {
                            self.recovery.consumed(worker);
                        }
                        self.bodies += 1;
                        self.recovery.ran(handler);
                    }
                    TortureEvent::CommitsUnknown { commits } => self.commits_unknown += commits,
                    _ => {}
                }
                self.history.add(event)?;
            }
            WorkerReport::ConsumerDropped => self.cancelled += 1,
            WorkerReport::Replayed => self.replayed = true,
            WorkerReport::Deallocated => self.deallocated += 1,
            WorkerReport::OutboxResultLost => self.outbox_results_lost += 1,
            WorkerReport::Backlog(backlog) => self.backlog = Some(backlog),
            WorkerReport::Lag(lag) => self.lag = lag,
            WorkerReport::Clock(seconds) => self.clock_seconds = Some(seconds),
        }
        Ok(())
    }

    fn settle(
        &mut self,
        worker: usize,
        delivery: u64,
        result: DeliveryResult,
        outcome: String,
    ) -> Result<()> {
        self.cancelled += u64::from(outcome == "cancelled");
        // Another result does not show that the worker makes progress again.
        if result == DeliveryResult::Ack {
            self.recovery.acknowledged(worker, &outcome);
        }
        let now = Instant::now();
        let settled = if self.publisher.is_some() {
            // Any worker may have got it.
            (0..WORKERS).find_map(|worker| self.deliverer.settle(worker, delivery, result, now))
        } else {
            self.deliverer.settle(worker, delivery, result, now)
        };
        let settled = match settled {
            // The broker delivers some copies again, and others were published again meanwhile.
            None if self.publisher.is_some() => return Ok(()),
            settled => {
                settled.with_context(|| format!("worker {worker} does not have the delivery {delivery}"))?
            }
        };
        if settled.is_first_ack {
            self.last_progress = Instant::now();
        }
        self.history.add_all(Event::of_result(&settled, outcome))
    }

    /// Replaces a worker that has ended by another one.
    async fn replace(&mut self, number: usize) -> Result<()> {
        let state = self.slots[number].state;
        self.failed_starts = if state == WorkerState::Starting { self.failed_starts + 1 } else { 0 };
        // Without a limit, a worker that can never start would look like a database that is down for ever.
        if self.failed_starts > FAILED_STARTS_MAX {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            bail!("workers cannot start: {}", log.lines().last().unwrap_or("they reported no error"));
        }
        if state == WorkerState::Starting {
            sleep(RESTART_PAUSE).await;
        }
        let slot = self.start_worker(number)?;
        let ended = std::mem::replace(&mut self.slots[number], slot);
        let status = ended.worker.wait().await?;
        if self.publisher.is_some() {
            // It is not known what it had settled and could not report.
            self.repeat_in_flight();
        } else {
            self.deliverer.worker_ended(number);
        }
        self.add_end(number, status, state.is_end_expected(status))
    }

    /// Publishes all copies again that are not reported as settled.
    pub(crate) fn repeat_in_flight(&mut self) {
        (0..WORKERS).for_each(|worker| self.deliverer.worker_ended(worker));
    }

    fn add_end(&mut self, worker: usize, status: ExitStatus, is_expected: bool) -> Result<()> {
        self.history.add(TortureEvent::WorkerEnded { worker, status: describe(status), is_expected })
    }

    /// Waits until the log is worked off. Messages that failed permanently are retried, and succeed from now on.
    async fn work_off(&mut self) -> Result<()> {
        if self.scenario.mode == TortureMode::Inline && self.broker.is_none() {
            return Ok(());
        }
        let (mut changed, mut last) = (Instant::now(), None);
        while changed.elapsed() < STALL_LIMIT {
            let mut backlog = self.query_backlog().await?;
            // In the order in which messages pass: what has left a queue is in the log then.
            if let (Some(Backlog { lag, .. }), Some(queued)) = (&mut backlog, self.take_queued().await?) {
                *lag += queued;
                if queued == 0 && *lag == 0 {
                    backlog = self.query_backlog().await?;
                }
            }
            if self.verbose {
                eprintln!("backlog: {backlog:?}");
            }
            if backlog.is_some_and(Backlog::is_empty) {
                return Ok(());
            }
            // Any change is progress, however slow it is on a busy machine.
            if backlog != last {
                (changed, last) = (Instant::now(), backlog);
            }
            sleep(TICK * 10).await;
        }
        self.history.add(TortureEvent::BacklogLeft(last.unwrap_or_default()))
    }

    /// The number of messages in the queues of the broker, if there is one. Those that a consumer has rejected are dead letters, and
    /// leave their queue.
    async fn take_queued(&mut self) -> Result<Option<u64>> {
        let Some(broker) = &self.broker else { return Ok(None) };
        for body in broker.take_rejected().await? {
            let message = serde_json::from_slice(&body).map(|Numbered { id }| id).unwrap_or_default();
            let (handler, error) = ("queue".to_owned(), "its consumer has rejected it".to_owned());
            self.history.add(TortureEvent::DeadLetter { message, handler, error })?;
        }
        Ok(Some(broker.messages().await?))
    }

    /// Lets a worker retry all dead letters and report the backlog.
    async fn query_backlog(&mut self) -> Result<Option<Backlog>> {
        for worker in 0..self.slots.len() {
            // Each time, because a worker that was replaced does not know it yet.
            self.send(worker, WorkerCommand::StopPermanentFailures)?;
        }
        // An earlier report must not count: it may be from before the retry.
        self.backlog = None;
        if let Some(worker) = self.random_worker() {
            self.send(worker, WorkerCommand::RetryDeadLetters)?;
            self.send(worker, WorkerCommand::ReportBacklog)?;
        }
        let deadline = Instant::now() + BACKLOG_LIMIT;
        while self.backlog.is_none() && Instant::now() < deadline {
            self.receive().await?;
        }
        Ok(self.backlog)
    }

    /// Asks all workers to end, and waits for it.
    async fn end_workers(&mut self) -> Result<()> {
        for worker in 0..self.slots.len() {
            self.terminate(worker);
        }
        let mut running: BTreeSet<usize> = (0..self.slots.len()).collect();
        let deadline = tokio::time::Instant::now() + STALL_LIMIT;
        while !running.is_empty() {
            match timeout_at(deadline, self.output.recv()).await {
                Ok(Some(WorkerOutput { worker, line: None })) => _ = running.remove(&worker),
                Ok(Some(output)) => self.handle_output(output).await?,
                Ok(None) | Err(_) => break,
            }
        }
        for (number, slot) in std::mem::take(&mut self.slots).into_iter().enumerate() {
            if running.contains(&number) {
                // A worker that does not end by itself is a violation: its status is no success.
                slot.worker.signal(Signal::KILL);
            }
            let status = slot.worker.wait().await?;
            self.add_end(number, status, status.success())?;
        }
        Ok(())
    }
}
